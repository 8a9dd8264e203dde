import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CharCorpus:
    def __init__(self, n_chars=20000, vocab=24, seed=0):
        gen = torch.Generator().manual_seed(seed)
        table = torch.softmax(2.5 * torch.randn(vocab, vocab, generator=gen), -1)
        chars = [0]
        for _ in range(n_chars - 1):
            chars.append(int(torch.multinomial(table[chars[-1]], 1, generator=gen)))
        self.data = torch.tensor(chars)
        self.vocab = vocab

    def batchify(self, bsz):
        n = len(self.data) // bsz
        return self.data[: n * bsz].view(bsz, n).t().contiguous()


class LockedDropout(nn.Module):
    def forward(self, x, p):
        if not self.training or p == 0:
            return x
        mask = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - p) / (1 - p)
        return x * mask


class RNNModel(nn.Module):
    def __init__(self, vocab, hidden=48, layers=2, dropouti=0.1, dropout=0.2):
        super().__init__()
        self.encoder = nn.Embedding(vocab, hidden)
        self.rnns = nn.ModuleList(nn.LSTM(hidden, hidden) for _ in range(layers))
        self.decoder = nn.Linear(hidden, vocab)
        self.decoder.weight = self.encoder.weight
        self.lockdrop = LockedDropout()
        self.dropouti, self.dropout = dropouti, dropout
        self.hidden = hidden
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, x, hidden):
        out = self.lockdrop(self.encoder(x), self.dropouti)
        new_hidden, raw = [], []
        for rnn, h in zip(self.rnns, hidden):
            out, h = rnn(out, h)
            new_hidden.append(h)
            raw.append(out)
            out = self.lockdrop(out, self.dropout)
        return self.decoder(out), new_hidden, raw[-1], out

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return [(weight.new_zeros(1, bsz, self.hidden), weight.new_zeros(1, bsz, self.hidden)) for _ in self.rnns]


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return type(h)(repackage_hidden(v) for v in h)


def train_epoch(model, data, optimizer, bptt, chunks, alpha=1.0, beta=1.0):
    model.train()
    hidden = model.init_hidden(data.size(1))
    total, count, pending = 0.0, 0, []
    for i in range(0, data.size(0) - 1 - bptt, bptt):
        x, y = data[i : i + bptt], data[i + 1 : i + 1 + bptt]
        logits, hidden, raw, dropped = model(x, hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        penalty = alpha * dropped.pow(2).mean() + beta * (raw[1:] - raw[:-1]).pow(2).mean()
        pending.append(loss + 0.1 * penalty)
        total += loss.item()
        count += 1
        if len(pending) == chunks:
            optimizer.zero_grad()
            torch.stack(pending).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            pending.clear()
            hidden = repackage_hidden(hidden)
    return total / count


@torch.no_grad()
def evaluate(model, data, bptt):
    model.eval()
    hidden = model.init_hidden(data.size(1))
    total, count = 0.0, 0
    for i in range(0, data.size(0) - 1 - bptt, bptt):
        logits, hidden, _, _ = model(data[i : i + bptt], hidden)
        total += F.cross_entropy(logits.flatten(0, 1), data[i + 1 : i + 1 + bptt].flatten()).item()
        count += 1
    return total / count


def main():
    torch.manual_seed(2)
    corpus = CharCorpus(6500)
    data = corpus.batchify(10)
    train, val = data[:511], data[511:]
    model = RNNModel(corpus.vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best, stored = float("inf"), None
    for epoch in range(4):
        loss = train_epoch(model, train, optimizer, bptt=10, chunks=2)
        val_loss = evaluate(model, val, 10)
        if val_loss < best:
            best = val_loss
            stored = {k: v.detach().clone() for k, v in model.state_dict().items()}
        print(f"| epoch {epoch} | loss {loss:.3f} | valid loss {val_loss:.3f} | valid ppl {math.exp(val_loss):.2f}")
    model.load_state_dict(stored)
    print(f"| best valid loss {evaluate(model, val, 10):.3f}")


if __name__ == "__main__":
    main()
