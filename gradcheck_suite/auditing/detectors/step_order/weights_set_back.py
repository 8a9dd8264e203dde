"""Weights that are set back to what they were before the first step, again and again.

An average that is never updated is copied into the model for each checkpoint, or the pretrained
state is loaded inside of the loop: each time, training begins anew, while the moments of the
optimizer go on. Some elements of the largest parameter of each optimizer are taken down before its
first step. Where something has written to it since the last step, by the time that a state is given
out or loaded or the mode is set, they are compared, and again at the next step. Where tasks are
adapted to one after the other, the optimizer is another, or its state is put back as well.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_sites
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    ModeChanged,
    OptimizerConstructed,
    OptimizerStateLoaded,
    StateLoaded,
    StateTaken,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.source_analysis.source import line_that_led_to
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch.optim import Optimizer  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["WeightsSetBackDetector"]

_MOST = 4
"""Optimizers that are followed. A bound on cost."""
_SAMPLED = 64
"""Elements by which the beginning is known. A bound on cost."""
_MOST_LOOKS = 64
"""Comparisons for one optimizer. A bound on cost: each waits for a GPU."""
_ENOUGH = 2
"""Times that training went on from the beginning. Chosen: once may be on purpose, as after a search
for a learning rate."""


@dataclass(slots=True)
class _Followed:
    """An optimizer, and the beginning of one of its parameters.

    Attributes:
        optimizer: which.
        parameter: the largest.
        beginning: elements of it before the first step.
        sequence: when it was looked at last.
        looks: how often it was compared.
        times: how often a step began from there again.
        suspected: where it was written, and the lines that ran, if it has the beginning now.
        first: the same of the first time.
    """

    optimizer: weakref.ref[Optimizer]
    kind: str
    parameter: weakref.ref[Tensor]
    beginning: Tensor
    sequence: int
    looks: int = 0
    times: int = 0
    suspected: tuple[CallSite | None, tuple[CallSite, ...]] | None = None
    first: tuple[CallSite | None, tuple[CallSite, ...]] | None = None
    is_put_back: bool = False

    def is_at_beginning(self) -> bool:
        """Return whether the parameter has the elements of the beginning."""
        parameter = self.parameter()
        now = None if parameter is None else sample_of(parameter, _SAMPLED)
        same_kind = now is not None and now.device == self.beginning.device
        return same_kind and now is not None and torch.equal(now, self.beginning)

    def keeps_moments(self) -> bool:
        """Return whether the optimizer has moments of the parameter."""
        optimizer, parameter = self.optimizer(), self.parameter()
        if optimizer is None or parameter is None:
            return False
        state = optimizer.state.get(parameter, {})
        return any(isinstance(each, Tensor) and each.dim() > 0 for each in state.values())


class WeightsSetBackDetector:
    """Reports weights-not-restored (GCS316) of weights that are set back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._followed: list[_Followed] = []
        self._seen: set[int] = set()

    def subscriptions(self) -> Subscriptions:
        """Look before the first step, when weights may have been set, and at the step after it."""
        return {
            OptimizerConstructed: self._wake,
            StepStarted: self._begin_step,
            ModeChanged: self._look,
            StateTaken: self._look,
            StateLoaded: self._look,
            OptimizerStateLoaded: self._put_back,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer."""
        return [_finding(each) for each in self._followed if each.times >= _ENOUGH and each.first]

    def _wake(self, _event: OptimizerConstructed) -> Attention:
        return Attention.AWAKE

    def _put_back(self, event: OptimizerStateLoaded) -> None:
        for each in self._followed:
            each.is_put_back = each.is_put_back or each.optimizer() is event.optimizer

    def _begin_step(self, event: StepStarted) -> Attention | None:
        for each in self._followed:
            if each.suspected is not None and each.optimizer() is event.optimizer:
                if without_user_modes(each.is_at_beginning) and each.keeps_moments():
                    each.times += 1
                    each.first = each.first or each.suspected
                each.suspected = None
        number = self._recorder.optimizers.number_of(event.optimizer)
        if number not in self._seen and len(self._followed) < _MOST:
            self._seen.add(number)
            if not ops_are_recorded():
                without_user_modes(self._follow, event.optimizer)
        is_waiting = any(each.suspected is not None for each in self._followed)
        return None if is_waiting else Attention.ASLEEP

    def _follow(self, optimizer: Optimizer) -> None:
        parameter = max(parameters_of(optimizer), key=torch.Tensor.numel, default=None)
        if parameter is None:
            return
        beginning = sample_of(parameter, _SAMPLED)
        if beginning is not None and bool((beginning != beginning[0]).any()):
            kind = type(optimizer).__name__
            now = self._recorder.state.clock.tick()
            self._followed.append(
                _Followed(weakref.ref(optimizer), kind, weakref.ref(parameter), beginning, now)
            )

    def _look(self, _event: ModeChanged | StateTaken | StateLoaded) -> Attention | None:
        """Look whether something has set a parameter to its beginning since the last look."""
        for each in self._followed:
            parameter = each.parameter()
            if parameter is None or each.is_put_back or each.looks >= _MOST_LOOKS:
                continue
            writes = self._recorder.write_log.since(each.sequence, parameter)
            if not writes or ops_are_recorded():
                continue
            each.sequence = self._recorder.state.clock.tick()
            each.looks += 1
            if without_user_modes(each.is_at_beginning):
                each.suspected = each.suspected or (writes[-1].site, user_sites()[0])
        is_waiting = any(each.suspected is not None for each in self._followed)
        return Attention.AWAKE if is_waiting else None


def _finding(known: _Followed) -> Finding:
    written, running = known.first or (None, ())
    wrote = location_of(written)
    where = line_that_led_to(written, running)
    return Finding.of(
        catalogue.WEIGHTS_NOT_RESTORED,
        f"a weight of {known.kind} was set back to what it had been before the first step, "
        f"{plural(known.times, 'time')}, and training went on from there with the moments of "
        "before: what the steps in between had trained is lost; expected the weights that were "
        "trained to be put back, or none to be set",
        detector="audit",
        location=where,
        related=related((wrote, "written here"), apart_from=where),
        hint="keep the trained weights before others are copied into the model, and put them back",
        evidence={"count": known.times, "optimizer": known.kind},
    )
