"""Reversible residual classifier: activations are rebuilt in backward instead of stored."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@dataclass
class Args:
    width: int = 16
    depth: int = 4
    dropout: float = 0.3
    classes: int = 4
    samples: int = 256
    batch: int = 64
    lr: float = 2e-3
    epochs: int = 25
    seed: int = 2


class _ReversibleBlock(Function):
    @staticmethod
    def forward(ctx, x, f, g):
        x1, x2 = x.chunk(2, dim=-1)
        with torch.no_grad():
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        ctx.f, ctx.g = f, g
        y = torch.cat([y1, y2], dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        y1, y2 = y.chunk(2, dim=-1)
        dy1, dy2 = dy.chunk(2, dim=-1)
        with torch.enable_grad():
            y1 = y1.detach().requires_grad_(True)
            gy1 = ctx.g(y1)
        gy1.backward(dy2)
        x2 = (y2 - gy1).detach()
        dx1 = dy1 + y1.grad
        with torch.enable_grad():
            x2 = x2.requires_grad_(True)
            fx2 = ctx.f(x2)
        fx2.backward(dx1)
        dx2 = dy2 + x2.grad
        return torch.cat([dx1, dx2], dim=-1), None, None


def branch(width, dropout):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
                         nn.Dropout(dropout), nn.Linear(2 * width, width))


class ReversibleBlock(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.f = branch(width, dropout)
        self.g = branch(width, dropout)

    def forward(self, x):
        return _ReversibleBlock.apply(x, self.f, self.g)


class RevNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.stem = nn.Linear(8, 2 * args.width)
        self.blocks = nn.ModuleList(ReversibleBlock(args.width, args.dropout) for _ in range(args.depth))
        self.head = nn.Linear(2 * args.width, args.classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_data(args):
    x = torch.randn(args.samples, 8)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] * x[:, 3] + x[:, 4] > 0).long()
    return x, y


def target(x):
    torch.manual_seed(11)
    block = ReversibleBlock(3, 0.4).double().train()
    return block(x)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(4, 6, dtype=torch.float64, generator=generator, requires_grad=True),)


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    logits = model(x)
    model.train()
    return F.cross_entropy(logits, y).item(), (logits.argmax(-1) == y).float().mean().item()


def main(args=Args()):
    torch.manual_seed(args.seed)
    x, y = make_data(args)
    model = RevNet(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    loss_value, accuracy = 0.0, 0.0
    for epoch in range(args.epochs):
        for index in torch.randperm(len(x)).split(args.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
        scheduler.step()
        if epoch % 8 == 0 or epoch == args.epochs - 1:
            loss_value, accuracy = evaluate(model, x, y)
            print(f"epoch {epoch:2d}  loss {loss_value:.4f}  acc {accuracy:.3f}")
    return {"loss": loss_value, "accuracy": accuracy}


if __name__ == "__main__":
    main()
