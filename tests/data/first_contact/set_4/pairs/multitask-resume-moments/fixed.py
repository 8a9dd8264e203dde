"""Multi-task tagger with one head per task; training is interrupted and resumed when new data has come in."""
import os
import tempfile
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 16
    hidden: int = 32
    lr: float = 5e-3
    batch: int = 16
    steps_per_epoch: int = 15
    seed: int = 0


SCALE = {"ner": 0.02, "pos": 1.0, "sentiment": 8.0, "topic": 0.3}


class MultiTaskNet(nn.Module):
    def __init__(self, cfg, tasks):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.Tanh())
        self.heads = nn.ModuleDict({t: nn.Linear(cfg.hidden, 1) for t in tasks})

    def forward(self, x, task):
        return self.heads[task](self.encoder(x)).squeeze(-1)


class Corpus:
    """Examples per task; the counts change whenever annotators deliver."""

    def __init__(self, counts, cfg):
        self.counts = Counter(counts)
        self.teachers = {t: torch.randn(cfg.dim, generator=torch.Generator().manual_seed(i)) * SCALE[t]
                         for i, t in enumerate(sorted(SCALE))}
        self.cfg = cfg

    def tasks(self):
        return sorted(self.counts)

    def batch(self, task, generator):
        x = torch.randn(self.cfg.batch, self.cfg.dim, generator=generator)
        return x, x @ self.teachers[task]


class Checkpoint:
    def __init__(self, folder):
        self.path = os.path.join(folder, "last.pt")

    def save(self, model, optimizer, scheduler, epoch):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "epoch": epoch}, self.path)

    def load(self, model, optimizer, scheduler):
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        return state["epoch"] + 1


def build(cfg, corpus, total_epochs):
    model = MultiTaskNet(cfg, corpus.tasks())
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.999))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_epochs)
    return model, optimizer, scheduler


def train(cfg, corpus, ckpt, epochs, resume=False, total_epochs=8):
    model, optimizer, scheduler = build(cfg, corpus, total_epochs)
    first = ckpt.load(model, optimizer, scheduler) if resume else 0
    generator = torch.Generator().manual_seed(cfg.seed + first)
    history = []
    for epoch in range(first, first + epochs):
        total = 0.0
        for _ in range(cfg.steps_per_epoch):
            optimizer.zero_grad()
            for task in sorted(corpus.counts):
                x, y = corpus.batch(task, generator)
                loss = F.mse_loss(model(x, task), y) / SCALE[task] ** 2
                loss.backward()
                total += loss.item()
            optimizer.step()
            history.append(total)
        scheduler.step()
        ckpt.save(model, optimizer, scheduler, epoch)
        print(f"epoch {epoch} loss {total / cfg.steps_per_epoch:.4f}")
    return model, optimizer, total / cfg.steps_per_epoch


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    with tempfile.TemporaryDirectory() as folder:
        ckpt = Checkpoint(folder)
        corpus = Corpus({"ner": 900, "pos": 700, "sentiment": 300, "topic": 100}, cfg)
        train(cfg, corpus, ckpt, epochs=5)
        corpus.counts.update({"topic": 1200, "sentiment": 650})
        model, optimizer, loss = train(cfg, corpus, ckpt, epochs=1, resume=True)
    return {"model": model, "optimizer": optimizer, "loss": loss}


if __name__ == "__main__":
    main()
