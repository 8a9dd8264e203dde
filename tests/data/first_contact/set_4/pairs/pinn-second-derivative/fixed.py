"""Physics-informed network for the heat equation u_t = a u_xx on [0, 1] x [0, 1]."""
import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd import grad


@dataclass
class Config:
    layers: list = field(default_factory=lambda: [2, 24, 24, 1])
    diffusivity: float = 0.1
    collocation: int = 200
    boundary: int = 60
    iterations: int = 700
    lr: float = 5e-3
    boundary_weight: float = 10.0
    seed: int = 0


class MLP(nn.Module):
    def __init__(self, layers):
        super().__init__()
        blocks = []
        for i, (a, b) in enumerate(zip(layers[:-1], layers[1:])):
            linear = nn.Linear(a, b)
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
            blocks += [linear, nn.Tanh()] if i < len(layers) - 2 else [linear]
        self.net = nn.Sequential(*blocks)

    def forward(self, xt):
        return self.net(xt)


def exact(xt, a):
    x, t = xt[:, :1], xt[:, 1:]
    return torch.exp(-a * math.pi ** 2 * t) * torch.sin(math.pi * x)


class HeatPINN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = MLP(cfg.layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 250, 0.5)
        self.history = []

    def residual(self, xt):
        xt = xt.clone().requires_grad_(True)
        u = self.model(xt)
        first, = grad(u, xt, grad_outputs=torch.ones_like(u), create_graph=True)
        u_x, u_t = first[:, 0:1], first[:, 1:2]
        second, = grad(u_x, xt, grad_outputs=torch.ones_like(u_x), create_graph=True)
        u_xx = second[:, 0:1]
        return u_t - self.cfg.diffusivity * u_xx

    def sample(self):
        interior = torch.rand(self.cfg.collocation, 2)
        n = self.cfg.boundary
        side = torch.cat([torch.randint(0, 2, (n, 1)).float(), torch.rand(n, 1)], dim=1)
        start = torch.cat([torch.rand(n, 1), torch.zeros(n, 1)], dim=1)
        return interior, torch.cat([side, start])

    def step(self):
        interior, border = self.sample()
        pde = self.residual(interior).pow(2).mean()
        data = (self.model(border) - exact(border, self.cfg.diffusivity)).pow(2).mean()
        loss = pde + self.cfg.boundary_weight * data
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.history.append((loss.item(), pde.item(), data.item()))
        return self.history[-1]

    @torch.no_grad()
    def relative_error(self):
        axis = torch.linspace(0, 1, 41)
        xt = torch.cartesian_prod(axis, axis)
        reference = exact(xt, self.cfg.diffusivity)
        return ((self.model(xt) - reference).norm() / reference.norm()).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    solver = HeatPINN(cfg)
    for iteration in range(cfg.iterations):
        loss, pde, data = solver.step()
        if iteration % 200 == 0:
            print(f"iteration {iteration} loss {loss:.5f} pde {pde:.5f} data {data:.5f}")
    error = solver.relative_error()
    print(f"relative error {error:.4f}")
    return {"loss": loss, "error": error}


if __name__ == "__main__":
    main()
