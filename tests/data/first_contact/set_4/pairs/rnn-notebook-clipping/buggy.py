#!/usr/bin/env python
# coding: utf-8
# # Recurrent networks from scratch: a character model (exported from rnn_scratch.ipynb)

# In[1]:
import math
import random

import torch
from torch import nn
from torch.nn import functional as F

text = ("the time traveller for so it will be convenient to speak of him was expounding a recondite "
        "matter to us his pale grey eyes shone and twinkled and his usually pale face was flushed and "
        "animated the fire burnt brightly and the soft radiance of the incandescent lights ") * 3
vocab = sorted(set(text))
stoi = {c: i for i, c in enumerate(vocab)}
corpus = [stoi[c] for c in text]
batch_size, num_steps, num_hiddens = 8, 16, 64
num_epochs, lr, theta = 12, 1.0, 0.5


# In[2]:
def seq_data_iter(corpus, batch_size, num_steps):
    offset = random.randint(0, num_steps)
    n = ((len(corpus) - offset - 1) // batch_size) * batch_size
    xs = torch.tensor(corpus[offset: offset + n]).reshape(batch_size, -1)
    ys = torch.tensor(corpus[offset + 1: offset + 1 + n]).reshape(batch_size, -1)
    for i in range(0, num_steps * (xs.shape[1] // num_steps), num_steps):
        yield xs[:, i: i + num_steps], ys[:, i: i + num_steps]


# In[3]:
class RNNModel(nn.Module):
    def __init__(self, rnn_layer, vocab_size):
        super().__init__()
        self.rnn = rnn_layer
        self.vocab_size = vocab_size
        self.linear = nn.Linear(rnn_layer.hidden_size, vocab_size)

    def forward(self, inputs, state):
        x = F.one_hot(inputs.T.long(), self.vocab_size).float()
        y, state = self.rnn(x, state)
        return self.linear(y.reshape(-1, y.shape[-1])), state

    def begin_state(self, batch_size):
        return torch.zeros(1, batch_size, self.rnn.hidden_size)


# In[4]:
def grad_clipping(params, theta):
    norm = torch.zeros(1)
    for p in params:
        norm += (p.grad ** 2).sum()
    norm = norm.sqrt().item()
    if norm > theta:
        for p in params:
            p.grad.mul_(theta / norm)
    return norm


# In[5]:
def predict(prefix, num_preds, net):
    state = net.begin_state(1)
    outputs = [stoi[prefix[0]]]
    with torch.no_grad():
        for c in prefix[1:]:
            _, state = net(torch.tensor([[outputs[-1]]]), state)
            outputs.append(stoi[c])
        for _ in range(num_preds):
            y, state = net(torch.tensor([[outputs[-1]]]), state)
            outputs.append(int(y.argmax(dim=1)))
    return "".join(vocab[i] for i in outputs)


# In[6]:
def train_epoch(net, loss_fn, updater):
    state, total, count = None, 0.0, 0
    for x, y in seq_data_iter(corpus, batch_size, num_steps):
        if state is None:
            state = net.begin_state(batch_size)
        else:
            state = state.detach()
        y_hat, state = net(x, state)
        loss = loss_fn(y_hat, y.T.reshape(-1)).mean()
        updater.zero_grad()
        loss.backward()
        grad_clipping(net.parameters(), theta)
        updater.step()
        total += loss.item() * y.numel()
        count += y.numel()
    return math.exp(min(total / count, 50))


# In[7]:
def main():
    random.seed(1)
    torch.manual_seed(1)
    net = RNNModel(nn.RNN(len(vocab), num_hiddens), len(vocab))
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    updater = torch.optim.SGD(net.parameters(), lr)
    for epoch in range(num_epochs):
        ppl = train_epoch(net, loss_fn, updater)
        if (epoch + 1) % 4 == 0:
            print(f"epoch {epoch + 1} perplexity {ppl:.2f}")
    print(predict("time ", 20, net))
    return {"perplexity": ppl, "net": net}


if __name__ == "__main__":
    main()
