"""Reversible network with an auxiliary branch: activations are recomputed from the output in backward."""
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    width: int = 16
    blocks: int = 3
    classes: int = 4
    epochs: int = 8
    aux_epochs: int = 2
    aux_weight: float = 0.3
    batch_size: int = 32
    lr: float = 3e-3
    seed: int = 9


class ReversibleBlock(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(half, half), nn.Tanh(), nn.Linear(half, half))
        self.g = nn.Sequential(nn.Linear(half, half), nn.Tanh(), nn.Linear(half, half))

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        y1 = x1 + self.f(x2)
        y2 = x2 + self.g(y1)
        return torch.cat([y1, y2], dim=1)

    def invert(self, y):
        y1, y2 = y.chunk(2, dim=1)
        x2 = y2 - self.g(y1)
        x1 = y1 - self.f(x2)
        return torch.cat([x1, x2], dim=1)


class _ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, *params):
        with torch.no_grad():
            for block in blocks:
                x = block(x)
        ctx.blocks, ctx.num_params = blocks, len(params)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        y = ctx.saved_tensors[0].detach()
        grads = []
        for block in reversed(ctx.blocks):
            with torch.no_grad():
                x = block.invert(y)
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                out = block(x)
                grad, *g = torch.autograd.grad(out, [x, *block.parameters()], grad)
            grads = list(g) + grads
            y = x.detach()
        return (grad, None, *grads)


class ReversibleSequence(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList([ReversibleBlock(width // 2) for _ in range(depth)])

    def forward(self, x):
        params = [p for block in self.blocks for p in block.parameters()]
        return _ReversibleFunction.apply(x, list(self.blocks), *params)


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(6, cfg.width)
        self.main = ReversibleSequence(cfg.width, cfg.blocks)
        self.aux = ReversibleSequence(cfg.width, 1)
        self.head = nn.Linear(cfg.width, cfg.classes)
        self.aux_head = nn.Linear(cfg.width, cfg.classes)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        return self.head(self.main(h)), self.aux_head(self.aux(h))


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2].abs() > x[:, 3]).long()


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Net(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def train_epoch(self, epoch, data):
        x, y = data
        self.model.train()
        for index in torch.randperm(len(x)).split(self.cfg.batch_size):
            logits, aux_logits = self.model(x[index])
            loss = F.cross_entropy(logits, y[index])
            if epoch < self.cfg.aux_epochs:
                loss = loss + self.cfg.aux_weight * F.cross_entropy(aux_logits, y[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, data):
        x, y = data
        self.model.eval()
        return (self.model(x)[0].argmax(1) == y).float().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    train, test = make_data(1, 640), make_data(2, 320)
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch(epoch, train)
        if epoch % 2 == 0:
            print(f"epoch {epoch} loss {loss:.4f} accuracy {trainer.evaluate(test):.3f}")
    return {"loss": loss, "accuracy": trainer.evaluate(test)}


if __name__ == "__main__":
    main()
