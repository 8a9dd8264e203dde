"""Schedules that begin anew on an optimizer which was restored.

A checkpoint has the state of the optimizer and not that of its scheduler. The optimizer is given
the learning rate at which it had stopped, and at its first step the scheduler, which stands at its
beginning, replaces it: the warm-up and the highest rates come a second time. That a schedule had
been running shows in the restored groups: their rates are not those that they began with. One that
is wound forward, or was given its own state, does not stand at its beginning; one that multiplies
the rate it finds goes on from where it was.

A scheduler that is given its own state leaves the rates of the optimizer as they are, and the one
of its beginning stands there where its constructor has set it after the optimizer was restored, or
where the optimizer was not. Rates that the program has set itself are others.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import (
    Attention,
    OptimizerStateLoaded,
    SchedulerStateLoaded,
    SchedulerStepped,
    StepStarted,
)
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Schedule, Schedules  # noqa: TC004 - as above

__all__ = ["ScheduleNotRestoredDetector"]

_RAISED = 1.01
"""How far above the restored rate a schedule goes at least that has begun anew, and how far apart
two rates are that differ. Chosen: rates that differ by rounding are the same."""


@dataclass(frozen=True, slots=True)
class _Restored:
    """A state that an optimizer was given.

    Attributes:
        site: where it was.
        rates: of its groups.
        steps: how many steps the optimizer had finished by then.
        was_running: whether a schedule had been.
        made: the schedulers that there were by then.
    """

    site: CallSite | None
    rates: list[float | None]
    steps: int
    was_running: bool
    made: list[Schedule]


@dataclass(frozen=True, slots=True)
class _Occurrence:
    loaded: CallSite | None
    site: CallSite | None
    scheduler: str
    optimizer: str
    restored: float
    replaced: float


@dataclass(frozen=True, slots=True)
class _Given:
    """A state that a scheduler was given, until its optimizer steps.

    Attributes:
        scheduler: what was given it.
        optimizer: whose rates it sets.
        before: those that it had set itself until then.
        site: where it was given it.
    """

    scheduler: weakref.ref[Any]
    optimizer: weakref.ref[Optimizer]
    before: list[float | None]
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class _AtTheBeginning:
    """A step at the rate of the beginning of a schedule that was given its state.

    Attributes:
        loaded: where the scheduler was given it.
        site: where the step was taken.
        restored: where the optimizer was given its own, if it was.
        made: where the scheduler was made, if that was after it.
        scheduler: its class.
        optimizer: its class.
        said: the rate that the state of the scheduler has.
        rate: that of the step.
    """

    loaded: CallSite | None
    site: CallSite | None
    restored: CallSite | None
    made: CallSite | None
    scheduler: str
    optimizer: str
    said: float
    rate: float


class ScheduleNotRestoredDetector:
    """Reports schedule-not-restored (GCS317)."""

    def __init__(self, windows: AccumulationWindows, schedules: Schedules) -> None:
        self._windows = windows
        self._schedules = schedules
        self._restored: weakref.WeakKeyDictionary[Optimizer, _Restored] = (
            weakref.WeakKeyDictionary()
        )
        self._given: list[_Given] = []
        self._seen: Occurrences[CallSite | None, _Occurrence] = Occurrences()
        self._begun: Occurrences[CallSite | None, _AtTheBeginning] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at the first steps of a scheduler and of an optimizer that were restored."""
        return {
            OptimizerStateLoaded: self._load,
            SchedulerStateLoaded: self._give,
            SchedulerStepped: self._step,
            StepStarted: self._begin_step,
        }

    def is_following(self) -> bool:
        """Return whether a scheduler was given a state, and its optimizer has not stepped since."""
        return bool(self._given)

    def findings(self) -> list[Finding]:
        """Return one finding for each line that restores an optimizer or its scheduler."""
        return [*self._seen.findings(_finding), *self._begun.findings(_of_rates_left)]

    def _load(self, event: OptimizerStateLoaded) -> None:
        optimizer = event.optimizer
        rates = _rates_of(optimizer)
        was_running = any(
            began is not None and rate != began
            for rate, began in zip(rates, _rates_of(optimizer, "initial_lr"), strict=True)
        )
        steps = self._windows.of(optimizer).steps
        made = list(self._schedules.unstepped)
        self._restored[optimizer] = _Restored(event.site, rates, steps, was_running, made)

    def _give(self, event: SchedulerStateLoaded) -> Attention:
        references = weakref.ref(event.scheduler), weakref.ref(event.optimizer)
        self._given = [each for each in self._given if each.scheduler() is not event.scheduler]
        self._given.append(_Given(*references, _floats(event.before), event.site))
        return Attention.AWAKE

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not self._given:
            return Attention.ASLEEP
        optimizer = event.optimizer
        given = [each for each in self._given if each.optimizer() is optimizer]
        self._given = [
            each
            for each in self._given
            if each not in given and None not in (each.scheduler(), each.optimizer())
        ]
        if not given or len(given) < self._schedules.count_of(optimizer):
            return None  # What others set of the same rates, none of these can say.
        rates = _rates_of(optimizer)
        restored = self._restored.get(optimizer)
        if restored is not None and not _first_apart(restored.rates, rates):
            return None
        apart = [_apart_at_the_beginning(each, rates) for each in given]
        if apart[-1] is not None and None not in apart:
            self._note(given[-1], event, restored, apart[-1])
        return None

    def _note(
        self,
        given: _Given,
        event: StepStarted,
        restored: _Restored | None,
        rates: tuple[float, float],
    ) -> None:
        scheduler = given.scheduler()
        own = (each for each in self._schedules.unstepped if each.reference() is scheduler)
        made = next(own, None)
        was_made_later = made is not None and restored is not None and made not in restored.made
        self._begun.note(
            given.site,
            lambda: _AtTheBeginning(
                given.site,
                event.site,
                None if restored is None else restored.site,
                made.made_at if made is not None and was_made_later else None,
                type(scheduler).__name__,
                type(event.optimizer).__name__,
                *rates,
            ),
        )

    def _step(self, event: SchedulerStepped) -> None:
        optimizer = event.optimizer
        if self._given:
            self._given = [each for each in self._given if each.optimizer() is not optimizer]
        if optimizer is None or not self._restored or optimizer not in self._restored:
            return
        restored = self._restored[optimizer]
        if not restored.was_running or self._windows.of(optimizer).steps == restored.steps:
            return  # It is being wound forward.
        del self._restored[optimizer]
        scheduler: Any = event.scheduler
        if getattr(scheduler, "last_epoch", None) != 1 or isinstance(scheduler, ReduceLROnPlateau):
            return
        pairs = zip(restored.rates, _rates_of(optimizer), strict=False)
        raised = next(
            ((old or 0.0, now) for old, now in pairs if now and now > (old or 0.0) * _RAISED), None
        )
        if raised is None:
            return
        names = (type(scheduler).__name__, type(optimizer).__name__)
        self._seen.note(
            restored.site, lambda: _Occurrence(restored.site, event.site, *names, *raised)
        )


