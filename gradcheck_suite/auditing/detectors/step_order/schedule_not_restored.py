"""Schedules that begin anew on an optimizer which was restored.

A checkpoint has the state of the optimizer and not that of its scheduler. The optimizer is given
the learning rate at which it had stopped, and at its first step the scheduler, which stands at its
beginning, replaces it: the warm-up and the highest rates come a second time. That a schedule had
been running shows in the restored groups: their rates are not those that they began with. One that
is wound forward, or was given its own state, does not stand at its beginning; one that multiplies
the rate it finds goes on from where it was.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import OptimizerStateLoaded, SchedulerStepped
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ScheduleNotRestoredDetector"]

_RAISED = 1.01
"""How far above the restored rate a schedule goes at least that has begun anew. Chosen: rates that
differ by rounding are the same."""


@dataclass(frozen=True, slots=True)
class _Restored:
    """A state that an optimizer was given.

    Attributes:
        site: where it was.
        rates: of its groups.
        steps: how many steps the optimizer had finished by then.
    """

    site: CallSite | None
    rates: list[float]
    steps: int


@dataclass(frozen=True, slots=True)
class _Occurrence:
    loaded: CallSite | None
    site: CallSite | None
    scheduler: str
    optimizer: str
    restored: float
    replaced: float


class ScheduleNotRestoredDetector:
    """Reports schedule-not-restored (GCS317)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._restored: weakref.WeakKeyDictionary[Optimizer, _Restored] = (
            weakref.WeakKeyDictionary()
        )
        self._seen: Occurrences[CallSite | None, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at the first step of a scheduler whose optimizer was restored."""
        return {OptimizerStateLoaded: self._load, SchedulerStepped: self._step}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that restores an optimizer."""
        return self._seen.findings(_finding)

    def _load(self, event: OptimizerStateLoaded) -> None:
        optimizer = event.optimizer
        rates = _rates_of(optimizer)
        if any(
            began is not None and rate != began
            for rate, began in zip(rates, _rates_of(optimizer, "initial_lr"), strict=True)
        ):
            steps = self._windows.of(optimizer).steps
            self._restored[optimizer] = _Restored(
                event.site, [rate or 0.0 for rate in rates], steps
            )
        else:
            self._restored.pop(optimizer, None)

    def _step(self, event: SchedulerStepped) -> None:
        optimizer = event.optimizer
        if optimizer is None or not self._restored or optimizer not in self._restored:
            return
        restored = self._restored[optimizer]
        if self._windows.of(optimizer).steps == restored.steps:
            return  # It is being wound forward.
        del self._restored[optimizer]
        scheduler: Any = event.scheduler
        if getattr(scheduler, "last_epoch", None) != 1 or isinstance(scheduler, ReduceLROnPlateau):
            return
        pairs = zip(restored.rates, _rates_of(optimizer), strict=False)
        raised = next(((old, now) for old, now in pairs if now and now > old * _RAISED), None)
        if raised is None:
            return
        names = (type(scheduler).__name__, type(optimizer).__name__)
        self._seen.note(
            restored.site, lambda: _Occurrence(restored.site, event.site, *names, *raised)
        )


def _rates_of(optimizer: Optimizer, which: str = "lr") -> list[float | None]:
    """Return the rates of an optimizer's groups; None for one that is kept in a tensor."""
    rates = [group.get(which) for group in optimizer.param_groups]
    return [float(rate) if isinstance(rate, (int, float)) else None for rate in rates]


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
