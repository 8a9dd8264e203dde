"""Iterative magnitude pruning; gradient hooks keep pruned weights at zero while the rest is fine-tuned."""
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    rounds: int = 3
    sparsity_per_round: float = 0.4
    epochs_per_round: int = 3
    batch_size: int = 32
    lr: float = 0.05
    seed: int = 20


class Pruner:
    def __init__(self, model):
        self.weights = {n: p for n, p in model.named_parameters() if p.dim() == 2}
        self.masks = {n: torch.ones_like(p) for n, p in self.weights.items()}
        self.handles = []

    @staticmethod
    def mask_grad(mask, grad):
        return grad * mask

    def prune(self, fraction):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        with torch.no_grad():
            for name, w in self.weights.items():
                alive = self.masks[name].bool()
                threshold = w[alive].abs().quantile(fraction)
                self.masks[name] = (alive & (w.abs() > threshold)).to(w.dtype)
                w.mul_(self.masks[name])
        for name, w in self.weights.items():
            self.handles.append(w.register_hook(partial(self.mask_grad, self.masks[name])))

    def violations(self):
        return sum(int(((w != 0) & (self.masks[n] == 0)).sum()) for n, w in self.weights.items())

    def density(self):
        return sum(m.sum().item() for m in self.masks.values()) / sum(m.numel() for m in self.masks.values())


class ActivationStats:
    """Running mean of the absolute activations of each ReLU, as floats."""

    def __init__(self, model):
        self.values = {}
        self.handles = [m.register_forward_hook(partial(self.record, n))
                        for n, m in model.named_modules() if isinstance(m, nn.ReLU)]

    def record(self, name, module, inputs, output):
        value = output.detach().abs().mean().item()
        self.values[name] = 0.9 * self.values.get(name, value) + 0.1 * value

    def close(self):
        for handle in self.handles:
            handle.remove()


def train(model, x, y, cfg):
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    for _ in range(cfg.epochs_per_round):
        model.train()
        for idx in torch.randperm(len(x)).split(cfg.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
    return loss.item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(4, 16)
    y = torch.randint(0, 4, (384,))
    x = centres[y] + torch.randn(384, 16)
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
    stats = ActivationStats(model)
    train(model, x, y, cfg)
    pruner = Pruner(model)
    for r in range(cfg.rounds):
        pruner.prune(cfg.sparsity_per_round)
        loss = train(model, x, y, cfg)
        print(f"round {r} density {pruner.density():.3f} loss {loss:.4f}")
    stats.close()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"accuracy": accuracy, "violations": pruner.violations(), "density": pruner.density()}


if __name__ == "__main__":
    main()
