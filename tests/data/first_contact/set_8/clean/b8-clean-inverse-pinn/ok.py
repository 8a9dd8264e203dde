"""Inverse problem for a decaying wave: Adam on the network, then L-BFGS on network and coefficient."""
import math

import torch
from torch import nn


class SineLayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, omega):
        ctx.save_for_backward(x, omega)
        return torch.sin(omega * x)

    @staticmethod
    def backward(ctx, grad_output):
        x, omega = ctx.saved_tensors
        slope = grad_output * torch.cos(omega * x)
        return slope * omega, (slope * x).sum_to_size(omega.shape)


def target(x, omega):
    return SineLayerFunction.apply(x, omega)


def make_inputs():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, dtype=torch.float64, generator=g, requires_grad=True)
    return x, torch.tensor(1.3, dtype=torch.float64, requires_grad=True)


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.omega = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return SineLayerFunction.apply(x, self.omega)


class InversePINN(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), Sine(), nn.Linear(width, width), Sine(), nn.Linear(width, 1))
        self.log_nu = nn.Parameter(torch.tensor(math.log(0.05)), requires_grad=False)

    def residual(self, points):
        points = points.clone().requires_grad_(True)
        u = self.net(points)
        du = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        u_xx = torch.autograd.grad(du[:, 0].sum(), points, create_graph=True)[0][:, 0]
        return du[:, 1] - self.log_nu.exp() * u_xx


def observations(n=80, nu=0.2, seed=0):
    g = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 2, generator=g)
    u = torch.exp(-nu * math.pi**2 * points[:, 1]) * torch.sin(math.pi * points[:, 0])
    return points, u + 0.005 * torch.randn(n, generator=g)


class Fitter:
    def __init__(self, model):
        self.model = model
        self.points, self.u = observations()
        self.collocation = torch.rand(60, 2, generator=torch.Generator().manual_seed(5))
        self.weight = 1.0
        self.calls = 0

    def losses(self):
        data = (self.model.net(self.points).squeeze(1) - self.u).pow(2).mean()
        physics = self.model.residual(self.collocation).pow(2).mean()
        return data, physics

    def rebalance(self):
        data, physics = self.losses()
        params = [p for p in self.model.net.parameters()]
        g_data = torch.autograd.grad(data, params, retain_graph=True, allow_unused=True)
        g_phys = torch.autograd.grad(physics, params, allow_unused=True)
        size = [max(g.abs().max().item() for g in grads if g is not None) for grads in (g_data, g_phys)]
        self.weight = 0.7 * self.weight + 0.3 * min(10.0, size[0] / (size[1] + 1e-9))

    def adam(self, steps=80):
        optimizer = torch.optim.Adam(self.model.net.parameters(), lr=5e-3)
        for step in range(steps):
            if step % 20 == 0:
                self.rebalance()
            data, physics = self.losses()
            optimizer.zero_grad()
            (data + 0.01 * self.weight * physics).backward()
            optimizer.step()
        print(f"adam data {data.item():.5f} physics {physics.item():.5f} weight {self.weight:.3f}")

    def lbfgs(self, rounds=6):
        self.model.log_nu.requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            self.model.parameters(), max_iter=10, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure():
            optimizer.zero_grad()
            data, physics = self.losses()
            loss = data + 0.1 * physics
            loss.backward()
            self.calls += 1
            return loss

        for _ in range(rounds):
            value = optimizer.step(closure)
        print(f"lbfgs loss {value.item():.6f} closures {self.calls} nu {self.model.log_nu.exp().item():.4f}")


def main():
    torch.manual_seed(0)
    fitter = Fitter(InversePINN())
    fitter.adam()
    fitter.lbfgs()
    return fitter


if __name__ == "__main__":
    main()
