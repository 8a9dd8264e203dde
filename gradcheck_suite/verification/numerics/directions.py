"""Random directions and cotangents.

Each entry has a random sign and a magnitude between 1/2 and 3/2: every entry takes part (a
normal draw may be near zero, and a wrong gradient of that one element would hide), and errors of
equal size in two entries do not cancel, as they may between entries of exactly +1 and -1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["generator_for", "random_signs", "scales_of"]

_FLOOR = 2.0**-10
"""The least scale of a tensor as a share of the median of all: steps must move what the function
computes. Chosen: a thousandth."""


def generator_for(seed: int, *stream: int) -> torch.Generator:
    """Return a generator whose draws depend on the seed and the stream's numbers alone."""
    state = seed
    for number in stream:
        # A linear congruential step (Knuth's MMIX constants) keeps neighbouring streams apart.
        state = (6364136223846793005 * (state + number + 1) + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(state)


def random_signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw signs times magnitudes from 1/2 to 3/2, in the shape, type and place of ``like``."""
    # Uniform draws: the lower half becomes -3/2 to -1/2, the upper half 1/2 to 3/2.
    signed = torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu")
    signed.mul_(2.0).sub_(1.0)
    signed.add_(torch.full((), 0.5, dtype=torch.float64).copysign(signed))
    return signed.to(device=like.device, dtype=like.dtype)


def scales_of(values: Sequence[torch.Tensor]) -> list[float]:
    """Return the length that counts as one unit for each tensor: its root mean square.

    A tensor of zeros (a bias after initialisation) has the median of the others' scales, and no
    tensor has less than a thousandth of it: steps must move what the function computes.
    """
    sizes = [_root_mean_square(value) for value in values]
    known = sorted(size for size in sizes if size > 0.0)
    typical = known[len(known) // 2] if known else 1.0
    return [max(size, typical * _FLOOR) if size > 0.0 else typical for size in sizes]


def _root_mean_square(value: torch.Tensor) -> float:
    value = value[torch.isfinite(value)]
    if value.numel() == 0:
        return 0.0
    peak = value.abs().max().double().item()
    if peak == 0.0:
        return 0.0
    return peak * math.sqrt((value.double() / peak).square().mean().item())
