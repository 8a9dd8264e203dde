"""The options of a gradient check, validated where they enter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    def is_half(self) -> bool:
        """Whether something is computed in float16 or bfloat16."""
        return self.eps >= torch.finfo(torch.float16).eps

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
    steps=tuple(2.0**-exponent for exponent in range(6, 32, 2)),
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


# Two or three digits: a slope pooled over many probes, see half_precision.py. Only eps differs
# between the two types.
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
HALF_TYPES = (torch.float16, torch.bfloat16)


def precision_of(dtypes: Iterable[torch.dtype]) -> Precision:
    """Return what can be asked of a computation that involves these floating-point types."""
    involved = set(dtypes)
    half = [torch.finfo(dtype).eps for dtype in HALF_TYPES if dtype in involved]
    if half:
        return replace(_HALF, eps=max(half))
    return _FLOAT64 if involved == {torch.float64} else _FLOAT32


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
        order: 1 or 2; None checks order 2 by itself where custom Functions are involved.
        full: whether the whole Jacobian is compared as well.
        variations: which variations of the inputs are tried, or None for all.
        forward_mode: whether forward-mode derivatives are compared as well.
        batched: whether batched gradients (vmap of backward) are compared as well.
        compiled: whether the gradients of the compiled function are compared as well.
        time_limit: seconds after which nothing further is begun, or None.
        max_memory: bytes that the comparison of a whole Jacobian may take at a time.
        closures: whether parameters that a function reads without being given them are checked as
            those of a module are.
        localize_by: what to write to look for the wrong call inside of what is checked; None where
            a report is not to name it.
    """

    cast: torch.dtype | None = None
    parameters: bool = True
    probes: int | None = None
    seed: int = 0
    skip_outputs: frozenset[str] = frozenset()
    order: int | None = None
    full: bool = False
    variations: frozenset[str] | None = None
    forward_mode: bool = False
    batched: bool = False
    compiled: bool = False
    time_limit: float | None = None
    max_memory: int = 2**30
    closures: bool = True
    localize_by: str | None = None

    @classmethod
    def validated(
        cls,
        *,
        dtype: object = "native",
        probes: object = None,
        seed: object = 0,
        skip_outputs: object = (),
        order: object = None,
        variations: object = None,
        time_limit: object = None,
        max_memory: object = 2**30,
        localize_by: str | None = None,
        **switches: object,
    ) -> CheckOptions:
        """Make options of what a caller gave.

        Args:
            dtype: a name or a torch type.
            probes: as the attribute.
            seed: as the attribute.
            skip_outputs: any collection of names.
            order: as the attribute.
            variations: any collection of names, or None.
            time_limit: as the attribute.
            max_memory: as the attribute.
            localize_by: as the attribute.
            switches: the attributes that are True or False.

        Raises:
            UsageError: a value is of the wrong type or out of range.
        """
        if not isinstance(dtype, (str, torch.dtype)) or dtype not in _CASTS:
            raise UsageError(
                "dtype must be 'native', 'float32' or 'float64' (or torch.float32, "
                f"torch.float64), got {dtype!r}; half precision is checked natively, in the "
                "types of the given tensors"
            )
        for name, value in switches.items():
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be True or False, got {value!r}")
        if probes is not None and not _is_integer(probes, at_least=1):
            raise UsageError(f"probes must be a positive integer or None, got {probes!r}")
        if not _is_integer(seed, at_least=0, below=2**32):
            raise UsageError(f"seed must be an integer from 0 to 2**32 - 1, got {seed!r}")
        if order is not None and not _is_integer(order, at_least=1, below=3):
            raise UsageError(f"order must be 1, 2 or None, got {order!r}")
        if time_limit is not None and not _is_positive(time_limit):
            raise UsageError(
                f"time_limit must be a positive number of seconds or None, got {time_limit!r}"
            )
        if not _is_integer(max_memory, at_least=1):
            raise UsageError(f"max_memory must be a positive number of bytes, got {max_memory!r}")
        return cls(
            cast=_CASTS[dtype],
            probes=cast("int | None", probes),
            seed=cast("int", seed),
            skip_outputs=_names("skip_outputs", skip_outputs, "['output[1]']"),
            order=cast("int | None", order),
            variations=(
                None if variations is None else _names("variations", variations, "['transposed']")
            ),
            time_limit=None if time_limit is None else float(cast("float", time_limit)),
            max_memory=cast("int", max_memory),
            localize_by=localize_by,
            **cast("dict[str, bool]", switches),
        )


def _names(option: str, given: object, example: str) -> frozenset[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(
            f"{option} must be a collection of {_KINDS_OF_NAMES[option]}, such as {example}, "
            f"got {given!r}"
        )
    return frozenset(str(name) for name in given)


_KINDS_OF_NAMES = {"skip_outputs": "output names", "variations": "names of variations"}


def _is_integer(value: object, *, at_least: int, below: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < below


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0.0
