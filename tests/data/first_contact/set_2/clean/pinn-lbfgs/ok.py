"""PINN for u' + u = 0 with gradient-balanced loss weights, Adam first, L-BFGS after."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    width: int = 16
    points: int = 48
    adam_steps: int = 80
    lbfgs_steps: int = 6
    balance_every: int = 10
    lr: float = 1e-2
    seed: int = 5


class Field(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.register_buffer("boundary_weight", torch.tensor(1.0))

    def forward(self, t):
        return self.net(t)


def residual(field, t):
    t = t.detach().requires_grad_(True)
    u = field(t)
    (u_t,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
    return u_t + u


class Solver:
    def __init__(self, cfg):
        self.cfg = cfg
        self.field = Field(cfg.width)
        self.points = torch.linspace(0, 2, cfg.points)[:, None]
        self.start = torch.zeros(1, 1)

    def losses(self):
        return residual(self.field, self.points).pow(2).mean(), (self.field(self.start) - 1).pow(2).mean()

    def rebalance(self, pde, boundary):
        """Learning-rate annealing of Wang et al.: same size of gradient from both terms."""
        params = [p for p in self.field.parameters()]
        first = torch.autograd.grad(pde, params, retain_graph=True, allow_unused=True)
        second = torch.autograd.grad(boundary, params, retain_graph=True)
        largest = max(g.abs().max() for g in first if g is not None)
        mean = torch.cat([g.abs().flatten() for g in second]).mean() + 1e-8
        self.field.boundary_weight.mul_(0.9).add_(0.1 * (largest / mean).clamp(max=100.0))

    def run_adam(self):
        optimizer = torch.optim.Adam(self.field.parameters(), lr=self.cfg.lr)
        for step in range(self.cfg.adam_steps):
            optimizer.zero_grad()
            pde, boundary = self.losses()
            if step % self.cfg.balance_every == 0:
                self.rebalance(pde, boundary)
            (pde + self.field.boundary_weight * boundary).backward()
            optimizer.step()
        print(f"adam   pde {pde.item():.5f}  boundary {boundary.item():.2e}  weight {self.field.boundary_weight.item():.2f}")

    def run_lbfgs(self):
        optimizer = torch.optim.LBFGS(self.field.parameters(), max_iter=10, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            pde, boundary = self.losses()
            loss = pde + self.field.boundary_weight.detach() * boundary
            loss.backward()
            return loss

        for _ in range(self.cfg.lbfgs_steps):
            loss = optimizer.step(closure)
        print(f"lbfgs  loss {loss.item():.3e}")

    @torch.no_grad()
    def error(self):
        return (self.field(self.points) - torch.exp(-self.points)).abs().max().item()


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    solver = Solver(cfg)
    solver.run_adam()
    solver.run_lbfgs()
    print(f"max error {solver.error():.2e}")
    return solver.error()


if __name__ == "__main__":
    main()
