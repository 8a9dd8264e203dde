"""Burgers-type inverse problem: Adam warm-up, then LBFGS with a closure; an unknown coefficient is learned too."""
import math

import torch
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_nu = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def exact(x, t, nu=0.2):
    return torch.exp(-nu * math.pi ** 2 * t) * torch.sin(math.pi * x)


class Problem:
    def __init__(self, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(80, 1, generator=g).requires_grad_()
        self.t = torch.rand(80, 1, generator=g).requires_grad_()
        xd, td = torch.rand(40, 1, generator=g), torch.rand(40, 1, generator=g)
        self.data = (xd, td, exact(xd, td))

    @staticmethod
    def d(y, x):
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def loss(self, model):
        u = model(self.x, self.t)
        u_t, u_x = self.d(u, self.t), self.d(u, self.x)
        u_xx = self.d(u_x, self.x)
        xd, td, ud = self.data
        residual = u_t - model.log_nu.exp() * u_xx
        return residual.pow(2).mean() * 0.1 + (model(xd, td) - ud).pow(2).mean()


class Fitter:
    def __init__(self, model, problem):
        self.model, self.problem, self.calls = model, problem, 0
        self.lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=60, history_size=20, line_search_fn="strong_wolfe")

    def adam(self, steps):
        opt = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        for step in range(steps):
            opt.zero_grad()
            loss = self.problem.loss(self.model)
            loss.backward()
            opt.step()
            if step % 100 == 0:
                print(f"adam {step}: {loss.item():.5f}")

    def closure(self):
        self.lbfgs.zero_grad()
        loss = self.problem.loss(self.model)
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        for p, g in zip(self.model.parameters(), grads):
            p.grad = g
        self.calls += 1
        return loss.detach()

    def polish(self):
        loss = self.lbfgs.step(self.closure)
        print(f"lbfgs start {loss.item():.5f} after {self.calls} evaluations")


def main():
    torch.manual_seed(0)
    model, problem = PINN(), Problem()
    fit = Fitter(model, problem)
    fit.adam(200)
    fit.polish()
    with torch.no_grad():
        nu = model.log_nu.exp().item()
    return problem.loss(model).item(), nu


if __name__ == "__main__":
    main()
