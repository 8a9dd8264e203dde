"""Deep equilibrium classifier: fixed point without a graph, implicit gradient through a tensor hook."""
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    width: int = 20
    max_iter: int = 60
    tol: float = 1e-5
    epochs: int = 6
    batch_size: int = 40
    lr: float = 5e-3
    seed: int = 17


def picard(f, x0, max_iter, tol):
    x = x0
    for k in range(max_iter):
        x_next = f(x)
        if (x_next - x).norm() <= tol * (1e-8 + x_next.norm()):
            return x_next, k + 1
        x = x_next
    return x, max_iter


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.raw = nn.Parameter(0.2 * torch.randn(width, width))
        self.inject = nn.Linear(width, width)

    def forward(self, z, x):
        weight = 0.8 * self.raw / self.raw.norm().clamp(min=1.0)
        return torch.tanh(F.linear(z, weight) + self.inject(x))


class DEQFixedPoint(nn.Module):
    def __init__(self, cell, cfg):
        super().__init__()
        self.cell, self.cfg = cell, cfg
        self.forward_iterations = self.backward_iterations = 0

    def forward(self, x):
        with torch.no_grad():
            z, self.forward_iterations = picard(
                lambda z: self.cell(z, x), torch.zeros_like(x), self.cfg.max_iter, self.cfg.tol)
        if not torch.is_grad_enabled():
            return z
        z = self.cell(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.cell(z0, x)

        def backward_hook(grad):
            g, self.backward_iterations = picard(
                lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad,
                grad, self.cfg.max_iter, self.cfg.tol)
            return g

        z.register_hook(backward_hook)
        return z


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(4, cfg.width)
        self.deq = DEQFixedPoint(Cell(cfg.width), cfg)
        self.head = nn.Linear(cfg.width, 3)

    def forward(self, x):
        return self.head(self.deq(torch.relu(self.stem(x))))


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.3).long()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Classifier(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    (x, y), (vx, vy) = make_data(1, 400), make_data(2, 200)
    for epoch in range(cfg.epochs):
        model.train()
        for index in torch.randperm(len(x)).split(cfg.batch_size):
            loss = F.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(vx).argmax(1) == vy).float().mean().item()
        if epoch % 2 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
