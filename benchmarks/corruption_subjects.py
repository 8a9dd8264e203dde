"""Small models of many kinds for seeded edits of what their forward saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SUBJECTS", "Subject"]

Subject: TypeAlias = "tuple[nn.Module, Callable[[], torch.Tensor]]"


def _mlp() -> Subject:
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(6, 8), torch.randint(4, (6,))
    return net, lambda: F.cross_entropy(net(x), y)


def _wide() -> Subject:
    net = nn.Sequential(nn.Linear(96, 160), nn.GELU(), nn.Linear(160, 96), nn.Sigmoid())
    x = torch.randn(80, 96)
    return net, lambda: (net(x) - x).pow(2).mean()


def _convolutions() -> Subject:
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.GroupNorm(2, 4),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 3),
    )
    x = torch.randn(5, 2, 8, 8)
    return net, lambda: net(x).logsumexp(1).mean()


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(F.softplus(self.first(x))))


def _residual() -> Subject:
    net = nn.Sequential(*(_Residual() for _ in range(3)))
    x = torch.randn(7, 12)
    return net, lambda: net(x).pow(3).mean()


def _transformer() -> Subject:
    net = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    x = torch.randn(3, 9, 16)
    return net, lambda: net(x).abs().mean()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / 8**0.5
        mask = torch.ones(scores.shape[-2:]).tril() == 0
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ self.value(x)


def _attention() -> Subject:
    net = _Attention()
    x = torch.randn(2, 6, 8)
    return net, lambda: net(x).cos().sum()


def _lstm() -> Subject:
    net = nn.ModuleDict({"lstm": nn.LSTM(5, 7, 2, batch_first=True), "head": nn.Linear(7, 2)})
    x = torch.randn(3, 6, 5)
    return net, lambda: net["head"](net["lstm"](x)[0]).pow(2).mean()


def _gru_cell() -> Subject:
    net = nn.GRUCell(5, 6)
    x = torch.randn(5, 4, 5)

    def loss() -> torch.Tensor:
        state = torch.zeros(4, 6)
        for step in x:
            state = net(step, state)
        return state.exp().mean()

    return net, loss


def _embedding() -> Subject:
    net = nn.ModuleDict({"table": nn.Embedding(11, 6), "head": nn.Linear(6, 11)})
    tokens = torch.randint(11, (4, 7))

    def loss() -> torch.Tensor:
        hidden = net["table"](tokens).cumsum(1)
        return F.nll_loss(net["head"](hidden).log_softmax(-1).flatten(0, 1), tokens.flatten())

    return net, loss


def _graph() -> Subject:
    net = nn.Linear(4, 4)
    x, edges, weights = torch.randn(9, 4), torch.randint(9, (2, 20)), torch.rand(20, 1)

    def loss() -> torch.Tensor:
        messages = net(x)[edges[0]] * weights
        return torch.zeros(9, 4).index_add(0, edges[1], messages).prod(1).sum()

    return net, loss


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):  # noqa: ANN001, ANN205 - as users write it
        ctx.save_for_backward(x, slope)
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx, gradient):  # noqa: ANN001, ANN205 - as users write it
        x, slope = ctx.saved_tensors
        gate = torch.sigmoid(slope * x)
        inner = gate * (1 - gate)
        return gradient * (gate + slope * x * inner), (gradient * x * x * inner).sum()


def _custom_function() -> Subject:
    net = nn.Linear(10, 10)
    net.slope = nn.Parameter(torch.tensor(1.5))
    x = torch.randn(6, 10)
    return net, lambda: _Swish.apply(net(x), net.slope).norm()


def _autoencoder() -> Subject:
    net = nn.ModuleDict(
        {"mean": nn.Linear(6, 3), "spread": nn.Linear(6, 3), "out": nn.Linear(3, 6)}
    )
    x = torch.rand(8, 6)

    def loss() -> torch.Tensor:
        mean, spread = net["mean"](x), net["spread"](x)
        z = mean + torch.randn_like(spread) * (spread / 2).exp()
        made = F.binary_cross_entropy_with_logits(net["out"](z), x)
        return made - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()

    return net, loss


def _double() -> Subject:
    net = nn.Sequential(nn.Linear(5, 9), nn.ELU(), nn.Linear(9, 2))
    net.double()
    x = torch.randn(5, 5, dtype=torch.float64)
    return net, lambda: net(x).atan().sum()


def _half() -> Subject:
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16)).bfloat16()
    x = torch.randn(24, 32).bfloat16()
    return net, lambda: net(x).float().pow(2).mean()


def _views() -> Subject:
    net = nn.Linear(6, 12)
    x = torch.randn(4, 6)

    def loss() -> torch.Tensor:
        left, right = net(x).t().chunk(2)
        return (left[::2] * right[1::2]).sum() + (left * right.flip(0)).div(3).sin().sum()

    return net, loss


def _deconvolution() -> Subject:
    net = nn.Sequential(
        nn.ConvTranspose1d(3, 5, 4, stride=2), nn.InstanceNorm1d(5, affine=True), nn.PReLU()
    )
    x = torch.randn(2, 3, 7)
    return net, lambda: net(x).std()


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "MLP": _mlp,
    "wide MLP": _wide,
    "convolutions, batch and group norm": _convolutions,
    "residual, layer norm": _residual,
    "transformer layer": _transformer,
    "attention by hand": _attention,
    "LSTM": _lstm,
    "GRU cell in a loop": _gru_cell,
    "embedding": _embedding,
    "graph network": _graph,
    "custom Function": _custom_function,
    "variational autoencoder": _autoencoder,
    "float64": _double,
    "bfloat16": _half,
    "views": _views,
    "transposed convolution": _deconvolution,
}
