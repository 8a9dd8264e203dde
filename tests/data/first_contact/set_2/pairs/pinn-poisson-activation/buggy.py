"""Physics-informed network for the Poisson equation -u'' = f on [0, 1], u(0) = u(1) = 0."""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class PinnConfig:
    width: int = 24
    depth: int = 3
    activation: str = "relu"
    collocation: int = 64
    lr: float = 5e-3
    iterations: int = 400
    boundary_weight: float = 20.0
    seed: int = 14


ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}


class Field(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        act = ACTIVATIONS[cfg.activation]
        layers = [nn.Linear(1, cfg.width), act()]
        for _ in range(cfg.depth - 1):
            layers += [nn.Linear(cfg.width, cfg.width), act()]
        layers.append(nn.Linear(cfg.width, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def derivative(u, x):
    return torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), create_graph=True)[0]


def forcing(x):
    return math.pi ** 2 * torch.sin(math.pi * x)


def exact(x):
    return torch.sin(math.pi * x)


class PoissonSolver:
    def __init__(self, cfg):
        self.cfg = cfg
        self.field = Field(cfg)
        self.optimizer = torch.optim.Adam(self.field.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.995)
        self.boundary = torch.tensor([[0.0], [1.0]])

    def pde_loss(self):
        x = torch.rand(self.cfg.collocation, 1, requires_grad=True)
        u = self.field(x)
        u_xx = derivative(derivative(u, x), x)
        return (u_xx + forcing(x)).pow(2).mean()

    def boundary_loss(self):
        return self.field(self.boundary).pow(2).mean()

    def step(self):
        self.optimizer.zero_grad()
        pde, boundary = self.pde_loss(), self.boundary_loss()
        loss = pde + self.cfg.boundary_weight * boundary
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return pde.item(), boundary.item()

    @torch.no_grad()
    def relative_error(self):
        x = torch.linspace(0, 1, 101)[:, None]
        return ((self.field(x) - exact(x)).norm() / exact(x).norm()).item()


def main(cfg=PinnConfig()):
    torch.manual_seed(cfg.seed)
    solver = PoissonSolver(cfg)
    error = None
    for iteration in range(1, cfg.iterations + 1):
        pde, boundary = solver.step()
        if iteration % 100 == 0:
            error = solver.relative_error()
            print(f"iter {iteration:4d}  pde {pde:.4f}  boundary {boundary:.2e}  rel. error {error:.4f}")
    return {"pde": pde, "error": error}


if __name__ == "__main__":
    main()
