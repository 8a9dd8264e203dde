import math

import numpy as np
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, layers=(2, 20, 20, 1)):
        super().__init__()
        mods = []
        for a, b in zip(layers[:-2], layers[1:-1]):
            mods += [nn.Linear(a, b), nn.Tanh()]
        mods.append(nn.Linear(layers[-2], layers[-1]))
        self.net = nn.Sequential(*mods)

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def grad(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


class TrainingModule:
    """Heat equation u_t = nu u_xx with u(x, 0) = sin(pi x) and zero walls."""

    def __init__(self, nu=0.3, n_f=200, n_b=60):
        self.nu = nu
        self.model = Net()
        self.x_f = torch.rand(n_f, 1).requires_grad_(True)
        self.t_f = torch.rand(n_f, 1).requires_grad_(True)
        x0 = torch.rand(n_b, 1)
        tb = torch.rand(n_b, 1)
        wall = torch.randint(0, 2, (n_b, 1)).float()
        self.x_b = torch.cat([x0, wall])
        self.t_b = torch.cat([torch.zeros(n_b, 1), tb])
        self.u_b = torch.cat([torch.sin(math.pi * x0), torch.zeros(n_b, 1)])

    def residual(self):
        u = self.model(self.x_f, self.t_f)
        u_x = grad(u, self.x_f)
        return grad(u, self.t_f) - self.nu * grad(u_x, self.x_f)

    def training_step(self):
        data = (self.model(self.x_b, self.t_b) - self.u_b).pow(2).mean()
        return data + self.residual().pow(2).mean()

    def configure_optimizers(self, stage):
        if stage == "adam":
            return torch.optim.Adam(self.model.parameters(), lr=3e-3)
        return torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=10, history_size=20,
                                 tolerance_grad=1e-9, tolerance_change=1e-12)


class Trainer:
    def __init__(self, adam_steps=100, lbfgs_steps=20):
        self.schedule = [("adam", adam_steps), ("lbfgs", lbfgs_steps)]
        self.last = float("nan")
        self.calls = 0

    def optimizer_step(self, module, optimizer):
        def training_step_and_backward():
            loss = module.training_step()
            loss.backward()
            self.last = loss.item()
            self.calls += 1
            return loss

        optimizer.step(training_step_and_backward)

    def fit(self, module, evaluate):
        for stage, steps in self.schedule:
            optimizer = module.configure_optimizers(stage)
            for _ in range(steps):
                optimizer.zero_grad()
                self.optimizer_step(module, optimizer)
            print(f"{stage}: loss {self.last:.3e} closure calls {self.calls} rel l2 {evaluate(module):.4f}")


@torch.no_grad()
def relative_error(module):
    axis = torch.linspace(0, 1, 41)
    x, t = torch.meshgrid(axis, axis, indexing="ij")
    x, t = x.reshape(-1, 1), t.reshape(-1, 1)
    exact = torch.exp(-module.nu * math.pi ** 2 * t) * torch.sin(math.pi * x)
    return ((module.model(x, t) - exact).norm() / exact.norm()).item()


def main():
    np.random.seed(0)
    torch.manual_seed(0)
    Trainer().fit(TrainingModule(), relative_error)


if __name__ == "__main__":
    main()
