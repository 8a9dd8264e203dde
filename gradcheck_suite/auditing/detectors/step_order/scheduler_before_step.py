"""Schedulers that step before their optimizer does, or more often.

Told when the scheduler comes round again on the same line and its optimizer has stepped by then:
the first value is never used. One that steps for each micro-batch steps several times for each
step of its optimizer, with a backward before each. One that is wound forward on resuming steps
before training, as torch warns too: a note. One that is given the epoch (``scheduler.step(epoch)``)
sets a value and does not advance; one that watches a metric has no order to keep.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import step_was_called
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import ScalerStepped, SchedulerStepped
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["SchedulerBeforeStepDetector"]


_ENOUGH = 3
"""Steps of an optimizer, each with several of its scheduler, before that is told. Chosen: the first
may differ, and a last one come of what an epoch leaves over."""


@dataclass(slots=True)
class _Seen:
    """What a scheduler has done.

    Attributes:
        scheduler: its class.
        optimizer: the class of its optimizer.
        site: where it stepped first.
        early: whether that was before any step of its optimizer.
        left_out: whether a scaler had left steps of its optimizer out by then.
        comes_round: whether it stepped again on that line, after its optimizer.
        steps: how many steps its optimizer had taken at its last.
        backwards: how many backwards had begun by then.
        in_a_row: how many have come since its optimizer's last step, a backward before each.
        repeated: in how many of its optimizer's steps there were several of these.
        most: how many, at most.
        single: in how many there was one.
        beside: how many steps another optimizer has taken while its own took none.
        heirs: the steps, when its own last took one, of the optimizers that own some of the same
            parameters.
        inherited: how many they have taken since.
        idle: how often it has stepped since, a step of theirs before each.
    """

    scheduler: str
    optimizer: str
    site: CallSite | None
    early: bool
    left_out: bool
    comes_round: bool = False
    steps: int = 0
    backwards: int = 0
    in_a_row: int = 1
    repeated: int = 0
    most: int = 1
    single: int = 0
    beside: int = 0
    heirs: int = 0
    inherited: int = 0
    idle: int = 0


class SchedulerBeforeStepDetector:
    """Reports scheduler-before-step (GCS306)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
        self._all: list[_Seen] = []
        self._attempted: set[int] = set()

    def subscriptions(self) -> Subscriptions:
        """Compare a scheduler's steps with its optimizer's."""
        return {SchedulerStepped: self._step, ScalerStepped: self._attempt}

    def _attempt(self, event: ScalerStepped) -> None:
        if not event.stepped and not self._windows.of(event.optimizer).steps:
            self._attempted.add(id(event.optimizer))

    def _step(self, event: SchedulerStepped) -> None:
        scheduler, optimizer = event.scheduler, event.optimizer
        if optimizer is None or isinstance(scheduler, ReduceLROnPlateau):
            return
        window = self._windows.of(optimizer)
        backwards = self._recorder.state.backwards
        seen = self._seen.get(scheduler)
        if seen is None:
            early = (
                window.steps == 0
                # A step that torch.compile has compiled is seen by torch's own note of it alone.
                and not step_was_called(optimizer)
                and window.constructed_at is not None
                and (
                    isinstance(scheduler, ChainedScheduler)  # it counts nothing itself
                    or getattr(scheduler, "last_epoch", None) == 1
                )
            )
            names = (type(scheduler).__name__, type(optimizer).__name__)
            left_out = id(optimizer) in self._attempted
            seen = self._seen[scheduler] = _Seen(*names, event.site, early, left_out)
            self._all.append(seen)
        elif seen.site == event.site:
            seen.comes_round = seen.comes_round or (seen.steps == 0 < window.steps)
            if window.steps != seen.steps:
                seen.repeated += seen.in_a_row > 1
                seen.single += seen.in_a_row == 1
                seen.most = max(seen.most, seen.in_a_row)
                seen.in_a_row = 1
            elif backwards > seen.backwards:
                seen.in_a_row += 1
        self._look_for_heirs(seen, window)
        seen.steps, seen.backwards = window.steps, backwards
        if seen.early and not window.steps:
            seen.beside = max(each.steps for each in self._windows.all())

    def _look_for_heirs(self, seen: _Seen, window: AccumulationWindow) -> None:
        """Count the steps of optimizers that have taken this one's place, if any have."""
        taken = sum(
            each.steps
            for each in self._windows.all()
            if each is not window
            and not each.ids.isdisjoint(window.ids)
            and _groups_of(each).isdisjoint(_groups_of(window))
        )
        if window.steps != seen.steps:
            seen.heirs, seen.inherited, seen.idle = taken, 0, 0
        elif taken - seen.heirs > seen.inherited:
            seen.inherited = taken - seen.heirs
            seen.idle += 1

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        found: dict[CallSite | None, Finding] = {}
        for seen in self._all:
            if seen.repeated >= _ENOUGH and seen.repeated > seen.single:
                found.setdefault(seen.site, _each_micro_batch(seen))
            elif (seen.steps or not seen.early) and seen.idle >= _ENOUGH:
                found.setdefault(seen.site, _of_the_old_one(seen))
            elif seen.early and not seen.steps and seen.beside >= _ENOUGH:
                found.setdefault(seen.site, _of_another(seen))
            elif seen.early:
                found.setdefault(seen.site, _before(seen))
        return list(found.values())


