import math

import numpy as np
import torch
import torch.nn as nn


class DNN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        blocks = []
        for i in range(len(layers) - 2):
            blocks += [nn.Linear(layers[i], layers[i + 1]), nn.Tanh()]
        blocks.append(nn.Linear(layers[-2], layers[-1]))
        self.layers = nn.Sequential(*blocks)

    def forward(self, xt):
        return self.layers(xt)


class PhysicsInformedNN:
    """Burgers' equation with an unknown viscosity that is fitted to measurements."""

    def __init__(self, x_u, u, nu0, n_colloc=150):
        self.x_u, self.u = x_u, u
        self.net = DNN([2, 20, 20, 1])
        self.log_nu = nn.Parameter(torch.tensor(math.log(nu0)))
        self.net.register_parameter("log_nu", self.log_nu)
        self.n_colloc = n_colloc
        self.adam = torch.optim.Adam(self.net.parameters(), lr=5e-3)
        self.lbfgs = torch.optim.LBFGS(self.net.parameters(), lr=0.5, max_iter=20, history_size=30,
                                       line_search_fn="strong_wolfe")
        self.evals = 0

    def sample(self):
        self.x = (2 * torch.rand(self.n_colloc, 1) - 1).requires_grad_(True)
        self.t = torch.rand(self.n_colloc, 1).requires_grad_(True)

    def residual(self):
        u = self.net(torch.cat([self.x, self.t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (self.x, self.t), create_graph=True)
        u_xx = torch.autograd.grad(u_x.sum(), self.x, create_graph=True)[0]
        return u_t + u * u_x - self.log_nu.exp() * u_xx

    def loss(self):
        fit = (self.net(self.x_u) - self.u).pow(2).mean()
        return fit + 0.1 * self.residual().pow(2).mean()

    def closure(self):
        self.lbfgs.zero_grad()
        loss = self.loss()
        loss.backward()
        self.evals += 1
        return loss

    def train(self, adam_steps, lbfgs_steps):
        for step in range(adam_steps):
            self.sample()
            loss = self.loss()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        print(f"adam loss {loss.item():.4e} nu {self.log_nu.exp().item():.4f}")
        for step in range(lbfgs_steps):
            self.sample()
            loss = self.lbfgs.step(self.closure)
        print(f"lbfgs loss {loss.item():.4e} nu {self.log_nu.exp().item():.4f} evals {self.evals}")


def travelling_wave(x, t, nu, speed=0.5, jump=0.6):
    return speed - jump * np.tanh(jump * (x - speed * t) / (2 * nu))


def main():
    np.random.seed(0)
    torch.manual_seed(0)
    nu = 0.12
    x = np.random.uniform(-1, 1, (120, 1))
    t = np.random.uniform(0, 1, (120, 1))
    u = travelling_wave(x, t, nu) + 0.005 * np.random.randn(120, 1)
    as_tensor = lambda a: torch.tensor(a, dtype=torch.float32)
    model = PhysicsInformedNN(as_tensor(np.hstack([x, t])), as_tensor(u), nu0=0.3)
    model.train(adam_steps=300, lbfgs_steps=8)


if __name__ == "__main__":
    main()
