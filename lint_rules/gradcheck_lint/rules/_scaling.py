"""Judge the calls of a gradient scaler along a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import (
    Backward,
    ScalerUpdate,
    Step,
    Unscale,
)
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.rules._verdicts import Problem, Unit, last_of, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.model.paths import Occurrence, Path


def judge_scaled_step(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    del unit
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    before = path[:index]
    last = last_of(before, Backward)
    if last is None:
        return (None, None)
    backward = before[last].event
    assert isinstance(backward, Backward)
    between = before[last + 1 :]
    if any(other.is_unclear for other in between):
        return (None, None)
    wrong: Problem | None = None
    if backward.scaled and not step.scaler and not step.closure:
        unscaled = any(isinstance(other.event, Unscale) for other in between)
        others_step = any(isinstance(other.event, Step) for other in between)
        if not unscaled and not others_step and not _some_unscaled(path):
            wrong = Problem("GCS310", "step", step, item.owner, (backward,))
    elif step.scaler and not backward.scaled and _knows_scaling(before):
        wrong = Problem("GCS310", "unscaled-backward", step, item.owner, (backward,))
    return (wrong, _twice(path, index))


def _some_unscaled(path: Path) -> bool:
    return any(isinstance(other.event, Backward) and not other.event.scaled for other in path)


def _knows_scaling(before: Sequence[Occurrence]) -> bool:
    """Tell whether each backward is of a value that is seen to be made without the scaler."""
    return all(
        bool(other.event.values)
        and isinstance(other.event.node, cst.Call)
        and isinstance(other.event.node.func, cst.Attribute)
        and isinstance(other.event.node.func.value, cst.Name)
        and not any(_is_scaled_elsewhere(value.node) for value in other.event.values)
        for other in before
        if isinstance(other.event, Backward)
    )


def _is_scaled_elsewhere(node: cst.CSTNode | None) -> bool:
    if isinstance(node, cst.Call):
        return "scale" in (dotted_name(node.func) or "scale")
    return not isinstance(node, (cst.BinaryOperation,))


def _twice(path: Path, index: int) -> Problem | None:
    """Judge a scaled step or an unscaling: is there an update since the last one?"""
    item = path[index]
    event = item.event
    scaler = event.scaler if isinstance(event, (Step, Unscale)) else frozenset()
    if not scaler:
        return None
    values = event.values if isinstance(event, (Step, Unscale)) else frozenset()
    for other in reversed(path[:index]):
        if other.is_unclear or isinstance(other.event, ScalerUpdate):
            return None
        if isinstance(other.event, (Step, Unscale)) and same(
            other, other.event.values, item, values
        ):
            is_step = isinstance(event, Step)
            if is_step and isinstance(other.event, Unscale):
                continue
            kind = "no-update" if is_step else "unscale-twice"
            if not is_step and isinstance(other.event, Step):
                kind = "unscale-after-step" if other.turn == item.turn else "no-update"
            blamed = other.event if kind == "no-update" else event
            owner = other.owner if kind == "no-update" else item.owner
            return Problem("GCS310", kind, blamed, owner, (other.event, event))
    return None


def judge_unscale(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    if path[index].turn != unit.turn:
        return ()
    return (_twice(path, index),)
