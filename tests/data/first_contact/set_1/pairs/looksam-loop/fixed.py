"""Sharpness-aware training with the periodic (look) variant of SAM."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Setup:
    k: int = 4
    alpha: float = 0.7
    rho: float = 0.05
    lr: float = 0.05
    momentum: float = 0.9
    epochs: int = 15
    batch: int = 32


class LookSAM(torch.optim.Optimizer):
    def __init__(self, k, alpha, model, base_optimizer, criterion, rho=0.05, **kwargs):
        defaults = dict(alpha=alpha, rho=rho, **kwargs)
        super().__init__(model.parameters(), defaults)
        self.model, self.criterion = model, criterion
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.k, self.iteration = k, 0
        self.grad_norms = []

    def _grad_norm(self):
        norms = [p.grad.norm(2) for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.norm(torch.stack(norms), 2)

    @torch.no_grad()
    def _perturb(self):
        scale = self.param_groups[0]["rho"] / (self._grad_norm() + 1e-8)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.detach().clone()
                self.state[p]["old_grad"] = p.grad.detach().clone()
                p.add_(p.grad, alpha=scale.item())

    @torch.no_grad()
    def _restore(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "old_p" not in state:
                    continue
                g, gs = state["old_grad"], p.grad
                g_norm = g.norm() + 1e-12
                along = (gs * g).sum() / g_norm ** 2
                state["gv"] = gs - along * g
                p.copy_(state["old_p"])

    @torch.no_grad()
    def _reuse(self):
        for group in self.param_groups:
            for p in group["params"]:
                gv = self.state[p].get("gv")
                if p.grad is None or gv is None:
                    continue
                p.grad.add_(gv, alpha=group["alpha"] * (p.grad.norm() / (gv.norm() + 1e-8)).item())

    def step(self, samples, targets):
        if self.iteration % self.k == 0:
            self._perturb()
            self.zero_grad()
            self.criterion(self.model(samples), targets).backward()
            self._restore()
        else:
            self._reuse()
        self.grad_norms.append(self._grad_norm().item())
        self.base_optimizer.step()
        self.iteration += 1


class Net(nn.Module):
    def __init__(self, d_in=10, classes=5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d_in, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(),
                                    nn.Linear(48, classes))

    def forward(self, x):
        return self.layers(x)


def make_data(n, seed, noise):
    centres = torch.randn(5, 10, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    x = centres[y] + 0.9 * torch.randn(n, 10, generator=g)
    flip = torch.rand(n, generator=g) < noise
    return x, torch.where(flip, torch.randint(0, 5, (n,), generator=g), y)


def main():
    cfg = Setup()
    torch.manual_seed(0)
    x, y = make_data(320, 1, 0.15)
    xv, yv = make_data(500, 2, 0.0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = LookSAM(cfg.k, cfg.alpha, model, torch.optim.SGD, criterion, rho=cfg.rho, lr=cfg.lr, momentum=cfg.momentum)
    for epoch in range(cfg.epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(x)).split(cfg.batch):
            loss = criterion(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step(x[idx], y[idx])
            optimizer.zero_grad()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            acc = (model(xv).argmax(1) == yv).float().mean().item()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {total:.3f} val acc {acc:.3f}")
    sam = optimizer.grad_norms[::cfg.k]
    return {"val_acc": acc, "loss": total, "first_sam_grad_norm": sam[0], "mean_sam_grad_norm": sum(sam) / len(sam)}


if __name__ == "__main__":
    main()
