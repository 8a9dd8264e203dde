import math

import torch
from torch import nn


class PINN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.k = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.body(x)


class Problem:
    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x_col = torch.rand(64, 1, generator=generator)
        self.x_bc = torch.tensor([[0.0], [1.0]])
        self.u_bc = torch.zeros(2, 1)
        self.x_obs = torch.linspace(0.1, 0.9, 9)[:, None]
        self.u_obs = torch.sin(math.pi * self.x_obs)

    def source(self, x):
        return math.pi**2 * torch.sin(math.pi * x)

    def residual(self, model):
        x = self.x_col.clone().requires_grad_(True)
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        return model.k * d2u + self.source(x)

    def losses(self, model):
        return {
            "pde": self.residual(model).pow(2).mean(),
            "bc": (model(self.x_bc) - self.u_bc).pow(2).mean(),
            "data": (model(self.x_obs) - self.u_obs).pow(2).mean(),
        }


class GradNormBalancer:
    def __init__(self, names, momentum=0.9):
        self.weights = {name: 1.0 for name in names}
        self.momentum = momentum

    def update(self, losses, params):
        norms = {}
        for name, loss in losses.items():
            grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            norms[name] = max(g.abs().max().item() for g in grads if g is not None)
        for name in self.weights:
            ratio = min(norms["pde"] / (norms[name] + 1e-8), 100.0)
            self.weights[name] = self.momentum * self.weights[name] + (1 - self.momentum) * ratio

    def combine(self, losses):
        return sum(self.weights[name] * loss for name, loss in losses.items())


def adam_stage(problem, model, balancer, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        losses = problem.losses(model)
        if step % 20 == 0:
            balancer.update(losses, list(model.parameters()))
        optimizer.zero_grad()
        balancer.combine(losses).backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"adam {step + 1} " + " ".join(f"{k} {v.item():.5f}" for k, v in losses.items()))


def lbfgs_stage(problem, model, balancer, steps):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=15, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = balancer.combine(problem.losses(model))
        loss.backward()
        return loss

    for step in range(steps):
        loss = optimizer.step(closure)
        print(f"lbfgs {step + 1} loss {loss.item():.6f} k {model.k.item():.4f}")


def main():
    torch.manual_seed(0)
    problem, model = Problem(), PINN()
    balancer = GradNormBalancer(["pde", "bc", "data"])
    adam_stage(problem, model, balancer, 150)
    lbfgs_stage(problem, model, balancer, 6)


if __name__ == "__main__":
    main()
