"""The options of a gradient check, validated where they enter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LAYOUTS", "VARIATIONS", "CheckOptions", "DTypeOption", "chosen_variations"]

DTypeOption: TypeAlias = "Literal['native', 'float32', 'float64'] | torch.dtype"

_CASTS = {
    "native": None,
    "float32": torch.float32,
    "float64": torch.float64,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


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
        examined: custom Functions that are being checked by themselves: they are what is to blame
            there, and only the outcome counts.
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
    examined: frozenset[type] = frozenset()

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
            **cast("dict[str, Any]", switches),
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


LAYOUTS = ("strided", "transposed", "offset", "expanded")
"""What inputs can look like in memory, and cotangents but for "offset"."""

VARIATIONS = (
    *LAYOUTS,
    "cotangents",
    "alone",
    "signs",
    "magnitudes",
    "special",
    "indices",
    "sizes",
)
"""Every variation by name, in the order in which they are tried."""

_GROUPS = {
    "layout": frozenset(LAYOUTS),
    "values": frozenset({"signs", "magnitudes", "special", "indices"}),
}


def chosen_variations(names: Collection[str] | None) -> frozenset[str]:
    """Return which variations are asked for; "layout" and "values" stand for several.

    >>> sorted(chosen_variations({"layout"}))
    ['expanded', 'offset', 'strided', 'transposed']

    Args:
        names: of variations or groups; None for every variation.

    Raises:
        UsageError: a name is of none.
    """
    if names is None:
        return frozenset(VARIATIONS)
    chosen: set[str] = set()
    for name in names:
        if name not in VARIATIONS and name not in _GROUPS:
            raise UsageError(
                f"variations has {name!r}, which is no variation; choose among "
                f"{', '.join(VARIATIONS)}; layout (strided, transposed, offset, expanded) and "
                "values (signs, magnitudes, special, indices)"
            )
        chosen |= _GROUPS.get(name, frozenset({name}))
    return frozenset(chosen)
