"""Multi-task training with gradient surgery (PCGrad): a backward for each task, projected, written into .grad."""
import random
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    tasks: int = 3
    width: int = 24
    epochs: int = 8
    batch_size: int = 32
    lr: float = 5e-3
    seed: int = 27


class MultiTaskNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, cfg.width), nn.ReLU(), nn.Linear(cfg.width, cfg.width), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(cfg.width, 1) for _ in range(cfg.tasks)])

    def forward(self, x):
        h = self.trunk(x)
        return [head(h).squeeze(1) for head in self.heads]


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for g in optimizer.param_groups for p in g["params"]]
        self.conflicts = 0

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        self.optimizer.step()

    def backward(self, losses):
        grads, present = [], []
        for i, loss in enumerate(losses):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=i < len(losses) - 1)
            grads.append(torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone()
                                    for p in self.params]))
            present.append(torch.cat([torch.full_like(p, p.grad is not None, dtype=torch.bool).flatten()
                                      for p in self.params]))
        merged = self.merge(grads, present)
        self.optimizer.zero_grad(set_to_none=True)
        for p, g in zip(self.params, merged.split([p.numel() for p in self.params])):
            p.grad = g.view_as(p).clone()

    def merge(self, grads, present):
        projected = []
        for i, grad in enumerate(grads):
            g = grad.clone()
            others = [k for k in range(len(grads)) if k != i]
            random.shuffle(others)
            for k in others:
                dot = g @ grads[k]
                if dot < 0:
                    self.conflicts += 1
                    g -= dot / grads[k].pow(2).sum() * grads[k]
            projected.append(g)
        shared = torch.stack(present).all(0)
        total = torch.stack(projected).sum(0)
        return torch.where(shared, total / len(grads), total)


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, torch.stack([x[:, 0] * x[:, 1], -x[:, 0] * x[:, 1] + x[:, 2], torch.sin(x[:, 3])], dim=0)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    model = MultiTaskNet(cfg)
    surgery = PCGrad(torch.optim.Adam(model.parameters(), lr=cfg.lr))
    (x, y), (vx, vy) = make_data(1, 384), make_data(2, 256)
    for epoch in range(cfg.epochs):
        model.train()
        for index in torch.randperm(len(x)).split(cfg.batch_size):
            losses = [F.mse_loss(o, y[t, index]) for t, o in enumerate(model(x[index]))]
            surgery.zero_grad()
            surgery.backward(losses)
            surgery.step()
        model.eval()
        with torch.no_grad():
            valid = [F.mse_loss(o, vy[t]).item() for t, o in enumerate(model(vx))]
        if epoch % 3 == 0:
            print(f"epoch {epoch} valid " + " ".join(f"{v:.4f}" for v in valid))
    return {"valid": valid, "conflicts": surgery.conflicts}


if __name__ == "__main__":
    main()
