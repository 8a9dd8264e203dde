"""Closures whose evaluations add up: nothing clears the gradients in between.

``LBFGS.step(closure)`` evaluates the closure at several points and needs the gradient at each. A
``zero_grad()`` before the step clears for the first of them alone. LBFGS counts its evaluations in
its state: as many backwards or more, in a step in which nothing was cleared after the first, have
added to one another. One evaluation may run a backward for each of several parts of the loss. Where
a step begins with the gradients of the one before, nothing clears them at all: that is
``missing_zero_grad``'s to tell.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.optim import LBFGS, Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["ClosureWithoutZeroGradDetector"]

_ENOUGH = 2
"""Steps of which it is told. Chosen: the least that shows it goes on."""


@dataclass(slots=True)
class _Inside:
    """A step that is running.

    Attributes:
        optimizer: whose step.
        evaluations: how many there were before it.
        backwards: how many there were in it.
        leftover: whether the first found gradients of the step before.
        cleared: whether one after the first found no gradient but zeros.
        site: where the last was.
    """

    optimizer: weakref.ref[LBFGS]
    evaluations: int
    backwards: int = 0
    leftover: bool = False
    cleared: bool = False
    site: CallSite | None = None


class ClosureWithoutZeroGradDetector:
    """Reports missing-zero-grad (GCS301) inside of a step."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._inside: _Inside | None = None
        self._seen: Occurrences[object, tuple[CallSite | None, CallSite | None, int, int]] = (
            Occurrences()
        )

    def subscriptions(self) -> Subscriptions:
        """Look at the backwards of each step of LBFGS."""
        return {
            StepStarted: self._begin_step,
            BackwardStarted: self._begin_backward,
            BackwardFinished: self._end_backward,
            StepFinished: self._end_step,
        }

    def _begin_step(self, event: StepStarted) -> Attention | None:
        self._inside = None
        if type(event.optimizer) is not LBFGS:
            others = any(type(each) is LBFGS for each in self._optimizers.known())
            return None if others else Attention.ASLEEP
        self._inside = _Inside(weakref.ref(event.optimizer), _evaluations(event.optimizer))
        return Attention.AWAKE

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        inside = self._inside
        if inside is None:
            return Attention.ASLEEP
        if event.accumulates and not (inside.cleared or inside.leftover):
            optimizer = inside.optimizer()
            parameters = () if optimizer is None else optimizer.param_groups[0]["params"]
            has_gradients = any(is_nonzero(each.grad) for each in parameters)
            inside.leftover = has_gradients and not inside.backwards
            inside.cleared = not has_gradients and bool(inside.backwards)
        return None

    def _end_backward(self, event: BackwardFinished) -> Attention | None:
        inside = self._inside
        if inside is None:
            return Attention.ASLEEP
        if event.created or event.accumulated:
            inside.backwards += 1
            inside.site = event.site
        return None

    def _end_step(self, event: StepFinished) -> Attention | None:
        inside, self._inside = self._inside, None
        if inside is None:
            return Attention.ASLEEP
        if inside.optimizer() is not event.optimizer or inside.cleared or inside.leftover:
            return None
        evaluations = _evaluations(event.optimizer) - inside.evaluations
        if inside.backwards >= evaluations > 1:
            site = inside.site
            self._seen.note(
                (event.site, site), lambda: (event.site, site, event.number, evaluations)
            )
        return None

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return self._seen.findings(_finding, least=_ENOUGH)


def _evaluations(optimizer: Optimizer) -> int:
    """Return how often LBFGS has evaluated a closure by now."""
    parameters = optimizer.param_groups[0]["params"]
    state = optimizer.state.get(parameters[0]) if parameters else None
    count = state.get("func_evals") if state else None
    if isinstance(count, torch.Tensor):
        return 0
    return count if isinstance(count, int) else 0


def _finding(first: tuple[CallSite | None, CallSite | None, int, int], count: int) -> Finding:
    step, backward = location_of(first[0]), location_of(first[1])
    return Finding.of(
        catalogue.MISSING_ZERO_GRAD,
        "each evaluation of the closure of LBFGS.step() added to the gradients of those before it "
        f"({first[3]} evaluations in step {first[2]}), in {count} steps: nothing cleared them in "
        "between; it needs the gradient at each point alone; expected zero_grad() in the closure",
        detector="audit",
        severity=Severity.WARNING,
        location=backward or step,
        related=related((step, "this step called the closure"), apart_from=backward or step),
        hint="call optimizer.zero_grad() in the closure, before its backward()",
        evidence={"count": count, "step": first[2], "evaluations": first[3]},
    )
