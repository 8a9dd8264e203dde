"""Tabular classifier with a memory-saving Mish activation."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class MishFunction(torch.autograd.Function):
    """x * tanh(softplus(x)); keeps only x for backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        x = x.clamp(max=20)
        e = torch.exp(x)
        omega = 4 * (x + 1) + 4 * e ** 2 + e ** 3 + e * (4 * x + 6)
        delta = 2 * e + e ** 2 + 2
        return grad_output * e * omega / delta ** 2


class Mish(nn.Module):
    def forward(self, x):
        return MishFunction.apply(x)


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.a, self.b = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.act = Mish()

    def forward(self, x):
        return x + self.b(self.act(self.a(self.norm(x))))


class TabularNet(nn.Module):
    def __init__(self, d_in, dim, depth, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(d_in, dim), Mish())
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def two_spirals(n, seed, noise=0.06):
    g = torch.Generator().manual_seed(seed)
    t = 0.25 + 2.2 * torch.rand(n, generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    ang = 3.1416 * (t + y)
    x = torch.stack([t * torch.cos(ang), t * torch.sin(ang)], 1)
    return x + noise * torch.randn(n, 2, generator=g), y


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, v, n):
        self.total += v * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(self.count, 1)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def parse(argv):
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--batch-size", type=int, default=64)
    return p.parse_args(list(argv))


def target(x):
    return MishFunction.apply(x)


def make_inputs():
    g = torch.Generator().manual_seed(0)
    return (torch.randn(4, 5, generator=g, dtype=torch.float64).requires_grad_(),)


def main(argv=()):
    args = parse(argv)
    torch.manual_seed(0)
    x, y = two_spirals(512, 1)
    xv, yv = two_spirals(512, 2)
    model = TabularNet(2, 24, 3, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, epochs=args.epochs, steps_per_epoch=len(x) // args.batch_size)
    for epoch in range(args.epochs):
        meter = AverageMeter()
        for idx in torch.randperm(len(x)).split(args.batch_size):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            meter.update(loss.item(), len(idx))
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {meter.avg:.4f} val acc {accuracy(model, xv, yv):.3f}")
    return {"train_loss": meter.avg, "val_acc": accuracy(model, xv, yv)}


if __name__ == "__main__":
    main()
