"""Sharpness-aware minimization with batch norm statistics frozen in the second pass."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass
class Config:
    rho: float = 0.05
    lr: float = 0.05
    epochs: int = 6
    batch_size: int = 32
    seed: int = 12


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self):
        norm = self.grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.detach().clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.copy_(self.state[p].pop("old_p"))
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()

    def grad_norm(self):
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.stack(norms).norm()


class RunningStats:
    """Switches the updates of batch norm statistics off for the second pass."""

    def __init__(self, model):
        self.layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]

    def __enter__(self):
        self.momenta = [m.momentum for m in self.layers]
        for m in self.layers:
            m.momentum = 0.0

    def __exit__(self, *exc):
        for m, momentum in zip(self.layers, self.momenta):
            m.momentum = momentum


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(4, 10)
    y = torch.randint(0, 4, (512,))
    x = centres[y] + torch.randn(512, 10)
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=cfg.rho, lr=cfg.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, cfg.epochs)
    for epoch in range(cfg.epochs):
        model.train()
        for idx in torch.randperm(len(x)).split(cfg.batch_size):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()

            def closure():
                with RunningStats(model):
                    F.cross_entropy(model(x[idx]), y[idx]).backward()

            optimizer.step(closure)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            full = F.cross_entropy(model(x), y).item()
        if epoch % 2 == 1:
            print(f"epoch {epoch} loss {full:.4f}")
    return {"loss": full}


if __name__ == "__main__":
    main()
