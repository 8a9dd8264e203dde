"""Domain-adversarial training with a gradient reversal Function and a feature probe."""
from dataclasses import dataclass

import math
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F


@dataclass
class Config:
    features: int = 6
    hidden: int = 24
    batch: int = 32
    epochs: int = 8
    steps: int = 10
    lr: float = 5e-3
    seed: int = 3


class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.strength, None


class ActivationProbe:
    def __init__(self, layer):
        self.norms = []
        self.handle = layer.register_forward_hook(self.record)

    def record(self, module, inputs, output):
        self.norms.append(output.detach().norm(dim=1).mean().item())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.handle.remove()


class DANN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(cfg.features, cfg.hidden), nn.ReLU(inplace=True), nn.Linear(cfg.hidden, cfg.hidden))
        self.label_head = nn.Sequential(nn.ReLU(), nn.Linear(cfg.hidden, 2))
        self.domain_head = nn.Sequential(nn.ReLU(), nn.Dropout(0.2), nn.Linear(cfg.hidden, 2))

    def forward(self, x, strength):
        hidden = self.features(x)
        return self.label_head(hidden), self.domain_head(GradReverse.apply(hidden, strength))


def domain_batch(n, features, shift):
    x = torch.randn(n, features)
    y = (x[:, 0] + x[:, 1] > 0).long()
    return x + shift * torch.tensor([0.0, 0.0, 1.5, -1.5, 0.0, 1.0]), y


def target(x):
    return GradReverse.apply(x, -1.0)


def make_inputs():
    return (torch.randn(3, 4, dtype=torch.float64, requires_grad=True),)


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    model = DANN(cfg)
    optimizer = torch.optim.Adam([
        {"params": model.features.parameters(), "lr": cfg.lr},
        {"params": [*model.label_head.parameters(), *model.domain_head.parameters()], "lr": 2 * cfg.lr},
    ])
    with ActivationProbe(model.features) as probe:
        for epoch in range(cfg.epochs):
            strength = 2 / (1 + math.exp(-10 * epoch / cfg.epochs)) - 1
            model.train()
            for _ in range(cfg.steps):
                xs, ys = domain_batch(cfg.batch, cfg.features, 0)
                xt, _ = domain_batch(cfg.batch, cfg.features, 1)
                labels, domain_source = model(xs, strength)
                _, domain_target = model(xt, strength)
                domains = torch.cat([domain_source, domain_target])
                truth = torch.arange(2).repeat_interleave(cfg.batch)
                loss = F.cross_entropy(labels, ys) + F.cross_entropy(domains, truth)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                xt, yt = domain_batch(200, cfg.features, 1)
                accuracy = (model(xt, 0.0)[0].argmax(1) == yt).float().mean().item()
            if epoch % 4 == 3:
                print(f"epoch {epoch + 1}  loss {loss.item():.4f}  target acc {accuracy:.3f}  norm {probe.norms[-1]:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
