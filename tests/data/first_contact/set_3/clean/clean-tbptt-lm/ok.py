"""Character model with truncated backpropagation through time and a separate state for evaluation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 16
    hidden: int = 24
    bptt: int = 8
    batch_size: int = 6
    epochs: int = 3
    length: int = 600
    lr: float = 1e-2
    clip: float = 0.25
    seed: int = 1


class CharLSTM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.hidden)
        self.drop = nn.Dropout(0.1)
        self.lstm = nn.LSTM(cfg.hidden, cfg.hidden, batch_first=True)
        self.decoder = nn.Linear(cfg.hidden, cfg.vocab)
        self.decoder.weight = self.embed.weight

    def init_hidden(self, batch):
        weight = next(self.parameters())
        size = (1, batch, self.lstm.hidden_size)
        return weight.new_zeros(size), weight.new_zeros(size)

    def forward(self, x, hidden):
        out, hidden = self.lstm(self.drop(self.embed(x)), hidden)
        return self.decoder(self.drop(out)), hidden


def repackage_hidden(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage_hidden(s) for s in state)


def corpus(cfg, length, seed):
    gen = torch.Generator().manual_seed(seed)
    step = torch.where(torch.rand(length, generator=gen) < 0.9, 3, 1)
    return step.cumsum(0) % cfg.vocab


def batchify(data, batch):
    n = len(data) // batch
    return data[:n * batch].view(batch, n)


def windows(data, bptt):
    for i in range(0, data.size(1) - 1, bptt):
        n = min(bptt, data.size(1) - 1 - i)
        yield data[:, i:i + n], data[:, i + 1:i + 1 + n]


@torch.no_grad()
def evaluate(model, data, cfg):
    model.eval()
    hidden, total, count = model.init_hidden(data.size(0)), 0.0, 0
    for x, y in windows(data, cfg.bptt):
        logits, hidden = model(x, hidden)
        total += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
        count += y.numel()
    model.train()
    return total / count


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = CharLSTM(cfg)
    train, valid = batchify(corpus(cfg, cfg.length, 2), cfg.batch_size), batchify(corpus(cfg, 200, 3), cfg.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        hidden = model.init_hidden(cfg.batch_size)
        losses = []
        for i, (x, y) in enumerate(windows(train, cfg.bptt)):
            hidden = repackage_hidden(hidden)
            optimizer.zero_grad()
            logits, hidden = model(x, hidden)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            losses.append(loss.detach())
            if i == 5:
                evaluate(model, valid, cfg)
        print(f"epoch {epoch} train {torch.stack(losses).mean():.4f} valid {evaluate(model, valid, cfg):.4f}")
    return evaluate(model, valid, cfg)


if __name__ == "__main__":
    main()
