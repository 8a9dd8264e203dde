"""What can be asked of a gradient that is computed in some floating-point type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Precision", "precision_of"]


@dataclass(frozen=True, slots=True)
class Precision:
    """What can be asked of a gradient that is computed in one floating-point type.

    Attributes:
        eps: the machine epsilon of the coarsest type involved.
        resolution: the largest relative error of a gradient that a pass may hide. A probe whose
            tolerance is wider decides nothing.
        rtol: the smallest relative error that counts as a wrong gradient; a backward may round
            like a forward does, and constants in it may be given to fewer digits.
        linearity: the relative difference from which on backward counts as not linear.
        zero: the size, relative to the output, under which a derivative that equals zero within
            its tolerance passes as zero.
        target: the relative tolerance at which a probe that agrees takes no further steps.
        steps: the steps of the ladder, largest first, relative to the input's scale.
        first: how many steps are taken before the first look at the result.
        move: how far, relative to the input's scale, a point beside a kink lies.
        probes: how many probes are drawn when the caller does not say.
    """

    eps: float
    resolution: float
    rtol: float
    linearity: float
    zero: float
    target: float
    steps: tuple[float, ...]
    first: int
    move: float
    probes: int

    @property
    def is_half(self) -> bool:
        """Return whether something is computed in float16 or bfloat16."""
        return self.eps >= torch.finfo(torch.float16).eps

    @property
    def is_double(self) -> bool:
        """Return whether everything is computed in float64."""
        return self.eps == torch.finfo(torch.float64).eps


_FLOAT64 = Precision(
    eps=torch.finfo(torch.float64).eps,
    resolution=1e-4,
    rtol=1e-7,
    linearity=1e-6,
    zero=1e-6,
    target=1e-6,
    steps=tuple(2.0**-exponent for exponent in range(6, 32, 2)),
    first=3,
    move=2.0**-10,
    probes=2,
)
"""float64: at step ``2**-10`` rounding leaves 12 of 16 digits less 3, the extrapolated difference
as many. The numbers follow from eps / step and from trials on networks with and without kinks."""
_FLOAT32 = Precision(
    eps=torch.finfo(torch.float32).eps,
    resolution=5e-2,
    rtol=1e-4,
    linearity=1e-2,
    zero=1e-3,
    target=2e-3,
    steps=tuple(2.0**-exponent for exponent in range(3, 14)),
    first=4,
    move=2.0**-4,
    probes=4,
)
"""float32: of 7 digits some 4 are left, fewer where kinks lie within the step. The numbers follow
from eps / step and from trials on networks with and without kinks."""


_HALF = Precision(
    eps=torch.finfo(torch.bfloat16).eps,
    resolution=0.1,
    rtol=1e-2,
    linearity=0.1,
    zero=1e-2,
    target=2.5e-2,
    steps=(2.0**-2, 2.0**-3),
    first=2,
    move=2.0**-2,
    probes=256,
)
"""float16 and bfloat16: two or three digits, of which a slope pooled over many probes is made, see
``first_order/half_precision.py``. Only eps differs between the two types. Chosen: rtol is some 3
roundings of bfloat16, resolution four targets."""
HALF_TYPES = (torch.float16, torch.bfloat16)


def precision_of(dtypes: Iterable[torch.dtype]) -> Precision:
    """Return what can be asked of a computation that involves these floating-point types."""
    involved = set(dtypes)
    half = [torch.finfo(dtype).eps for dtype in HALF_TYPES if dtype in involved]
    if half:
        return replace(_HALF, eps=max(half))
    return _FLOAT64 if involved == {torch.float64} else _FLOAT32
