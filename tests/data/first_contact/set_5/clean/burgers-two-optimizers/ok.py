"""Burgers' equation with a physics-informed network: Adam first, then L-BFGS, one closure for both."""
import math

import torch
import torch.nn as nn


class MLP(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, xt):
        return self.layers(xt)


def grid(a, b):
    return torch.stack(torch.meshgrid(a, b, indexing="ij")).reshape(2, -1).T


class BurgersNet:
    viscosity = 0.05

    def __init__(self):
        self.model = MLP()
        x = torch.linspace(-1, 1, 15)
        t = torch.linspace(0, 1, 8)
        self.X = grid(x, t)
        left, right, start = grid(x[:1], t), grid(x[-1:], t), grid(x, t[:1])
        self.X_train = torch.cat([left, right, start])
        self.y_train = torch.cat([torch.zeros(2 * len(t)), -torch.sin(math.pi * start[:, 0])]).unsqueeze(1)
        self.X.requires_grad_()
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=1.0, max_iter=12, history_size=20,
                                           line_search_fn="strong_wolfe")
        self.adam = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.calls = 0

    def pde_loss(self):
        u = self.model(self.X)
        du = torch.autograd.grad(u, self.X, torch.ones_like(u), create_graph=True)[0]
        u_x, u_t = du[:, 0], du[:, 1]
        u_xx = torch.autograd.grad(u_x, self.X, torch.ones_like(u_x), create_graph=True)[0][:, 0]
        return self.criterion(u_t + u.squeeze(1) * u_x, self.viscosity * u_xx)

    def loss_func(self):
        # both optimizers hold exactly the parameters of self.model
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(self.X_train), self.y_train) + self.pde_loss()
        # the points are a leaf as well, only the network's gradients are of use
        loss.backward(inputs=list(self.model.parameters()))
        self.calls += 1
        return loss

    def train(self, adam_steps=80, lbfgs_steps=3):
        curve = []
        for _ in range(adam_steps):
            curve.append(self.adam.step(self.loss_func).item())
        for _ in range(lbfgs_steps):
            curve.append(self.optimizer.step(self.loss_func).item())
        return curve


def main():
    torch.manual_seed(0)
    net = BurgersNet()
    curve = net.train()
    print(f"{net.calls} evaluations, loss {curve[0]:.4f} -> {curve[-1]:.4f}")
    return net, curve


if __name__ == "__main__":
    main()
