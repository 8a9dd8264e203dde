"""Schedulers that step before their optimizer does: the first value is never used.

Told when the scheduler comes round again on the same line and its optimizer has stepped by then.
A scheduler that is wound forward on resuming steps several times before training; one that is
given the epoch (``scheduler.step(epoch)``) sets a value and does not advance; one that watches a
metric has no order to keep.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import ScalerStepped, SchedulerStepped
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["SchedulerBeforeStepDetector"]


@dataclass(slots=True)
class _Seen:
    """A scheduler's first step came at ``site``, before any of its optimizer's."""

    site: CallSite | None
    early: bool
    told: bool = False


class SchedulerBeforeStepDetector:
    """Reports scheduler-before-step (GCS306)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
        self._attempted: set[int] = set()
        self._found: dict[object, tuple[str, str, CallSite | None]] = {}

    def subscriptions(self) -> Subscriptions:
        """Compare a scheduler's first step with its optimizer's."""
        return {SchedulerStepped: self._step, ScalerStepped: self._attempt}

    def _attempt(self, event: ScalerStepped) -> None:
        if not event.stepped and not self._windows.of(event.optimizer).steps:
            self._attempted.add(id(event.optimizer))

    def _step(self, event: SchedulerStepped) -> None:
        scheduler, optimizer = event.scheduler, event.optimizer
        if optimizer is None or isinstance(scheduler, ReduceLROnPlateau):
            return
        window = self._windows.of(optimizer)
        seen = self._seen.get(scheduler)
        if seen is None:
            early = (
                window.steps == 0
                and window.constructed_at is not None
                and id(optimizer) not in self._attempted
                and (
                    isinstance(scheduler, ChainedScheduler)  # it counts nothing itself
                    or getattr(scheduler, "last_epoch", None) == 1
                )
            )
            self._seen[scheduler] = _Seen(event.site, early)
        elif seen.early and not seen.told:
            seen.early = window.steps > 0
            seen.told = seen.early and seen.site == event.site
            if seen.told:
                names = (type(scheduler).__name__, type(optimizer).__name__)
                self._found[seen.site] = (*names, seen.site)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return [
            Finding.of(
                catalogue.SCHEDULER_BEFORE_STEP,
                f"{scheduler}.step() ran before the first {optimizer}.step(): the first learning "
                "rate of the schedule was never used and every later one comes a step early; "
                "expected the optimizer to step first",
                detector="audit",
                location=location_of(site),
                hint="call scheduler.step() after optimizer.step()",
                evidence={"scheduler": scheduler, "optimizer": optimizer},
            )
            for scheduler, optimizer, site in self._found.values()
        ]
