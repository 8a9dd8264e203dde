"""Sharpness-aware minimisation: two forward/backward passes, weights moved away and back for each step."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 3
    batch: int = 32
    epochs: int = 6
    lr: float = 0.05
    rho: float = 0.05
    seed: int = 0


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_cls, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base_cls(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def ascend(self):
        grads = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack(grads).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad, alpha=group["rho"] / (norm.item() + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                if "old" in self.state[p]:
                    p.copy_(self.state[p].pop("old"))
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise RuntimeError("call ascend() and descend()")


def freeze_running_stats(model, on):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            if on:
                m.saved_momentum, m.momentum = m.momentum, 0.0
            else:
                m.momentum = m.saved_momentum


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24),
                                 nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, classes))

    def forward(self, x):
        return self.net(x)


def data(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    y = (x[:, :2].norm(dim=1) > 1.0).long() + (x[:, 2] > 0.8).long()
    return x, y


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    x, y = data(cfg, 384, 1)
    xv, yv = data(cfg, 256, 2)
    model = Net(cfg.classes)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=cfg.rho, lr=cfg.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base, cfg.epochs)
    for epoch in range(cfg.epochs):
        for idx in torch.randperm(len(x)).split(cfg.batch):
            loss = F.cross_entropy(model(x[idx]), y[idx], label_smoothing=0.05)
            loss.backward()
            optimizer.ascend()
            freeze_running_stats(model, True)
            F.cross_entropy(model(x[idx]), y[idx], label_smoothing=0.05).backward()
            freeze_running_stats(model, False)
            optimizer.descend()
        scheduler.step()
        if epoch % 2:
            print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(model, xv, yv):.3f}")
    return {"acc": accuracy(model, xv, yv)}


if __name__ == "__main__":
    main()
