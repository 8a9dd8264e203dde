"""The options of a gradient check, validated where they enter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import torch

from gradcheck_suite.errors import UsageError

__all__ = ["CheckOptions", "DTypeOption", "Precision", "precision_of"]

DTypeOption: TypeAlias = "Literal['native', 'float32', 'float64'] | torch.dtype"

_CASTS = {
    "native": None,
    "float32": torch.float32,
    "float64": torch.float64,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


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
    def is_double(self) -> bool:
        """Whether everything is computed in float64."""
        return self.eps == torch.finfo(torch.float64).eps


# float64: at step 2**-10 rounding leaves 12 of 16 digits less 3, the extrapolated difference as
# many; float32: of 7 digits some 4 are left, fewer where kinks lie within the step. The numbers
# follow from eps / step and from trials on networks with and without kinks.
_FLOAT64 = Precision(
    eps=torch.finfo(torch.float64).eps,
    resolution=1e-4,
    rtol=1e-7,
    linearity=1e-6,
    zero=1e-6,
    target=1e-6,
    steps=tuple(2.0**-exponent for exponent in range(6, 26, 2)),
    first=3,
    move=2.0**-10,
    probes=2,
)
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


def precision_of(dtypes: Iterable[torch.dtype]) -> Precision:
    """Return what can be asked of a computation that involves these floating-point types."""
    return _FLOAT64 if all(dtype == torch.float64 for dtype in dtypes) else _FLOAT32


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How a gradient check is done.

    Attributes:
        cast: the type that inputs, parameters and buffers are cast to, or None for as they are.
        parameters: whether the parameters of a module are checked besides its inputs.
        probes: how many random probes each gradient gets, or None for a number that suits the
            precision.
        seed: seeds directions, cotangents and the random draws inside the function.
        skip_outputs: names of outputs that are not checked.
    """

    cast: torch.dtype | None = None
    parameters: bool = True
    probes: int | None = None
    seed: int = 0
    skip_outputs: frozenset[str] = frozenset()

    @classmethod
    def validated(
        cls,
        *,
        dtype: object,
        parameters: object,
        probes: object,
        seed: object,
        skip_outputs: object,
    ) -> CheckOptions:
        """Make options of what a caller gave.

        Raises:
            UsageError: a value is of the wrong type or out of range.
        """
        if not isinstance(dtype, (str, torch.dtype)) or dtype not in _CASTS:
            raise UsageError(
                "dtype must be 'native', 'float32' or 'float64' (or torch.float32, "
                f"torch.float64), got {dtype!r}; half precision cannot resolve a gradient"
            )
        if not isinstance(parameters, bool):
            raise UsageError(f"parameters must be True or False, got {parameters!r}")
        if probes is not None and not _is_integer(probes, at_least=1):
            raise UsageError(f"probes must be a positive integer or None, got {probes!r}")
        if not _is_integer(seed, at_least=0, below=2**32):
            raise UsageError(f"seed must be an integer from 0 to 2**32 - 1, got {seed!r}")
        if isinstance(skip_outputs, str) or not isinstance(skip_outputs, Iterable):
            raise UsageError(
                "skip_outputs must be a collection of output names, such as ['output[1]'], "
                f"got {skip_outputs!r}"
            )
        names = frozenset(str(name) for name in skip_outputs)
        return cls(_CASTS[dtype], parameters, cast("int | None", probes), cast("int", seed), names)


def _is_integer(value: object, *, at_least: int, below: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < below
