"""Sharpness-aware minimization around SGD: two backward passes for each step, one update of the running statistics."""
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    rho: float = 0.05
    lr: float = 0.1
    epochs: int = 6
    batch_size: int = 32
    clip: float = 2.0
    ema: float = 0.95
    seed: int = 25


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def first_step(self):
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        total = torch.stack(norms).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.detach().clone()
                p.add_(p.grad, alpha=group["rho"] / (total.item() + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.state[p].pop("old_p"))
        self.base.step()

    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        loss = closure()
        self.first_step()
        closure(perturbed=True)
        self.second_step()
        return loss


@contextmanager
def frozen_running_stats(model, active):
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)] if active else []
    kept = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, value in zip(norms, kept):
            m.momentum = value


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(cfg.ema), use_buffers=True)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=cfg.rho, lr=cfg.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base, cfg.epochs)
    (x, y), (vx, vy) = make_data(1, 384), make_data(2, 256)
    for epoch in range(cfg.epochs):
        model.train()
        for index in torch.randperm(len(x)).split(cfg.batch_size):
            def closure(perturbed=False):
                with frozen_running_stats(model, perturbed):
                    loss = F.cross_entropy(model(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                if perturbed:
                    nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                return loss.detach()

            loss = optimizer.step(closure)
            averaged.update_parameters(model)
        scheduler.step()
        averaged.eval()
        with torch.no_grad():
            accuracy = (averaged(vx).argmax(1) == vy).float().mean().item()
        if epoch % 2 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
