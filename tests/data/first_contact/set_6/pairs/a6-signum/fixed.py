"""Sign-based optimizers, tried on a small convolutional classifier."""
from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

OPTIMIZERS: dict[str, type] = {}


def register(cls):
    OPTIMIZERS[cls.__name__.lower()] = cls
    return cls


class BaseOptimizer(Optimizer):
    def init_group(self, group) -> None:
        raise NotImplementedError

    @staticmethod
    def apply_weight_decay(p, group) -> None:
        if group["weight_decay"] > 0.0:
            if group["decouple"]:
                p.mul_(1.0 - group["lr"] * group["weight_decay"])
            else:
                p.grad.add_(p, alpha=group["weight_decay"])


@register
class SignSGD(BaseOptimizer):
    def __init__(self, params, lr=1e-3, momentum=0.9, weight_decay=0.0, decouple=True):
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, decouple=decouple))

    def init_group(self, group) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("SignSGD does not support sparse gradients")
            state = self.state[p]
            if group["momentum"] > 0.0 and "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.init_group(group)
            momentum = group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.apply_weight_decay(p, group)
                update = p.grad
                if momentum > 0.0:
                    buf = self.state[p]["momentum_buffer"]
                    buf.mul_(momentum).add_(p.grad, alpha=1.0 - momentum)
                    update = buf
                p.add_(torch.sign(update), alpha=-group["lr"])
        return loss


class SmallNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def stripes(n, generator):
    labels = torch.randint(0, 4, (n,), generator=generator)
    grid = torch.arange(12.0)
    waves = torch.stack([
        torch.sin(grid)[None, :].expand(12, 12),
        torch.sin(grid)[:, None].expand(12, 12),
        torch.sin(grid[None, :] + grid[:, None]),
        torch.sin(grid[None, :] - grid[:, None]),
    ])
    images = waves[labels] + 1.5 * torch.randn(n, 12, 12, generator=generator)
    return images[:, None], labels


def main():
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(1)
    model = SmallNet()
    optimizer = OPTIMIZERS["signsgd"](model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    for step in range(120):
        images, labels = stripes(32, generator)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 30 == 29:
            print(f"step {step + 1:4d} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        images, labels = stripes(512, generator)
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    return model, optimizer, accuracy


if __name__ == "__main__":
    main()
