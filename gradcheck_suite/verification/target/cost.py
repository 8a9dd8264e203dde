"""How much a call does: how many of torch's operators it runs, and how many elements they make.

A function that iterates until something is small enough gives itself away by how many operators it
runs: for other values it ends sooner or later. It is only nearly what it means. The implicit
gradient of a fixed point, an ODE or a root is that of the limit; an iteration that ends early
stands a little before the limit, where the derivative is a little another one: no mistake in
backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._torch_compat import noting_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Cost", "cost_of", "ends_early"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call took.

    Attributes:
        operators: how many of torch's operators ran, those within custom Functions too.
        elements: how many elements they made, all together.
    """

    operators: int
    elements: int


def cost_of(subject: PureFunction) -> Cost | None:
    """Call a function at its point, without gradients, and count; None where it raises."""
    operators = elements = 0

    def note(_operator: object, _given: Sequence[object], result: object) -> None:
        nonlocal operators, elements
        operators += 1
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.Tensor):
                elements += part.numel()

    try:
        with torch.no_grad(), noting_operators(note):
            subject([variable.value for variable in subject.variables])
    except Exception:  # noqa: BLE001 - the user's function, perhaps off the point
        return None
    return Cost(operators, elements)


_SCALES = (2.0**-10, 2.0**-3, 0.5, 1.5)
"""By what the values are multiplied to see whether operations are as many: small, large and
between. Chosen; one evaluation each."""
_FEWEST_COUNTS = 3
"""How many different numbers of operations speak for an iteration: a branch makes for two, an
iteration for one at nearly each point."""


def ends_early(subject: PureFunction) -> bool:
    """Return whether a function makes other numbers of operations for other sizes of values."""
    counts = set()
    for scale in (1.0, *_SCALES):
        values = [variable.value * scale for variable in subject.variables]
        cost = cost_of(subject.elsewhere(values=values))
        if cost is not None:
            counts.add(cost.operators)
    return len(counts) >= _FEWEST_COUNTS
