"""Sharpness-aware minimisation: two forward and backward passes for each update."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 4
    batch: int = 32
    epochs: int = 3
    iters: int = 15
    lr: float = 0.05
    rho: float = 0.05
    label_smoothing: float = 0.1
    seed: int = 3


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]
                            if p.grad is not None]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError("use first_step and second_step")


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(8 * 16, classes)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def set_bn_tracking(model, on):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            if on:
                m.momentum = m.backup_momentum
            else:
                m.backup_momentum, m.momentum = m.momentum, 0.0


def make_batch(cfg, gen, patterns):
    y = torch.randint(0, cfg.classes, (cfg.batch,), generator=gen)
    return patterns[y] + torch.randn(cfg.batch, 1, 8, 8, generator=gen), y


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    patterns = torch.randn(cfg.classes, 1, 8, 8, generator=gen)
    model = SmallNet(cfg.classes)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=cfg.rho, lr=cfg.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.base_optimizer, step_size=1, gamma=0.5)
    for epoch in range(cfg.epochs):
        model.train()
        for _ in range(cfg.iters):
            x, y = make_batch(cfg, gen, patterns)
            loss = F.cross_entropy(model(x), y, label_smoothing=cfg.label_smoothing)
            loss.backward()
            optimizer.first_step()
            set_bn_tracking(model, False)
            F.cross_entropy(model(x), y, label_smoothing=cfg.label_smoothing).backward()
            set_bn_tracking(model, True)
            optimizer.second_step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            x, y = make_batch(cfg, torch.Generator().manual_seed(9), patterns)
            acc = (model(x).argmax(1) == y).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f}")
    return acc


if __name__ == "__main__":
    main()
