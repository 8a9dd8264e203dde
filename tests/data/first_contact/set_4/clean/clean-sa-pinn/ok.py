"""Self-adaptive physics-informed network: residual weights ascend, the network descends, then L-BFGS finishes."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import grad


@dataclass
class Config:
    hidden: int = 20
    collocation: int = 64
    adam_steps: int = 250
    lbfgs_steps: int = 15
    lr: float = 5e-3
    weight_lr: float = 2e-2
    seed: int = 29


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


def derivative(u, x):
    return grad(u, x, torch.ones_like(u), create_graph=True)[0]


class Poisson:
    """u'' = -pi^2 sin(pi x) on [-1, 1], u(-1) = u(1) = 0; the coefficient pi^2 is learnt from three observations."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.net = Net(cfg.hidden)
        self.log_k = nn.Parameter(torch.tensor(1.5))
        self.x = torch.linspace(-1, 1, cfg.collocation).unsqueeze(1).requires_grad_(True)
        self.border = torch.tensor([[-1.0], [1.0]])
        self.seen = torch.tensor([[-0.5], [0.25], [0.5]])
        self.weights = nn.Parameter(torch.ones(cfg.collocation, 1))
        self.model_params = [*self.net.parameters(), self.log_k]

    def residual(self):
        u = self.net(self.x)
        u_xx = derivative(derivative(u, self.x), self.x)
        return u_xx + self.log_k.exp() * torch.sin(math.pi * self.x.detach())

    def data_loss(self):
        observed = self.net(self.seen) - torch.sin(math.pi * self.seen)
        return self.net(self.border).pow(2).mean() + observed.pow(2).mean()

    def adam_phase(self):
        descent = torch.optim.Adam(self.model_params, lr=self.cfg.lr)
        ascent = torch.optim.Adam([self.weights], lr=self.cfg.weight_lr, maximize=True)
        for step in range(self.cfg.adam_steps):
            descent.zero_grad()
            ascent.zero_grad()
            loss = (self.weights * self.residual()).pow(2).mean() + 100.0 * self.data_loss()
            loss.backward()
            descent.step()
            ascent.step()
            with torch.no_grad():
                self.weights.clamp_(1.0, 10.0)
            if step % 100 == 0:
                print(f"adam {step} loss {loss.item():.4f}")

    def lbfgs_phase(self):
        weights = self.weights.detach()
        optimizer = torch.optim.LBFGS(self.model_params, lr=1.0, max_iter=5, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = (weights * self.residual()).pow(2).mean() + 100.0 * self.data_loss()
            loss.backward()
            return loss

        for step in range(self.cfg.lbfgs_steps):
            loss = optimizer.step(closure)
        print(f"lbfgs loss {loss.item():.5f}")

    @torch.no_grad()
    def error(self):
        x = torch.linspace(-1, 1, 101).unsqueeze(1)
        return (self.net(x) - torch.sin(math.pi * x)).abs().max().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    problem = Poisson(cfg)
    problem.adam_phase()
    before = problem.error()
    problem.lbfgs_phase()
    return {"after_adam": before, "after_lbfgs": problem.error(), "k": problem.log_k.exp().item()}


if __name__ == "__main__":
    main()
