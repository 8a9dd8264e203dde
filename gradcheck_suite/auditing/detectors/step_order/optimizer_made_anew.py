"""Optimizers that are made anew for each step, and begin each time without their state.

The moments of Adam, momentum and the number of steps live in the optimizer. One that is made in the
function that takes a step forgets them with each: Adam then moves every weight by the rate whatever
the size of its gradient. Whoever adapts a model to one example and puts its weights back makes one
for each on purpose.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    Attention,
    OptimizerConstructed,
    StepFinished,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["OptimizerMadeAnewDetector"]

_ENOUGH = 4
"""Optimizers in a row, each of one step, before it is told. Chosen: rounds and folds of one step
each are few, if there are any."""


@dataclass(slots=True)
class _Line:
    """The optimizers that one line has made for the same parameters.

    Attributes:
        site: the line.
        parameter: the first of their parameters.
        last: the latest of them.
        kind: its class.
        steps: how many it has taken.
        in_a_row: how many before it took one each, with a state that was lost with them.
        rewritten: whether the parameters were written to between them.
        stepped_at: the number of the last write before the end of its last step.
        stepped: where that step was.
        keeps_state: whether it left a state.
    """

    site: CallSite | None
    parameter: weakref.ref[Tensor]
    last: weakref.ref[Optimizer]
    kind: str
    steps: int = 0
    in_a_row: int = 0
    rewritten: bool = False
    stepped_at: int = -1
    stepped: CallSite | None = None
    keeps_state: bool = False


class OptimizerMadeAnewDetector:
    """Reports optimizer-made-anew (GCS319)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines: dict[CallSite | None, _Line] = {}
        self._found: dict[CallSite | None, _Line] = {}

    def subscriptions(self) -> Subscriptions:
        """Follow the lines that make optimizers, once one makes a second for the same weights."""
        return {
            OptimizerConstructed: self._construct,
            StepFinished: self._end_step,
            WatchResumed: self._resume,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes them."""
        return [_finding(line) for line in self._found.values()]

    def _resume(self, _event: WatchResumed) -> None:
        self._lines.clear()

    def _construct(self, event: OptimizerConstructed) -> Attention | None:
        parameters = parameters_of(event.optimizer)
        if not parameters or event.site is None:
            return None
        first = parameters[0]
        line = self._lines.get(event.site)
        kind = type(event.optimizer).__name__
        if line is None or line.parameter() is not first or line.kind != kind:
            self._lines[event.site] = _Line(
                event.site, weakref.ref(first), weakref.ref(event.optimizer), kind
            )
            return Attention.AWAKE
        is_lost = line.steps == 1 and line.keeps_state
        line.in_a_row = line.in_a_row + 1 if is_lost else 0
        written = self._recorder.write_log.since(line.stepped_at, first) if is_lost else []
        line.rewritten = line.rewritten or bool(written)
        line.last, line.steps = weakref.ref(event.optimizer), 0
        if line.in_a_row >= _ENOUGH:
            self._found[event.site] = line
        return Attention.AWAKE

    def _end_step(self, event: StepFinished) -> Attention | None:
        for line in self._lines.values():
            if line.last() is event.optimizer:
                line.steps += 1
                line.stepped_at, line.stepped = self._recorder.write_log.latest, event.site
                line.keeps_state = any(event.optimizer.state.values())
                if line.steps > 1:
                    break
                return None
        # One that has stepped twice is made for longer; it is looked at again when another is made.
        return Attention.ASLEEP


def _finding(line: _Line) -> Finding:
    where = location_of(line.site)
    count = line.in_a_row + 1
    return Finding.of(
        catalogue.OPTIMIZER_MADE_ANEW,
        f"{line.kind} is made anew for each step, {count} times for the same parameters: what it "
        "keeps between steps (moments, momentum, their number) is lost with each; expected one "
        "that is made before the loop",
        detector="audit",
        location=where,
        doubts=["the parameters were written to in between, as where each begins from the same"]
        if line.rewritten
        else [],
        related=related((location_of(line.stepped), "its only step"), apart_from=where),
        hint="make the optimizer once, and hand it to what takes the step",
        evidence={"count": count, "optimizer": line.kind},
    )
