"""Gradients that are by design not the derivative.

``nn.Embedding`` documents two: the row of ``padding_idx`` gets no gradient though the output
depends on it, and ``scale_grad_by_freq`` divides each row's by how often the row was looked up.

A straight-through estimator is another (Y. Bengio, N. Leonard, A. Courville, "Estimating or
propagating gradients through stochastic neurons", 2013). A custom Function says so by an attribute
of its class, ``straight_through = True``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

__all__ = ["ALL_ROWS", "STRAIGHT_THROUGH", "departures", "is_straight_through"]

STRAIGHT_THROUGH = "straight_through"

ALL_ROWS: Literal["all"] = "all"
Rows: TypeAlias = "int | Literal['all']"


def departures(module: nn.Module) -> dict[int, Rows]:
    """Return the row, or ``ALL_ROWS``, whose gradient is none, by ``id`` of the parameter."""
    found: dict[int, Rows] = {}
    for part in module.modules():
        if not isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if part.scale_grad_by_freq:
            found[id(part.weight)] = ALL_ROWS
        elif part.padding_idx is not None and isinstance(part, nn.Embedding):
            found.setdefault(id(part.weight), part.padding_idx)
    return found


def is_straight_through(function: type) -> bool:
    """Say whether a custom Function declares that its backward is not meant as a derivative."""
    return getattr(function, STRAIGHT_THROUGH, False) is True
