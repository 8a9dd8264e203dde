"""Self-supervised style training with LARC, a per-iteration schedule and restart from a checkpoint."""
import io
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    base_lr: float = 0.6
    final_lr: float = 0.006
    warmup_steps: int = 8
    epochs: int = 10
    stop_after: int = 4
    steps_per_epoch: int = 12
    batch_size: int = 32
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trust_coefficient: float = 0.02
    seed: int = 11


class LARC:
    """Layer-wise adaptive rate clipping round any optimizer."""

    def __init__(self, optimizer, trust_coefficient=0.02, clip=False, eps=1e-8):
        self.optim = optimizer
        self.param_groups = optimizer.param_groups
        self.trust_coefficient = trust_coefficient
        self.clip = clip
        self.eps = eps

    @property
    def state(self):
        return self.optim.state

    def state_dict(self):
        return self.optim.state_dict()

    def load_state_dict(self, state_dict):
        self.optim.load_state_dict(state_dict)

    def zero_grad(self):
        self.optim.zero_grad()

    @torch.no_grad()
    def step(self):
        decays = []
        for group in self.optim.param_groups:
            weight_decay = group.get("weight_decay", 0)
            decays.append(weight_decay)
            group["weight_decay"] = 0
            for p in group["params"]:
                if p.grad is None:
                    continue
                param_norm, grad_norm = p.norm(), p.grad.norm()
                if param_norm != 0 and grad_norm != 0:
                    rate = self.trust_coefficient * param_norm
                    rate = rate / (grad_norm + param_norm * weight_decay + self.eps)
                    if self.clip:
                        rate = min(rate / group["lr"], 1)
                    p.grad.add_(p, alpha=weight_decay)
                    p.grad.mul_(rate)
        self.optim.step()
        for group, weight_decay in zip(self.optim.param_groups, decays):
            group["weight_decay"] = weight_decay


def lr_at(cfg, it):
    total = cfg.epochs * cfg.steps_per_epoch
    if it < cfg.warmup_steps:
        return cfg.base_lr * (it + 1) / cfg.warmup_steps
    t = (it - cfg.warmup_steps) / (total - cfg.warmup_steps)
    return cfg.final_lr + 0.5 * (cfg.base_lr - cfg.final_lr) * (1 + math.cos(math.pi * t))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.prototypes = nn.Linear(48, 5, bias=False)

    def forward(self, x):
        return self.prototypes(self.net(x))


def build(cfg):
    model = Encoder()
    sgd = torch.optim.SGD(model.parameters(), lr=cfg.base_lr, momentum=cfg.momentum,
                          weight_decay=cfg.weight_decay)
    return model, LARC(sgd, cfg.trust_coefficient)


def train_epochs(cfg, model, optimizer, data, first, last):
    x, y = data
    for epoch in range(first, last):
        model.train()
        for step in range(cfg.steps_per_epoch):
            it = epoch * cfg.steps_per_epoch + step
            for group in optimizer.param_groups:
                group["lr"] = lr_at(cfg, it)
            idx = torch.randint(0, len(x), (cfg.batch_size,))
            loss = F.cross_entropy(model(x[idx] + 0.3 * torch.randn(cfg.batch_size, 16)), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    return F.cross_entropy(model(data[0]), data[1]).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(5, 16)
    y = torch.randint(0, 5, (400,))
    data = (centres[y] + 1.2 * torch.randn(400, 16), y)

    model, optimizer = build(cfg)
    train_epochs(cfg, model, optimizer, data, 0, cfg.stop_after)
    checkpoint = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "epoch": cfg.stop_after}, checkpoint)

    checkpoint.seek(0)
    saved = torch.load(checkpoint)
    model, optimizer = build(cfg)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train_epochs(cfg, model, optimizer, data, saved["epoch"], cfg.epochs)
    final = evaluate(model, data)
    print(f"final loss {final:.4f}")
    return {"final_loss": final, "lr_used_last": optimizer.optim.param_groups[0]["lr"]}


if __name__ == "__main__":
    main()