def _rates_of(optimizer: Optimizer, which: str = "lr") -> list[float | None]:
    """Return the rates of an optimizer's groups; None for one that is kept in a tensor."""
    return _floats(group.get(which) for group in optimizer.param_groups)


def _floats(rates: Iterable[object]) -> list[float | None]:
    return [float(rate) if isinstance(rate, (int, float)) else None for rate in rates]


def _first_apart(
    these: list[float | None], those: list[float | None]
) -> tuple[float, float] | None:
    """Return the first two rates at the same place that differ by more than rounding."""
    for one, other in zip(these, those, strict=False):
        if one is not None and other is not None and max(one, other) > min(one, other) * _RAISED:
            return one, other
    return None


def _apart_at_the_beginning(given: _Given, rates: list[float | None]) -> tuple[float, float] | None:
    """Return the rate of a scheduler's state, and that of its beginning, if it stands there."""
    if _first_apart(given.before, rates) is not None:
        return None
    return _first_apart(_floats(getattr(given.scheduler(), "_last_lr", ())), rates)


def _finding(first: _Occurrence, count: int) -> Finding:
    where = location_of(first.loaded)
    return Finding.of(
        catalogue.SCHEDULE_NOT_RESTORED,
        f"{first.optimizer} was restored at a learning rate of {first.restored:.4g}, and its "
        f"{first.scheduler}, which was not, began anew: its first step set it to "
        f"{first.replaced:.4g}; expected the schedule to go on from where it was",
        detector="audit",
        location=where,
        related=related(
            (location_of(first.site), "this step of the scheduler replaced the restored rate"),
            apart_from=where,
        ),
        hint="save scheduler.state_dict() in the checkpoint, and load it beside the optimizer's",
        evidence={
            "count": count,
            "scheduler": first.scheduler,
            "optimizer": first.optimizer,
            "restored": first.restored,
            "replaced": first.replaced,
        },
    )


def _of_rates_left(first: _AtTheBeginning, count: int) -> Finding:
    where = location_of(first.loaded)
    made = location_of(first.made)
    hint = "load the optimizer's state as well: a scheduler's leaves the rates of its groups"
    if first.restored is not None:
        hint = "make the scheduler first, and load the optimizer's state afterwards"
    return Finding.of(
        catalogue.SCHEDULE_NOT_RESTORED,
        f"{first.optimizer} steps at a learning rate of {first.rate:.4g}, where its "
        f"{first.scheduler} began, and the state that this was given says {first.said:.4g}: "
        "load_state_dict() of a scheduler leaves the rates of the optimizer as they are; expected "
        f"a step at {first.said:.4g}",
        detector="audit",
        location=where,
        related=related(
            (
                location_of(first.restored),
                "the optimizer was restored here"
                + (", and its rates with it" if made is not None else ""),
            ),
            (made, "the scheduler was made here, which set its first rate in place of those"),
            (location_of(first.site), "the step was taken here"),
            apart_from=where,
        ),
        hint=hint,
        evidence={
            "count": count,
            "scheduler": first.scheduler,
            "optimizer": first.optimizer,
            "of_the_state": first.said,
            "of_the_step": first.rate,
        },
    )
