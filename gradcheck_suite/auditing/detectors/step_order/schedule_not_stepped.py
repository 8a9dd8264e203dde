"""Schedulers that were made, and that nothing has stepped while their optimizer went on.

A short run of a program that steps its schedule now and then, or at the end of an epoch, never
comes to that line. Where the source has such a line, for the name that the scheduler was given, the
schedule was not reached; where it has none, it was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import location_of, user_files_with
from gradcheck_suite.auditing.events import Attention, SessionEnded, StepFinished
from gradcheck_suite.auditing.source_analysis.source import name_given_at
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Schedule, Schedules

__all__ = ["ScheduleNotSteppedDetector"]

_FEWEST = 2
"""Steps of the optimizer that a schedule has missed. Chosen: after the first one it was due."""


class ScheduleNotSteppedDetector:
    """Reports schedule-not-stepped (GCS320)."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._over = False

    def subscriptions(self) -> Subscriptions:
        """Count the steps that a scheduler has missed, until it is stepped."""
        return {StepFinished: self._end_step, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes them, once the program is over."""
        if not self._over:
            return []
        missed = {each.made_at: each for each in self._schedules.unstepped}
        return [self._finding(each) for each in missed.values() if each.missed >= _FEWEST]

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._schedules.unstepped:
            return Attention.ASLEEP
        for each in self._schedules.unstepped:
            each.missed += each.optimizer() is event.optimizer
        return None

    def _end(self, event: SessionEnded) -> None:
        self._over = event.error is None

    def _finding(self, made: Schedule) -> Finding:
        scheduler, optimizer = made.kinds
        where = location_of(made.made_at)
        name = None if where is None else name_given_at(where.path, where.line, scheduler)
        doubts = []
        if name is None:
            doubts.append("what the program calls it is not known")
        elif user_files_with(f"{name}.step("):
            doubts.append(f"the source has `{name}.step(`, where this run did not come")
        if any(each is made.optimizer for each in self._schedules.running):
            doubts.append("another scheduler of this optimizer was stepped")
        return Finding.of(
            catalogue.SCHEDULE_NOT_STEPPED,
            f"{scheduler} was made and never stepped, while its {optimizer} took {made.missed} "
            "steps: the learning rate stayed where the schedule begins; expected `step()` after "
            "each step, or each epoch",
            detector="audit",
            location=where,
            doubts=doubts,
            hint=f"call {name or 'scheduler'}.step() after optimizer.step(), or after each epoch",
            evidence={"scheduler": scheduler, "optimizer": optimizer, "steps": made.missed},
        )
