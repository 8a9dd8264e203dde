"""Deep equilibrium classifier with the implicit gradient in a tensor hook."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    dim: int = 10
    hidden: int = 24
    classes: int = 3
    max_iter: int = 40
    tol: float = 1e-5
    steps: int = 120
    batch: int = 32
    lr: float = 5e-3
    seed: int = 15


class Cell(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.recurrent = nn.Linear(hidden, hidden, bias=False)
        nn.init.orthogonal_(self.recurrent.weight, gain=0.5)

    def forward(self, z, x):
        return torch.tanh(self.recurrent(z) + x)


def fixed_point(f, z, max_iter, tol):
    for k in range(max_iter):
        z_next = f(z)
        if (z_next - z).norm() < tol * (1 + z.norm()):
            return z_next, k + 1
        z = z_next
    return z, max_iter


class DEQFixedPoint(nn.Module):
    def __init__(self, cell, cfg):
        super().__init__()
        self.cell, self.cfg = cell, cfg
        self.forward_iterations = self.backward_iterations = 0

    def forward(self, x):
        with torch.no_grad():
            z, self.forward_iterations = fixed_point(
                lambda z: self.cell(z, x), torch.zeros_like(x), self.cfg.max_iter, self.cfg.tol)
        z = self.cell(z, x)
        if not self.training:
            return z
        z0 = z.clone().detach().requires_grad_()
        f0 = self.cell(z0, x.detach())

        def backward_hook(grad):
            g, self.backward_iterations = fixed_point(
                lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad,
                grad, self.cfg.max_iter, self.cfg.tol)
            return g

        z.register_hook(backward_hook)
        return z


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inject = nn.Linear(cfg.dim, cfg.hidden)
        self.deq = DEQFixedPoint(Cell(cfg.hidden), cfg)
        self.head = nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x):
        return self.head(self.deq(self.inject(x)))


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(cfg.classes, cfg.dim)
    model = Model(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        y = torch.randint(0, cfg.classes, (cfg.batch,))
        x = centres[y] + torch.randn(cfg.batch, cfg.dim)
        model.train()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} iterations {model.deq.forward_iterations}")
    model.eval()
    with torch.no_grad():
        y = torch.randint(0, cfg.classes, (512,))
        accuracy = (model(centres[y] + torch.randn(512, cfg.dim)).argmax(1) == y).float().mean().item()
    return {"accuracy": accuracy, "backward_iterations": model.deq.backward_iterations}


if __name__ == "__main__":
    main()
