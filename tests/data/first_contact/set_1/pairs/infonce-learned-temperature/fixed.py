"""Dual encoder retrieval with a learned temperature and a varying number of hard negatives."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class RetrievalConfig:
    dim: int = 12
    hidden: int = 32
    max_negatives: int = 3
    epochs: int = 6
    batch: int = 16
    lr: float = 3e-3
    init_temperature: float = 0.2


class Tower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.hidden))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.query, self.doc = Tower(cfg), Tower(cfg)
        self.temperature = nn.Parameter(torch.tensor(cfg.init_temperature))

    def scores(self, q, d, negatives, mask):
        zq, zd = self.query(q), self.doc(d)
        zn = self.doc(negatives)
        in_batch = zq @ zd.t()
        hard = torch.einsum("bd,bnd->bn", zq, zn)
        logits = torch.cat([in_batch, hard], dim=1) / self.temperature
        keep = torch.cat([torch.ones_like(in_batch, dtype=torch.bool), mask], dim=1)
        return logits.masked_fill(~keep, float("-inf"))

    def forward(self, q, d, negatives, mask):
        logits = self.scores(q, d, negatives, mask)
        return F.cross_entropy(logits, torch.arange(len(q)))


class Corpus:
    def __init__(self, cfg, n, seed):
        g = torch.Generator().manual_seed(seed)
        rot = torch.linalg.qr(torch.randn(cfg.dim, cfg.dim, generator=torch.Generator().manual_seed(1)))[0]
        self.docs = torch.randn(n, cfg.dim, generator=g)
        self.queries = self.docs @ rot + 0.2 * torch.randn(n, cfg.dim, generator=g)
        self.counts = torch.full((n,), cfg.max_negatives)
        self.counts[n // 2:] = torch.randint(1, cfg.max_negatives + 1, (n - n // 2,), generator=g)
        self.cfg, self.gen = cfg, g

    def __len__(self):
        return len(self.docs)

    def batch(self, idx):
        k = self.cfg.max_negatives
        base = self.docs[idx][:, None].expand(-1, k, -1)
        negatives = base + 0.7 * torch.randn(base.shape, generator=self.gen)
        mask = torch.arange(k)[None] < self.counts[idx][:, None]
        return self.queries[idx], self.docs[idx], negatives * mask[..., None], mask


def recall_at_1(model, corpus):
    model.eval()
    with torch.no_grad():
        sim = model.query(corpus.queries) @ model.doc(corpus.docs).t()
    model.train()
    return (sim.argmax(1) == torch.arange(len(corpus))).float().mean().item()


class GradientGuard:
    """Counts optimizer steps that the trainer leaves out."""

    def __init__(self, limit):
        self.limit, self.skipped, self.taken = limit, 0, 0

    def ok(self, params):
        norm = nn.utils.clip_grad_norm_(params, self.limit)
        good = math.isfinite(norm.item())
        self.taken += good
        self.skipped += not good
        return good


def main():
    cfg = RetrievalConfig()
    torch.manual_seed(0)
    corpus, held_out = Corpus(cfg, 256, 2), Corpus(cfg, 96, 3)
    model = DualEncoder(cfg)
    towers = [*model.query.parameters(), *model.doc.parameters()]
    optimizer = torch.optim.Adam([{"params": towers}, {"params": [model.temperature], "lr": 1e-3}], lr=cfg.lr)
    guard = GradientGuard(5.0)
    for epoch in range(cfg.epochs):
        total = 0.0
        for start in range(0, len(corpus), cfg.batch):
            idx = torch.arange(start, min(start + cfg.batch, len(corpus)))
            loss = model(*corpus.batch(idx))
            optimizer.zero_grad()
            loss.backward()
            if guard.ok(model.parameters()):
                optimizer.step()
            total += loss.item()
        if epoch % 2 == 1:
            print(f"epoch {epoch + 1}: loss {total:.3f} recall@1 {recall_at_1(model, held_out):.3f}")
    return {"recall": recall_at_1(model, held_out), "loss": total, "steps_taken": guard.taken,
            "steps_skipped": guard.skipped, "temperature": model.temperature.item()}


if __name__ == "__main__":
    main()
