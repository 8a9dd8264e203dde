"""BYOL on synthetic views, with a linear probe that is trained online on detached features."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 16
    epochs: int = 5
    steps_per_epoch: int = 30
    batch_size: int = 48
    accumulate: int = 2
    base_tau: float = 0.96
    lr: float = 0.05
    seed: int = 7


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = mlp(cfg.dim, 48, 32)
        self.projector = mlp(32, 48, 16)
        self.predictor = mlp(16, 32, 16)
        self.target = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)

    def loss(self, v1, v2):
        f1, f2 = self.backbone(v1), self.backbone(v2)
        p1, p2 = self.predictor(self.projector(f1)), self.predictor(self.projector(f2))
        with torch.no_grad():
            t1, t2 = self.target(v1), self.target(v2)
        sim = F.cosine_similarity(p1, t2, -1) + F.cosine_similarity(p2, t1, -1)
        return (2 - sim).mean(), f1.detach()

    @torch.no_grad()
    def momentum_update(self, tau):
        online = [*self.backbone.parameters(), *self.projector.parameters()]
        for p, tp in zip(online, self.target.parameters()):
            tp.lerp_(p, 1 - tau)


class Views:
    def __init__(self, cfg, gen):
        self.gen, self.dim = gen, cfg.dim
        self.centers = torch.randn(5, cfg.dim, generator=gen)

    def batch(self, n):
        y = torch.randint(0, 5, (n,), generator=self.gen)
        x = self.centers[y] + 0.5 * torch.randn(n, self.dim, generator=self.gen)
        views = [x + 0.3 * torch.randn(n, self.dim, generator=self.gen) for _ in range(2)]
        return views[0], views[1], x, y


@torch.no_grad()
def evaluate(model, probe, data):
    model.eval(), probe.eval()
    _, _, x, y = data.batch(300)
    acc = (probe(model.backbone(x)).argmax(1) == y).float().mean().item()
    model.train(), probe.train()
    return acc


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data = Views(cfg, torch.Generator().manual_seed(cfg.seed))
    model, probe = BYOL(cfg), nn.Linear(32, 5)
    online = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(online, lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    probe_optimizer = torch.optim.Adam(probe.parameters(), lr=1e-2)
    total_steps, done = cfg.epochs * cfg.steps_per_epoch, 0
    for epoch in range(cfg.epochs):
        running = torch.zeros(())
        for _ in range(cfg.steps_per_epoch):
            optimizer.zero_grad()
            for _ in range(cfg.accumulate):
                v1, v2, _, y = data.batch(cfg.batch_size)
                loss, features = model.loss(v1, v2)
                (loss / cfg.accumulate).backward()
                running += loss.detach() / cfg.accumulate
                probe_loss = F.cross_entropy(probe(features), y)
                probe_optimizer.zero_grad()
                probe_loss.backward()
                probe_optimizer.step()
            optimizer.step()
            done += 1
            tau = 1 - (1 - cfg.base_tau) * (math.cos(math.pi * done / total_steps) + 1) / 2
            model.momentum_update(tau)
        print(f"epoch {epoch} loss {running.item() / cfg.steps_per_epoch:.4f} probe {evaluate(model, probe, data):.3f}")
    result = {"loss": round(running.item() / cfg.steps_per_epoch, 4), "probe": round(evaluate(model, probe, data), 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
