"""Wrong for other sizes."""

from __future__ import annotations

import torch

from tests.verification.stages.varied.making import add, draw, unary


# sizes
def _no_tail(block):
    def derivative(g, x):
        grad = (g * x.cos()).reshape(-1).clone()
        grad[grad.numel() // block * block :] = 0
        return grad.view(x.shape)

    return derivative


def _beyond(limit):
    def derivative(g, x):
        grad = (g * x.cos()).reshape(-1).clone()
        grad[limit:] = 0
        return grad.view(x.shape)

    return derivative


for label, derivative, size in (
    ("tail_of_32", _no_tail(32), 64),
    ("tail_of_8", _no_tail(8), 16),
    ("tail_of_1024", _no_tail(1024), 1024),
    ("beyond_1024", _beyond(1024), 100),
    ("beyond_4096", _beyond(4096), 256),
):
    add(
        label,
        unary(torch.sin, lambda g, x: g * x.cos(), derivative, label.title().replace("_", "")),
        [draw(size)],
        "GCS601",
        "only with a first dimension of",
    )


def _even_columns(g, x):
    grad = (g * x.cos()).clone()
    grad[..., x.shape[-1] // 2 * 2 :] = 0
    return grad


add(
    "odd_columns",
    unary(torch.sin, lambda g, x: g * x.cos(), _even_columns, "OddColumns"),
    [draw(3, 8)],
    "GCS601",
    "only with a last dimension of",
)


def _squeezed(g, x):
    # The squeeze is meant for the last dimension and takes that of a lone row as well.
    scale = (x * x).sum(-1, keepdim=True).squeeze()
    return g * x.cos() if scale.dim() else g * x.cos() * scale


add(
    "lone_row",
    unary(torch.sin, lambda g, x: g * x.cos(), _squeezed, "LoneRow"),
    [draw(4, 3)],
    "GCS601",
    "only with a first dimension of 1 in place of 4",
)
