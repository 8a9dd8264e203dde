"""Recurrent language model: truncated backpropagation through time and accumulated gradients."""
import math

import torch
from torch import nn

TEXT = ("in the beginning there was a word and the word was long and the sentence went on. " * 40)


class RNNModel(nn.Module):
    def __init__(self, vocab, dim=40, layers=2, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(dim, vocab)
        self.init_weights()
        self.decoder.weight = self.encoder.weight
        self.layers, self.dim = layers, dim

    def init_weights(self):
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(self.layers, batch, self.dim), weight.new_zeros(self.layers, batch, self.dim)

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(out)), hidden


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def batchify(data, batch):
    n = data.numel() // batch
    return data[: n * batch].view(batch, n)


def windows(data, bptt):
    for i in range(0, data.shape[1] - 1, bptt):
        length = min(bptt, data.shape[1] - 1 - i)
        yield data[:, i:i + length], data[:, i + 1:i + 1 + length]


def evaluate(model, data, bptt, criterion):
    model.eval()
    total, count = 0.0, 0
    hidden = model.init_hidden(data.shape[0])
    with torch.no_grad():
        for x, y in windows(data, bptt):
            logits, hidden = model(x, hidden)
            total += criterion(logits.flatten(0, 1), y.flatten()).item() * y.numel()
            count += y.numel()
    model.train()
    return total / count


def train_epoch(model, data, bptt, accumulation, optimizer, criterion):
    model.train()
    hidden = model.init_hidden(data.shape[0])
    chunks = list(windows(data, bptt))
    running = torch.zeros(())
    optimizer.zero_grad()
    for start in range(0, len(chunks), accumulation):
        group = chunks[start:start + accumulation]
        tokens = sum(y.numel() for _, y in group)
        for x, y in group:
            hidden = repackage_hidden(hidden)
            logits, hidden = model(x, hidden)
            loss = criterion(logits.flatten(0, 1), y.flatten()) * (y.numel() / tokens)
            loss.backward()
            running += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return running.item() / math.ceil(len(chunks) / accumulation)


def main():
    torch.manual_seed(14)
    chars = sorted(set(TEXT))
    ids = torch.tensor([chars.index(c) for c in TEXT])
    train, valid = batchify(ids[:2600], 8), batchify(ids[2600:], 4)
    model = RNNModel(len(chars))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    best = None
    for epoch in range(6):
        loss = train_epoch(model, train, 20, 2, optimizer, criterion)
        value = evaluate(model, valid, 20, criterion)
        scheduler.step(value)
        if best is None or value < best[0]:
            best = value, {k: v.clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch} train {loss:.3f} valid {value:.3f}")
    model.load_state_dict(best[1])
    print(f"best perplexity {math.exp(evaluate(model, valid, 20, criterion)):.2f}")


if __name__ == "__main__":
    main()