def _groups_of(window: AccumulationWindow) -> set[int]:
    """Return the identities of the groups, from which rates are read."""
    optimizer = window.optimizer()
    return set() if optimizer is None else set(map(id, optimizer.param_groups))


def _before(seen: _Seen) -> Finding:
    doubts = []
    if seen.left_out:
        doubts.append("a GradScaler had left out the optimizer's first steps")
    if not seen.comes_round:
        doubts.append("it did not come before the optimizer's step again")
    return Finding.of(
        catalogue.SCHEDULER_BEFORE_STEP,
        f"{seen.scheduler}.step() ran before the first {seen.optimizer}.step(): the first learning "
        "rate of the schedule was never used and every later one comes a step early; "
        "expected the optimizer to step first",
        detector="audit",
        doubts=doubts,
        location=location_of(seen.site),
        hint="call scheduler.step() after optimizer.step()",
        evidence={"scheduler": seen.scheduler, "optimizer": seen.optimizer},
    )


def _of_another(seen: _Seen) -> Finding:
    return Finding.of(
        catalogue.SCHEDULER_BEFORE_STEP,
        f"{seen.scheduler}.step() schedules a {seen.optimizer} that never stepped, while another "
        f"optimizer took {seen.beside} steps at the rate it was made with; expected the scheduler "
        "to be made with the optimizer that steps",
        detector="audit",
        location=location_of(seen.site),
        hint="make the scheduler anew whenever the optimizer is",
        evidence={"scheduler": seen.scheduler, "optimizer": seen.optimizer, "count": seen.beside},
    )


def _of_the_old_one(seen: _Seen) -> Finding:
    what = f"{seen.scheduler}.step() schedules a {seen.optimizer} that takes no steps itself"
    hint = "what wraps an optimizer has its groups anew after load_state_dict()"
    if seen.steps:
        what = f"{seen.scheduler}.step() still schedules a {seen.optimizer} that steps no more"
        hint = "make the scheduler anew whenever the optimizer is"
    return Finding.of(
        catalogue.SCHEDULER_BEFORE_STEP,
        f"{what}: another optimizer, which owns its parameters, took the last {seen.inherited} "
        "steps, at the rate of its own groups, that nothing changes; expected the scheduler of the "
        "optimizer that steps",
        detector="audit",
        location=location_of(seen.site),
        hint=hint,
        evidence={
            "scheduler": seen.scheduler,
            "optimizer": seen.optimizer,
            "count": seen.inherited,
        },
    )


def _each_micro_batch(seen: _Seen) -> Finding:
    return Finding.of(
        catalogue.SCHEDULER_BEFORE_STEP,
        f"{seen.scheduler}.step() ran up to {seen.most} times for each {seen.optimizer}.step(), a "
        "backward() before each, as for micro-batches: its schedule runs so many times faster; "
        "expected it once for each step of the optimizer, after it",
        detector="audit",
        # Torch, too, warns of one that begins before its optimizer.
        doubts=[] if seen.early else ["a schedule may be counted in micro-batches on purpose"],
        location=location_of(seen.site),
        hint="call scheduler.step() right after optimizer.step(), not for each micro-batch",
        evidence={
            "scheduler": seen.scheduler,
            "optimizer": seen.optimizer,
            "most": seen.most,
            "count": seen.repeated,
        },
    )
