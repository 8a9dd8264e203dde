"""Wrong for repeated indices."""

from __future__ import annotations

import torch

from tests.verification.stages.varied.making import add, draw, indices, make


# repeated indices
def _gather(x, index):
    return x[index]


def _overwrites(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_put((index,), g), None


def _accumulates(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_put((index,), g, accumulate=True), None


def _assigns(ctx, g):
    x, index = ctx.saved_tensors
    grad = torch.zeros_like(x)
    grad[index] += g
    return grad, None


def _copies(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_copy(0, index, g), None


gather = make(_gather, _accumulates, "GatherRight")
for label, backward in (("put", _overwrites), ("augmented", _assigns), ("copy", _copies)):
    add(
        f"gather_{label}",
        (make(_gather, backward, f"Gather{label.title()}"), gather),
        [draw(8, 3), indices(5, 2, 0, 7, 3)],
        "GCS601",
        "only for repeated indices in `inputs[1]`",
    )
