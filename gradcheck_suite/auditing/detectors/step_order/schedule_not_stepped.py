"""Schedulers that were made, and that nothing has stepped while their optimizer went on.

A short run of a program that steps its schedule now and then, or at the end of an epoch, never
comes to that line. Where the source has such a line, for the name that the scheduler was given, the
schedule was not reached; where it has none, it was forgotten.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_files_with
from gradcheck_suite.auditing.events import SchedulerConstructed, SchedulerStepped, SessionEnded
from gradcheck_suite.auditing.source_analysis.source import name_given_at
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch.optim import Optimizer  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.accumulation_windows import (  # noqa: TC004 - as above
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ScheduleNotSteppedDetector"]

_FEWEST = 2
"""Steps of the optimizer that a schedule has missed. Chosen: after the first one it was due."""


@dataclass(slots=True)
class _Made:
    """A scheduler that was not stepped so far.

    Attributes:
        reference: the scheduler.
        optimizer: whose rates it would set.
        kinds: the classes of both.
        window: of the optimizer, which counts its steps.
        steps: how many it had finished when the scheduler was made.
        site: where it was made.
        others: whether another scheduler of the optimizer was stepped since.
    """

    reference: weakref.ref[Any]
    optimizer: weakref.ref[Optimizer]
    kinds: tuple[str, str]
    window: AccumulationWindow
    steps: int
    site: CallSite | None
    others: bool = False


class ScheduleNotSteppedDetector:
    """Reports schedule-not-stepped (GCS320)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._made: list[_Made] = []
        self._over = False

    def subscriptions(self) -> Subscriptions:
        """Follow each scheduler until it is stepped."""
        return {
            SchedulerConstructed: self._construct,
            SchedulerStepped: self._step,
            SessionEnded: self._end,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes them, once the program is over."""
        missed = {each.site: each for each in self._made if _missed(each) >= _FEWEST}
        return [_finding(each) for each in missed.values()] if self._over else []

    def _construct(self, event: SchedulerConstructed) -> None:
        parts = {id(each) for each in event.parts}
        self._made = [each for each in self._made if id(each.reference()) not in parts]
        window = self._windows.of(event.optimizer)
        kinds = (type(event.scheduler).__name__, type(event.optimizer).__name__)
        self._made.append(
            _Made(
                weakref.ref(event.scheduler),
                weakref.ref(event.optimizer),
                kinds,
                window,
                window.steps,
                event.site,
            )
        )

    def _step(self, event: SchedulerStepped) -> None:
        for each in self._made:
            each.others = each.others or each.optimizer() is event.optimizer
        self._made = [each for each in self._made if each.reference() is not event.scheduler]

    def _end(self, event: SessionEnded) -> None:
        self._over = event.error is None


def _missed(made: _Made) -> int:
    return made.window.steps - made.steps


def _finding(made: _Made) -> Finding:
    scheduler, optimizer = made.kinds
    where = location_of(made.site)
    name = None if where is None else name_given_at(where.path, where.line)
    doubts = []
    if name is None:
        doubts.append("what the program calls it is not known")
    elif user_files_with(f"{name}.step("):
        doubts.append(f"the source has `{name}.step(`, where this run did not come")
    if made.others:
        doubts.append("another scheduler of this optimizer was stepped")
    return Finding.of(
        catalogue.SCHEDULE_NOT_STEPPED,
        f"{scheduler} was made and never stepped, while its {optimizer} took {_missed(made)} "
        "steps: the learning rate stayed where the schedule begins; expected `step()` after each "
        "step, or each epoch",
        detector="audit",
        location=where,
        doubts=doubts,
        hint=f"call {name or 'scheduler'}.step() after optimizer.step(), or at the end of an epoch",
        evidence={"scheduler": scheduler, "optimizer": optimizer, "steps": _missed(made)},
    )
