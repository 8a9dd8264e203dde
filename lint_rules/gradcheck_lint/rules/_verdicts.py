"""Say what a verdict on an event of a training step is, and which objects events share."""

# ruff: noqa: PLR0911 - each return is a verdict of its own

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import (
    Event,
    Loop,
    Step,
    ZeroGrad,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.values import Kind, Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.model.paths import Occurrence


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Something out of order: ``kind`` says what, ``others`` are the events that show it.

    ``certain`` is False where only likelihood connects them.
    """

    code: str
    kind: str
    event: Event
    function: FunctionModel
    others: tuple[Event, ...] = ()
    certain: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is judged at once: a loop, or a function as a whole."""

    function: FunctionModel
    loop: Loop | None

    @property
    def turn(self) -> int:
        return 0 if self.loop is None else 1

    def owns(self, item: Occurrence) -> bool:
        """Tell whether this unit is the innermost that the event repeats in."""
        innermost = item.leading.loops[-1:]
        if item.event is not item.leading and item.event.loops:
            return False
        return innermost == (() if self.loop is None else (self.loop.identity,))


ABSENT = Problem("", "", Event(cst.Name("x"), None, (), (), False), None)  # type: ignore[arg-type]
"""The verdict on an event that another iteration on the same path judges."""


def same(left: Occurrence, values: Values, right: Occurrence, others: Values) -> bool:
    """Tell whether two events are about the same object."""
    return bool(
        left.keys(values, getattr(left.event, "receiver", None))
        & right.keys(others, getattr(right.event, "receiver", None))
    )


def covers(zero: Occurrence, step: Occurrence) -> bool | None:
    """Tell whether a reset clears what a step uses; None if that is not known."""
    assert isinstance(zero.event, ZeroGrad)
    assert isinstance(step.event, Step)
    values, stepped = zero.event.values, step.event.values
    if not values or zero.event.receiver is None:
        return None
    if same(zero, values, step, stepped):
        return True
    if zero.keys(values) & step.held(stepped):
        return True
    if zero.held(values) & step.held(stepped):
        return None
    if not all(_is_optimizer(value.kind, zero.event.receiver) for value in values):
        return None
    if not step.event.receiver or zero.event.receiver == step.event.receiver:
        return None
    if zero.owner is not step.owner and not all(
        value.kind is Kind.OPTIMIZER for value in (*values, *stepped)
    ):
        return None
    return False


def _is_optimizer(kind: Kind, receiver: str) -> bool:
    last = receiver.rpartition(".")[2].lower()
    return kind is Kind.OPTIMIZER or (kind is Kind.UNKNOWN and "opt" in last)


def last_of(segment: Sequence[Occurrence], kind: type[Event]) -> int | None:
    for index in range(len(segment) - 1, -1, -1):
        if isinstance(segment[index].event, kind):
            return index
    return None
