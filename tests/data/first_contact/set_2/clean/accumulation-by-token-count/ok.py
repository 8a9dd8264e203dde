"""Gradient accumulation over variable-length batches, normalised by the tokens of the whole window."""
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 24
    width: int = 24
    accumulation: int = 4
    batches: int = 42
    epochs: int = 4
    lr: float = 2e-2
    clip: float = 1.0
    seed: int = 6


class TaggingModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.width, padding_idx=0)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * cfg.width, 4)

    def forward(self, ids):
        return self.out(self.drop(self.rnn(self.embed(ids))[0]))


def make_batches(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        length = int(torch.randint(4, 20, (), generator=g))
        ids = torch.randint(1, cfg.vocab, (6, length), generator=g)
        lengths = torch.randint(2, length + 1, (6, 1), generator=g)
        pad = torch.arange(length) >= lengths
        labels = (ids // 6 + ids.roll(1, 1) // 12) % 4
        out.append((ids.masked_fill(pad, 0), labels.masked_fill(pad, -100)))
    return out


def windows(batches, size):
    it = iter(batches)
    while window := list(islice(it, size)):
        yield window


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg, self.model = cfg, TaggingModel(cfg)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=cfg.lr)
        updates = cfg.epochs * -(-cfg.batches // cfg.accumulation)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, updates)

    def update(self, window):
        total = 0.0
        tokens = 0
        for ids, labels in window:
            loss = F.cross_entropy(self.model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
            loss.backward()
            total += loss.item()
            tokens += int((labels != -100).sum())
        for p in self.model.parameters():
            p.grad.div_(tokens)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return total / tokens

    @torch.no_grad()
    def evaluate(self, batches):
        self.model.eval()
        hits = count = 0
        for ids, labels in batches:
            keep = labels != -100
            hits += (self.model(ids).argmax(-1)[keep] == labels[keep]).sum().item()
            count += keep.sum().item()
        self.model.train()
        return hits / count


def main():
    cfg = Config()
    trainer = Trainer(cfg)
    train, valid = make_batches(cfg, cfg.batches, 1), make_batches(cfg, 8, 2)
    for epoch in range(cfg.epochs):
        losses = [trainer.update(window) for window in windows(train, cfg.accumulation)]
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} acc {trainer.evaluate(valid):.3f}")
    return {"accuracy": trainer.evaluate(valid)}


if __name__ == "__main__":
    main()
