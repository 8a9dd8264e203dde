"""A loss whose gradient is counted twice: two backwards from it before one step.

The second backward over one graph needs ``retain_graph=True`` in the first. Two losses over a
shared part ask for it rightly, and one loss that is a part of the other may be meant to weigh more.
Here both backwards start from the same tensor, and what the second left in ``.grad`` is exactly
twice what the first had; the step then uses that, and so again in a later step. Who takes the
gradients away in between, rescales them afterwards or gives each backward other inputs does
nothing of the kind.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    GradientsClipped,
    GraphKept,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["RetainGraphDetector"]

_LOOKED_AT = 8
"""Backwards among which one has to keep its graph, or the detector sleeps until one does. A bound
on cost; the first that keeps its graph wakes it."""

_MOST_GRADIENTS = 8
"""Gradients that are compared. A bound on cost: a loss counted twice doubles each of them."""

_SAMPLED = 256
"""Elements of each gradient that are compared, from all over it. A bound on cost: twice, to 5
digits, in hundreds of elements of 8 gradients is no accident."""

_ENOUGH = 2
"""Steps that have used doubled gradients before it is told. Chosen: the least that shows it goes
on; a single one may be an experiment or a measurement."""


@dataclass(slots=True)
class _Gradient:
    """A parameter, its gradient, the gradient's version, and some of its elements."""

    parameter: weakref.ref[torch.Tensor]
    gradient: weakref.ref[torch.Tensor]
    version: int
    sample: torch.Tensor

    def current(self) -> Tensor | None:
        """Return the gradient, if the parameter has it still."""
        parameter, gradient = self.parameter(), self.gradient()
        kept = parameter is not None and gradient is not None and parameter.grad is gradient
        return gradient if kept else None

    def is_untouched(self) -> bool:
        """Return whether nobody has cleared it, replaced it or written to it."""
        gradient = self.current()
        return gradient is not None and version_of(gradient) == self.version


@dataclass(slots=True)
class _First:
    """A backward that has kept its graph; once doubled, also the backward that went there again."""

    root: weakref.ref[torch.Tensor]
    site: CallSite | None
    gradients: list[_Gradient]
    again: CallSite | None = None


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    first: CallSite | None
    second: CallSite | None


class RetainGraphDetector:
    """Reports retain-graph (GCS203) of a graph that was kept to be gone through twice in vain."""

    def __init__(self) -> None:
        self._any_kept = False
        self._root: weakref.ref[torch.Tensor] | None = None
        self._first: _First | None = None
        self._is_second = False
        self._doubled: _First | None = None
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow graphs that are kept, from backward to step."""
        return {
            BackwardStarted: self._before_backward,
            BackwardFinished: self._after_backward,
            GraphKept: self._keep,
            GradientsClipped: self._clip,
            StepStarted: self._begin_step,
            WatchResumed: self._begin_anew,
        }

    def is_following(self) -> bool:
        """Return whether a loss may be gone through again."""
        return self._any_kept and (self._first is not None or self._doubled is not None)

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of lines."""
        return self._occurrences.findings(_finding, least=_ENOUGH)

    def _begin_anew(self, _event: WatchResumed) -> None:
        self._first = self._doubled = None

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if not self._any_kept and event.number >= _LOOKED_AT:
            return Attention.ASLEEP
        self._root = None
        first, self._is_second = self._first, False
        if not event.accumulates:
            return None
        self._doubled = None
        if len(event.roots) == 1 and event.roots[0].numel() == 1:
            self._root = weakref.ref(event.roots[0])
        if first is not None:
            same = self._root is not None and first.root() is event.roots[0]
            self._is_second = same and all(each.is_untouched() for each in first.gradients)
            self._first = first if self._is_second else None
        return None

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if not self._is_second:
            return None if self._any_kept or event.number < _LOOKED_AT else Attention.ASLEEP
        first, self._first, self._is_second = self._first, None, False
        if first is None or event.failed or event.creates_graph or ops_are_recorded():
            return None
        if without_user_modes(_all_are_doubled, first.gradients):
            first.again = event.site
            self._doubled = first
        return None

    def _keep(self, event: GraphKept) -> Attention | None:
        finished = event.finished
        self._any_kept = True
        if finished.created and not finished.creates_graph and not ops_are_recorded():
            gradients = without_user_modes(_gradients_of, finished.created)
            if self._root is not None and gradients:
                self._first = _First(self._root, finished.site, gradients)
        return Attention.AWAKE

    def _clip(self, _event: GradientsClipped) -> Attention | None:
        """Follow gradients through a clipping, which writes to each once."""
        if not self._any_kept:
            return Attention.ASLEEP
        for each in () if self._doubled is None else self._doubled.gradients:
            gradient = each.current()
            if gradient is not None and version_of(gradient) == each.version + 1:
                each.version += 1
        return None

    def _begin_step(self, event: StepStarted) -> Attention | None:
        doubled, self._first, self._doubled = self._doubled, None, None
        if doubled is None:
            return None if self._any_kept else Attention.ASLEEP
        owned = set(map(id, parameters_of(event.optimizer)))
        used = [each for each in doubled.gradients if id(each.parameter()) in owned]
        if used and all(each.is_untouched() for each in used):
            key = (doubled.site, doubled.again)
            name = type(event.optimizer).__name__
            self._occurrences.note(key, lambda: _Occurrence(name, *key))
        return None


def _gradients_of(parameters: tuple[Tensor, ...]) -> list[_Gradient]:
    """Return a few of the gradients, those that are dense and not all zero where looked at."""
    found: list[_Gradient] = []
    for parameter in parameters:
        gradient = parameter.grad
        if len(found) >= _MOST_GRADIENTS:
            break
        if (
            gradient is not None
            and (sample := sample_of(gradient, _SAMPLED)) is not None
            and sample.any()
        ):
            kept = weakref.ref(parameter), weakref.ref(gradient)
            found.append(_Gradient(*kept, version_of(gradient), sample))
    return found


def _all_are_doubled(gradients: list[_Gradient]) -> bool:
    """Return whether each gradient is now twice what it was, and take note of its version."""
    for each in gradients:
        gradient = each.current()
        now = None if gradient is None else sample_of(gradient, _SAMPLED)
        if gradient is None or now is None:
            return False
        # Some devices add in another order each time.
        if not torch.allclose(now, 2 * each.sample, rtol=1e-5, atol=0.0):
            return False
        each.version = version_of(gradient)
    return True


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    first, second = location_of(occurrence.first), location_of(occurrence.second)
    kept = (first, "the first backward() from this loss kept its graph")
    return Finding.of(
        catalogue.RETAIN_GRAPH,
        f"backward() went from one loss through its graph twice, and {occurrence.optimizer}.step() "
        f"used gradients that were exactly twice those of the loss, {count} times; "
        "expected one backward() from each loss",
        detector="audit",
        location=second,
        related=related(kept, apart_from=second),
        hint="leave out one of the two backward() calls, and retain_graph=True with it",
        evidence={"count": count, "optimizer": occurrence.optimizer},
    )
