"""Physics-informed network for u_t + c u_x = nu u_xx on [0, 2 pi] x [0, 1], periodic in x."""
import math

import numpy as np
import torch
import torch.nn as nn

C, NU = 1.0, 0.2


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.a * torch.sin(x) + self.b * torch.cos(x)


class PINN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, width), Sine(),
            nn.Linear(width, width), Sine(),
            nn.Linear(width, 1),
        )

    def forward(self, x, t):
        return self.net(torch.cat((torch.sin(x), torch.cos(x), t), dim=-1))


def exact(x, t):
    return math.exp(-NU * t) * np.sin(x - C * t)


def get_data(n_x=16, n_t=8):
    x = np.linspace(0, 2 * np.pi, n_x, endpoint=False)
    t = np.linspace(0, 1, n_t)
    xx, tt = np.meshgrid(x, t)
    res = torch.tensor(np.stack([xx.ravel(), tt.ravel()], -1), dtype=torch.float32)
    start = torch.tensor(np.stack([x, np.zeros_like(x)], -1), dtype=torch.float32)
    return res, start


def derivative(y, x):
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), retain_graph=True, create_graph=True)[0]


class Problem:
    def __init__(self, model):
        self.model = model
        res, start = get_data()
        self.x_res = res[:, 0:1].requires_grad_()
        self.t_res = res[:, 1:2].requires_grad_()
        self.x_0, self.t_0 = start[:, 0:1], start[:, 1:2]
        self.u_0 = torch.sin(self.x_0)

    def residual(self):
        u = self.model(self.x_res, self.t_res)
        u_t = derivative(u, self.t_res)
        u_x = derivative(u, self.x_res)
        u_xx = derivative(u_x, self.x_res)
        return u_t + C * u_x - NU * u_xx

    def losses(self):
        loss_res = self.residual().pow(2).mean()
        loss_init = (self.model(self.x_0, self.t_0) - self.u_0).pow(2).mean()
        return loss_res, loss_init


def train(model, adam_steps=60, lbfgs_steps=4):
    problem = Problem(model)
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(adam_steps):
        loss_res, loss_init = problem.losses()
        loss = loss_res + 10 * loss_init
        adam.zero_grad()
        loss.backward()
        adam.step()

    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")

    def closure():
        loss_res, loss_init = problem.losses()
        loss = loss_res + 10 * loss_init
        lbfgs.zero_grad()
        loss.backward()
        return loss

    for _ in range(lbfgs_steps):
        lbfgs.step(closure)
    return problem


def relative_error(model):
    x = np.linspace(0, 2 * np.pi, 50)
    t = np.full_like(x, 1.0)
    with torch.no_grad():
        u = model(torch.tensor(x, dtype=torch.float32)[:, None], torch.tensor(t, dtype=torch.float32)[:, None])
    truth = exact(x, 1.0)
    return float(np.linalg.norm(u.numpy().ravel() - truth) / np.linalg.norm(truth))


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    model = PINN()
    problem = train(model)
    loss_res, loss_init = problem.losses()
    error = relative_error(model)
    print(f"residual {loss_res.item():.2e} initial {loss_init.item():.2e} relative error at t=1 {error:.4f}")
    return model, problem, error


if __name__ == "__main__":
    main()
