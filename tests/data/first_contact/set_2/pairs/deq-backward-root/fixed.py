"""Deep equilibrium classifier: the fixed point is found by Broyden's method, gradients by implicit differentiation."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class DEQConfig:
    features: int = 6
    width: int = 12
    classes: int = 3
    samples: int = 192
    batch: int = 48
    epochs: int = 15
    lr: float = 1e-2
    tol: float = 1e-6
    max_iter: int = 30
    clip: float = 1.0
    seed: int = 16


def broyden(residual, x0, max_iter, tol):
    """Root of residual(x) = 0 for each row, with a rank-one updated inverse Jacobian."""
    x, gx = x0, residual(x0)
    inverse = -torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape[0], -1, -1).clone()
    for _ in range(max_iter):
        if gx.norm() <= tol * (x.norm() + 1e-3):
            break
        dx = -torch.einsum("bij,bj->bi", inverse, gx)
        x = x + dx
        g_new = residual(x)
        dg = g_new - gx
        row = torch.einsum("bi,bij->bj", dx, inverse)
        scale = (row * dg).sum(-1, keepdim=True)
        scale = torch.where(scale.abs() < 1e-10, torch.full_like(scale, 1e-10), scale)
        column = (dx - torch.einsum("bij,bj->bi", inverse, dg)) / scale
        inverse = inverse + column[:, :, None] * row[:, None, :]
        gx = g_new
    return x


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recurrent = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.recurrent.weight.mul_(0.6)

    def forward(self, z, x):
        return torch.tanh(self.recurrent(z) + x)


class DEQ(nn.Module):
    def __init__(self, cell, max_iter, tol):
        super().__init__()
        self.cell = cell
        self.solver = dict(max_iter=max_iter, tol=tol)

    def forward(self, x):
        with torch.no_grad():
            z_star = broyden(lambda z: self.cell(z, x) - z, torch.zeros_like(x), **self.solver)
        z = self.cell(z_star, x)
        if torch.is_grad_enabled():
            z0 = z.detach().requires_grad_(True)
            f0 = self.cell(z0, x.detach())

            def backward_hook(grad):
                if grad is None:
                    return None

                def residual(y):
                    return torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad - y
                return broyden(residual, torch.zeros_like(grad), **self.solver)

            z.register_hook(backward_hook)
        return z


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encode = nn.Linear(cfg.features, cfg.width)
        self.deq = DEQ(Cell(cfg.width), cfg.max_iter, cfg.tol)
        self.head = nn.Linear(cfg.width, cfg.classes)

    def forward(self, x):
        return self.head(self.deq(self.encode(x)))


def target(x):
    torch.manual_seed(0)
    layer = DEQ(Cell(4).double(), 60, 1e-12)
    return layer(x)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True),)


def main(cfg=DEQConfig()):
    torch.manual_seed(cfg.seed)
    x = torch.randn(cfg.samples, cfg.features)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.4).long()
    model = Classifier(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    loss_value = 0.0
    for epoch in range(cfg.epochs):
        total = 0.0
        for index in torch.randperm(len(x)).split(cfg.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            total += loss.item() * len(index)
        loss_value = total / len(x)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:2d}  loss {loss_value:.4f}")
    return {"loss": loss_value}


if __name__ == "__main__":
    main()
