"""Gradients that are by design not the derivative.

``nn.Embedding`` documents two: the row of ``padding_idx`` gets no gradient though the output
depends on it, and ``scale_grad_by_freq`` divides each row's by how often the row was looked up.

Spectral norm iterates singular vectors in each forward in training mode and takes them for
constants in backward, which they are once they have settled.

The backward of ``ctc_loss`` is that of ``ctc_loss(log_softmax(...))`` with respect to what goes
into the softmax: it is right for whatever makes log-probabilities, not for log-probabilities that
are moved by themselves.

A straight-through estimator is another (Y. Bengio, N. Leonard, A. Courville, "Estimating or
propagating gradients through stochastic neurons", 2013). A custom Function says so by an attribute
of its class, ``straight_through = True``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from gradcheck_suite._torch_compat import power_iterations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.autograd.graph import Node

__all__ = [
    "CTC",
    "STRAIGHT_THROUGH",
    "DocumentedException",
    "documented_exceptions",
    "is_straight_through",
    "log_probabilities",
]

STRAIGHT_THROUGH = "straight_through"

DocumentedException: TypeAlias = "int | str"
"""The row that gets no gradient, or why no row's is the derivative."""

CTC = (
    "the backward of ctc_loss is that of ctc_loss(log_softmax(x)) with respect to x; for "
    "log-probabilities that are moved by themselves it is by design not the derivative"
)
"""Why a gradient that goes through ctc_loss may differ from the numeric one."""

_CTC = ("CtcLossBackward", "CudnnCtcLossBackward")
_NORMALISED = 1e-3
"""How far from zero the logarithm of the sum of probabilities may be. Chosen: far above what
float32 rounds, far below what scores that are not normalised have."""
_SETTLED = 1e-7
"""By how much another power iteration may move a vector of length one, but by 10 roundings (eps) in
any case: as much as float64 tells of a gradient (``rtol``)."""
_SPECTRAL = (
    "spectral norm in training mode takes vectors for constants that have not settled yet; in "
    "evaluation mode they are"
)


def documented_exceptions(module: nn.Module) -> dict[int, DocumentedException]:
    """Return what is not the derivative, and why, by ``id`` of the parameter."""
    found: dict[int, DocumentedException] = {
        id(weight): _SPECTRAL
        for weight, matrix, vector in power_iterations(module)
        if not _has_settled(matrix, vector)
    }
    for part in module.modules():
        if not isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if part.scale_grad_by_freq:
            found[id(part.weight)] = "scale_grad_by_freq"
        elif part.padding_idx is not None and isinstance(part, nn.Embedding):
            found.setdefault(id(part.weight), part.padding_idx)
    return found


def _has_settled(matrix: torch.Tensor, vector: torch.Tensor) -> bool:
    """Return whether another iteration leaves a left singular vector as it is, up to rounding."""
    right = nn.functional.normalize(matrix.T @ vector, dim=0)
    moved = nn.functional.normalize(matrix @ right, dim=0) - vector
    return float(moved.norm()) <= max(_SETTLED, 10 * torch.finfo(matrix.dtype).eps)


def is_straight_through(function: type) -> bool:
    """Return whether a custom Function declares that its backward is not meant as a derivative."""
    return getattr(function, STRAIGHT_THROUGH, False) is True


def log_probabilities(nodes: Iterable[Node]) -> bool | None:
    """Return whether what reaches ``ctc_loss`` is normalised; None where it is not on the way."""
    seen = None
    for node in nodes:
        if not node.name().startswith(_CTC):
            continue
        given = getattr(node, "_saved_log_probs", None)
        if not isinstance(given, torch.Tensor):
            continue
        total = given.detach().logsumexp(-1)
        seen = seen is not False and bool((total.abs() <= _NORMALISED).all())
    return seen
