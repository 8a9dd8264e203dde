"""Sharpness-aware minimization: two backwards per step, weights moved and moved back in place."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    hidden: int = 32
    samples: int = 256
    batch: int = 64
    epochs: int = 10
    rho: float = 0.05
    lr: float = 0.1
    seed: int = 2


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        scale = self.param_groups[0]["rho"] / (torch.stack([g.norm() for g in grads]).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.detach().clone()
                    p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if "old" in self.state[p]:
                    p.copy_(self.state[p].pop("old"))
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise RuntimeError("use first_step and second_step")


def freeze_running_stats(model, frozen):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            if frozen:
                module.backup, module.momentum = module.momentum, 0.0
            elif hasattr(module, "backup"):
                module.momentum = module.backup


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    x = torch.randn(cfg.samples, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, cfg.hidden), nn.BatchNorm1d(cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, 2))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=cfg.rho, lr=cfg.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base, cfg.epochs)
    for epoch in range(cfg.epochs):
        model.train()
        for index in torch.randperm(len(x)).split(cfg.batch):
            freeze_running_stats(model, False)
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.first_step()
            freeze_running_stats(model, True)
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.second_step()
        scheduler.step()
        if epoch % 4 == 3:
            model.eval()
            with torch.no_grad():
                accuracy = (model(x).argmax(1) == y).float().mean().item()
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}  acc {accuracy:.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
