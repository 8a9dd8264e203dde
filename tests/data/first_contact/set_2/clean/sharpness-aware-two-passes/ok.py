"""Sharpness-aware minimisation: two forward and backward passes for each step, weights moved and moved back."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    rho: float = 0.05
    lr: float = 0.05
    epochs: int = 4
    batch_size: int = 16
    seed: int = 25


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        scale = self.param_groups[0]["rho"] / (torch.stack(grads).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad, alpha=scale.item())
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.state[p].pop("old"))
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError("call first_step and second_step")


def set_running_stats(model, on):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            if on and hasattr(m, "kept_momentum"):
                m.momentum = m.kept_momentum
            elif not on:
                m.kept_momentum = m.momentum
                m.momentum = 0.0


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    y = torch.randint(6, (n,), generator=g)
    return TensorDataset(centres[y] + torch.randn(n, 12, generator=g), y)


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    x, y = data.tensors
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 6))
    optimizer = SAM(model.parameters(), torch.optim.SGD, cfg.rho, lr=cfg.lr, momentum=0.9)
    loader = DataLoader(make_data(320, 1), cfg.batch_size, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(cfg.seed))
    valid = make_data(200, 2)
    for epoch in range(cfg.epochs):
        model.train()
        for x, y in loader:
            set_running_stats(model, True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.first_step()
            set_running_stats(model, False)
            F.cross_entropy(model(x), y).backward()
            optimizer.second_step()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(model, valid):.3f}")
    return {"accuracy": accuracy(model, valid)}


if __name__ == "__main__":
    main()
