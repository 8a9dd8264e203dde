"""Inverse physics-informed network: finds the diffusivity of u_t = k u_xx, Adam first, then L-BFGS."""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    k_true: float = 0.2
    k_start: float = 0.6
    adam_steps: int = 350
    adam_lr: float = 8e-3
    lbfgs_rounds: int = 4
    lbfgs_iters: int = 10
    points: int = 200
    seed: int = 3


class InversePINN(nn.Module):
    def __init__(self, cfg, mean, std):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
        self.log_k = nn.Parameter(torch.tensor(math.log(cfg.k_start)))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x, t):
        inputs = (torch.cat([x, t], dim=1) - self.mean) / self.std
        return self.net(inputs)

    def residual(self, x, t):
        x = x.detach().requires_grad_(True)
        t = t.detach().requires_grad_(True)
        u = self(x, t)
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, (x, t), ones, create_graph=True)
        u_xx, = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return u_t - self.log_k.exp() * u_xx


class Problem:
    def __init__(self, cfg):
        self.cfg = cfg
        self.x = torch.rand(cfg.points, 1)
        self.t = torch.rand(cfg.points, 1)
        self.u = self.exact(self.x, self.t) + 0.005 * torch.randn(cfg.points, 1)

    def exact(self, x, t):
        return torch.exp(-self.cfg.k_true * math.pi ** 2 * t) * torch.sin(math.pi * x)

    def loss(self, model):
        data = (model(self.x, self.t) - self.u).pow(2).mean()
        pde = model.residual(self.x, self.t).pow(2).mean()
        return data + 0.1 * pde


def fit_adam(cfg, model, problem):
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.adam_lr)
    for step in range(cfg.adam_steps):
        optimizer.zero_grad()
        loss = problem.loss(model)
        loss.backward()
        optimizer.step()
        if step % 150 == 0:
            print(f"adam {step} loss {loss.item():.5f} k {model.log_k.exp().item():.4f}")


def fit_lbfgs(cfg, model, problem):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=cfg.lbfgs_iters,
                                  history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = problem.loss(model)
        loss.backward()
        return loss

    for _ in range(cfg.lbfgs_rounds):
        last = optimizer.step(closure)
    return last.item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    problem = Problem(cfg)
    inputs = torch.cat([problem.x, problem.t], dim=1)
    model = InversePINN(cfg, inputs.mean(0), inputs.std(0))
    fit_adam(cfg, model, problem)
    final = fit_lbfgs(cfg, model, problem)
    k = model.log_k.exp().item()
    print(f"final loss {final:.6f} k {k:.4f}")
    return {"final_loss": final, "k": k}


if __name__ == "__main__":
    main()
