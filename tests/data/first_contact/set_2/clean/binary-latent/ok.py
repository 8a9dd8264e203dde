"""Binary weights with real-valued latent weights, swapped in and out around each pass."""
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    features: int = 12
    hidden: int = 32
    samples: int = 256
    batch: int = 32
    accumulation: int = 2
    epochs: int = 8
    lr: float = 2e-3
    seed: int = 4


class BinaryWeights:
    def __init__(self, model):
        self.weights = [m.weight for m in list(model.modules()) if isinstance(m, nn.Linear)][1:-1]
        self.latent = [w.detach().clone() for w in self.weights]

    @contextmanager
    def binary(self):
        with torch.no_grad():
            for latent, weight in zip(self.latent, self.weights):
                latent.copy_(weight)
                weight.data = weight.sign() * weight.abs().mean(dim=1, keepdim=True)
        try:
            yield
        finally:
            with torch.no_grad():
                for latent, weight in zip(self.latent, self.weights):
                    weight.data = latent.clone()

    @torch.no_grad()
    def mask_gradients(self):
        for weight in self.weights:
            weight.grad.mul_(weight.abs() < 1)

    @torch.no_grad()
    def clip(self):
        for weight in self.weights:
            weight.clamp_(-1, 1)


def build(cfg):
    return nn.Sequential(
        nn.Linear(cfg.features, cfg.hidden), nn.BatchNorm1d(cfg.hidden), nn.Hardtanh(inplace=True),
        nn.Linear(cfg.hidden, cfg.hidden), nn.BatchNorm1d(cfg.hidden), nn.Hardtanh(),
        nn.Linear(cfg.hidden, 2),
    )


def evaluate(model, binary, x, y):
    model.eval()
    with binary.binary(), torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return accuracy


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    x = torch.randn(cfg.samples, cfg.features)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    model = build(cfg)
    binary = BinaryWeights(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        model.train()
        for number, index in enumerate(torch.randperm(len(x)).split(cfg.batch), start=1):
            with binary.binary():
                loss = F.cross_entropy(model(x[index]), y[index]) / cfg.accumulation
                loss.backward()
            if number % cfg.accumulation == 0:
                binary.mask_gradients()
                optimizer.step()
                optimizer.zero_grad()
                binary.clip()
        if epoch % 4 == 3:
            accuracy = evaluate(model, binary, x, y)
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}  acc {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
