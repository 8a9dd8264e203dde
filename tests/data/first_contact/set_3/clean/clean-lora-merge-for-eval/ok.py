"""LoRA whose update is written into the frozen weight for fast evaluation and taken out again for training."""
import math
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 16
    hidden: int = 32
    classes: int = 4
    rank: int = 3
    alpha: float = 6.0
    batch: int = 24
    steps: int = 60
    eval_every: int = 20
    lr: float = 1e-2
    seed: int = 7


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(rank))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        self.saved_weight = None

    @torch.no_grad()
    def merge(self):
        if self.saved_weight is None:
            self.saved_weight = self.base.weight.clone()
            self.base.weight.add_(self.lora_B @ self.lora_A, alpha=self.scaling)

    @torch.no_grad()
    def unmerge(self):
        if self.saved_weight is not None:
            self.base.weight.copy_(self.saved_weight)
            self.saved_weight = None

    def forward(self, x):
        y = self.base(x)
        if self.saved_weight is None:
            y = y + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling
        return y


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc1 = nn.Linear(cfg.dim, cfg.hidden)
        self.fc2 = nn.Linear(cfg.hidden, cfg.hidden)
        self.head = nn.Linear(cfg.hidden, cfg.classes)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.drop(F.gelu(self.fc1(x)))
        return self.head(self.drop(F.gelu(self.fc2(x))))


@contextmanager
def merged(model):
    layers = [m for m in model.modules() if isinstance(m, LoRALinear)]
    was_training = model.training
    model.eval()
    for layer in layers:
        layer.merge()
    try:
        with torch.inference_mode():
            yield model
    finally:
        for layer in layers:
            layer.unmerge()
        model.train(was_training)


def batch(cfg, gen, projection, n):
    x = torch.randn(n, cfg.dim, generator=gen)
    return x, (x @ projection).argmax(1)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    projection = torch.randn(cfg.dim, cfg.classes, generator=gen)
    model = Net(cfg)
    model.fc1 = LoRALinear(model.fc1, cfg.rank, cfg.alpha)
    model.fc2 = LoRALinear(model.fc2, cfg.rank, cfg.alpha)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=cfg.lr)
    accuracy = 0.0
    for step in range(cfg.steps):
        x, y = batch(cfg, gen, projection, cfg.batch)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        if (step + 1) % cfg.eval_every == 0:
            xv, yv = batch(cfg, torch.Generator().manual_seed(55), projection, 300)
            with merged(model):
                accuracy = (model(xv).argmax(1) == yv).float().mean().item()
            print(f"step {step + 1} loss {loss.item():.4f} acc {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
