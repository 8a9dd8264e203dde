"""Run a pullback with other incoming gradients and compare what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import torch

from gradcheck_suite.verification.contracts.comparison import row_differences
from gradcheck_suite.verification.contracts.pullback import Row

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["Breach", "BreachKind", "Probed", "Pullback", "begin"]

BreachKind: TypeAlias = Literal["nonlinear", "layout", "undefined", "written", "aliased", "spoilt"]
Given: TypeAlias = Mapping[int, torch.Tensor]


class Pullback(Protocol):
    """Anything that turns incoming gradients into gradients: a recorded call, or one node."""

    def pull(self, cotangents: Given) -> Row:
        """Return the gradients for these incoming ones, by number of the output."""
        ...


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that a backward owes and does not keep.

    Attributes:
        kind: what.
        words: under which incoming gradient, such as "strided".
        output: the number of the output whose incoming gradient shows it, or None for all.
        difference: of the gradients, relative to their size; None where backward raised.
        error: what it raised, as text.
    """

    kind: BreachKind
    words: str
    output: int | None
    difference: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """A pullback with incoming gradients and what they give.

    Attributes:
        pullback: what is probed.
        given: the incoming gradients, contiguous.
        row: the gradients they give.
        scales: how large those are.
        allowed: the relative difference that rounding may make.
    """

    pullback: Pullback
    given: Given
    row: Row
    scales: tuple[float, ...]
    allowed: float

    def apart(
        self, one: Sequence[torch.Tensor | None], two: Sequence[torch.Tensor | None]
    ) -> float:
        """Return the largest difference of two rows, in units of the first gradients' size."""
        return max(row_differences(one, two, self.scales), default=0.0)


def begin(
    pullback: Pullback, given: Given, *, allowed: float, floors: Sequence[float] | None = None
) -> Probed | Breach | None:
    """Run a pullback twice; None if it can't be run twice on one graph.

    Where the results differ, it changes what it has saved, which is a breach.
    """
    try:
        # Copies: a backward may write into what it is given, and into what it has returned.
        row, again = (
            tuple(
                None if part is None else part.clone()
                for part in pullback.pull({index: it.clone() for index, it in given.items()})
            )
            for _ in range(2)
        )
    except Exception:  # noqa: BLE001 - such as a graph that frees what it saved on its own
        return None
    scales = [0.0 if part is None or part.numel() == 0 else _largest(part) for part in row]
    if floors is None:
        # Of a node it is not known how large gradients are meant to be: as the others are, at most.
        eps = max((torch.finfo(part.dtype).eps for part in row if part is not None), default=0.0)
        floors = [_ROUNDINGS * eps / allowed * max(scales, default=0.0)] * len(scales)
    scales = [max(scale, floor) for scale, floor in zip(scales, floors, strict=True)]
    probed = Probed(pullback, given, row, tuple(scales), allowed)
    apart = probed.apart(row, again)
    return probed if apart <= allowed else Breach("spoilt", "again", None, apart)


_ROUNDINGS = 1024.0


def _largest(part: torch.Tensor) -> float:
    sizes = part.abs().double()
    return float(torch.where(torch.isfinite(sizes), sizes, 0.0).max())
