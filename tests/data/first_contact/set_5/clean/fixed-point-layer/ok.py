"""A deep equilibrium layer: solved without a graph, its gradient solved by a second fixed point."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd


def iterate(f, z0, max_iter=60, tol=1e-5):
    z = z0
    for _ in range(max_iter):
        new = f(z)
        if (new - z).norm() < tol * (1 + new.norm()):
            return new
        z = new
    return z


class Cell(nn.Module):
    """z -> tanh(W z + U x + b), with |W| kept below one by spectral scaling."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n_hidden, n_hidden) / n_hidden ** 0.5)
        self.inject = nn.Linear(n_in, n_hidden)

    def forward(self, z, x):
        w = 0.7 * self.w / self.w.norm().clamp_min(1.0)
        return torch.tanh(z @ w.t() + self.inject(x))


class DEQFixedPoint(nn.Module):
    def __init__(self, f, n_hidden):
        super().__init__()
        self.f = f
        self.n_hidden = n_hidden

    def forward(self, x):
        with torch.no_grad():
            z = iterate(lambda z: self.f(z, x), x.new_zeros(x.shape[0], self.n_hidden))
        if not torch.is_grad_enabled():
            return z
        # one application with a graph gives the parameters' part of the gradient ...
        z = self.f(z, x)
        # ... and the hook turns dL/dz into (I - J)^-T dL/dz
        z0 = z.detach().clone().requires_grad_()
        f0 = self.f(z0, x)

        def backward_hook(grad):
            step = lambda y: autograd.grad(f0, z0, y, retain_graph=True)[0] + grad
            return iterate(step, grad)

        z.register_hook(backward_hook)
        return z


class Model(nn.Module):
    def __init__(self, n_in=6, n_hidden=24, n_out=2):
        super().__init__()
        self.deq = DEQFixedPoint(Cell(n_in, n_hidden), n_hidden)
        self.readout = nn.Linear(n_hidden, n_out)

    def forward(self, x):
        return self.readout(self.deq(x))


def spiral(n, generator):
    x = torch.randn(n, 6, generator=generator)
    y = torch.stack([torch.sin(2 * x[:, 0]) * x[:, 1], x[:, 2] * x[:, 3]], 1)
    return x, y


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x_val, y_val = spiral(128, g)
    for step in range(60):
        x, y = spiral(64, g)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                print(step, f"train {loss.item():.4f} val {F.mse_loss(model(x_val), y_val).item():.4f}")
    return model


if __name__ == "__main__":
    main()
