"""Stateful character language model: truncated backpropagation, state carried over batches and detached."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 2
    vocab: int = 12
    emsize: int = 16
    nhid: int = 32
    bptt: int = 12
    batch_size: int = 8
    epochs: int = 4
    lr: float = 1.0
    clip: float = 0.25
    dropout: float = 0.1
    tied: bool = False


class RNNModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.drop = nn.Dropout(args.dropout)
        self.encoder = nn.Embedding(args.vocab, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, num_layers=2, dropout=args.dropout)
        self.decoder = nn.Linear(args.nhid, args.vocab)
        self.nhid = args.nhid

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(out)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(2, bsz, self.nhid), weight.new_zeros(2, bsz, self.nhid)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz):
    n = len(data) // bsz
    return data[: n * bsz].view(bsz, n).t().contiguous()


def corpus(args, n, seed):
    g = torch.Generator().manual_seed(seed)
    steps = torch.where(torch.rand(n, generator=g) < 0.85, 1, torch.randint(args.vocab, (n,), generator=g))
    return steps.cumsum(0) % args.vocab


def get_batch(source, i, bptt):
    length = min(bptt, len(source) - 1 - i)
    return source[i:i + length], source[i + 1:i + 1 + length].reshape(-1)


@torch.no_grad()
def evaluate(model, args, source):
    model.eval()
    hidden, total = model.init_hidden(source.size(1)), 0.0
    for i in range(0, len(source) - 1, args.bptt):
        data, targets = get_batch(source, i, args.bptt)
        output, hidden = model(data, hidden)
        total += len(data) * F.cross_entropy(output.flatten(0, 1), targets).item()
    return total / (len(source) - 1)


def train(model, args, source, lr):
    model.train()
    hidden = model.init_hidden(source.size(1))
    log = 0.0
    for i in range(0, len(source) - 1, args.bptt):
        data, targets = get_batch(source, i, args.bptt)
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-lr)
        log = 0.9 * log + 0.1 * loss.item()
    return log


def main(args=Args()):
    torch.manual_seed(args.seed)
    model = RNNModel(args)
    train_source, val_source = batchify(corpus(args, 4000, 1), args.batch_size), batchify(corpus(args, 800, 2), args.batch_size)
    lr, best = args.lr, math.inf
    for epoch in range(args.epochs):
        log = train(model, args, train_source, lr)
        val = evaluate(model, args, val_source)
        print(f"epoch {epoch} train {log:.4f} val {val:.4f} lr {lr}")
        if val < best:
            best = val
        else:
            lr /= 4
    return best


if __name__ == "__main__":
    main()
