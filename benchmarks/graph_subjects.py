"""Models and expressions that viewers of autograd graphs are compared on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

Subject: TypeAlias = "tuple[nn.Module, tuple[torch.Tensor, ...]]"
"""A module to call, and what to call it with."""


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gradient: torch.Tensor = 2 * x * grads[0]
        return gradient


class _Expression(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * x + torch.sin(2 * y)


class _CopySlices(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:2] = x[2:] * 3
        y[0].mul_(2)
        return y


class _Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Square.apply(x)
        return result


class _Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10_000):
            x = (x * 1.0).sin()
        return x


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, 8)
        for _ in range(2_000):
            state = self.cell(x, state)
        return state


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.down = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


class _ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.layers = nn.Sequential(
            *(nn.Sequential(_Block(*width), _Block(width[1], width[1], 1)) for width in widths)
        )
        self.fc = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(self.layers(self.stem(x)).mean((2, 3)))
        return result


def encoder(layers: int, width: int = 64) -> nn.Module:
    """Return a transformer encoder."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "expression": lambda: (_Expression(), (_leaf(3), _leaf(3))),
    "MLP": lambda: (
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        (torch.randn(8, 16),),
    ),
    "ResNet-18": lambda: (_ResNet18(), (torch.randn(2, 3, 64, 64),)),
    "6-layer transformer": lambda: (encoder(6), (torch.randn(2, 10, 64),)),
    "CopySlices": lambda: (_CopySlices(), (_leaf(4, 4),)),
    "custom Function": lambda: (_Custom(), (_leaf(3),)),
    "chain of 20,000 ops": lambda: (_Chain(), (_leaf(1),)),
    "48-layer transformer": lambda: (encoder(48), (torch.randn(2, 10, 64),)),
    "RNN over 2,000 steps": lambda: (_Recurrent(), (torch.ones(1, 8),)),
}
