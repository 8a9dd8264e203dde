"""Gradients of another loss that are still there when an optimizer steps.

One backward fills the gradients of two optimizers, and the first of them steps: that loss was its
own. A backward on another line, which gives the first optimizer nothing new, then adds to what was
left to the second, and the second steps on the sum. A trunk that sums the losses of several heads,
each with an optimizer of its own, does this on purpose: there the later backward fills another
head. So does one that accumulates for longer than others: there the backward is the same line.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import Attention, BackwardStarted, StepFinished, StepStarted
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
        Fill,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["LeftoverGradientDetector"]

_ENOUGH = 2
"""Steps that applied a leftover before it is told. Chosen: the least that shows it goes on; what
happens once may be meant."""


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    other: str
    own: CallSite | None
    left: CallSite | None
    site: CallSite | None
    step: int


class _Leftover:
    """What a backward has left to an optimizer when another one, whose it was, had stepped."""

    __slots__ = ("fill", "other", "present")

    def __init__(self, fill: Fill, other: AccumulationWindow) -> None:
        self.fill = fill
        self.other = weakref.ref(other)
        self.present = False


class LeftoverGradientDetector:
    """Reports leftover-gradient (GCS309)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._left: weakref.WeakKeyDictionary[AccumulationWindow, _Leftover] = (
            weakref.WeakKeyDictionary()
        )
        self._any = False  # nearly always, and quicker to ask than the dictionary
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow what one optimizer's step leaves to the others."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            BackwardStarted: self._before_backward,
        }

    def _end_step(self, _event: StepFinished) -> Attention | None:
        if self._windows.is_alone():
            return Attention.ASLEEP
        windows = self._windows.all()
        stepped = self._windows.stepped
        self._left.pop(stepped, None)
        summary = stepped.summary
        if summary is None or not summary.fills:
            return None
        own = {fill.number for fill in summary.fills}
        for window in windows:
            if window is not stepped and window.fills and window not in self._left:
                last = window.fills[-1]
                if last.number in own and window.ids.isdisjoint(stepped.ids):
                    self._left[window] = _Leftover(last, stepped)
                    self._any = True
        return Attention.AWAKE if self._any else None

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if not self._any:
            return Attention.ASLEEP
        for window, leftover in list(self._left.items()):
            if not window.fills or leftover.fill not in window.fills:
                del self._left[window]
            elif not leftover.present and event.accumulates:
                # Cleared by hand, perhaps.
                leftover.present = any(is_nonzero(each.grad) for each in window.parameters())
                if not leftover.present:
                    del self._left[window]
        return None

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not self._any:
            return Attention.ASLEEP
        window = self._windows.stepped
        leftover = self._left.get(window)
        if leftover is None or not leftover.present or leftover.fill not in window.fills:
            return None
        if window.fills[0].added and not window.cleared:
            return None  # they were never cleared at all, which is another mistake
        other = leftover.other()
        later = window.fills[window.fills.index(leftover.fill) + 1 :]
        if other is None or not later or not all(fill.added for fill in later):
            return None
        last = later[-1]
        if last.site == leftover.fill.site or self._others_filled(last, window, other):
            return None
        optimizer = other.optimizer()
        left = leftover.fill.site
        self._occurrences.note(
            (event.site, last.site, left),
            lambda: _Occurrence(
                optimizer=type(event.optimizer).__name__,
                other="another optimizer" if optimizer is None else type(optimizer).__name__,
                own=last.site,
                left=left,
                site=event.site,
                step=event.number,
            ),
        )
        return None

    def _others_filled(
        self, fill: Fill, window: AccumulationWindow, other: AccumulationWindow
    ) -> bool:
        """Return whether a third optimizer had a share in this backward, and not in the other."""
        return any(
            fill.number in {known.number for known in each.fills}
            or (
                each.summary is not None
                and fill.number in {old.number for old in each.summary.fills}
            )
            for each in self._windows.all()
            if each is not window and each is not other
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each step that applied two losses."""
        return self._occurrences.findings(_finding, least=_ENOUGH)


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"{occurrence.optimizer}.step() also applied what the backward() of another loss, which "
        f"{occurrence.other} had stepped on, left in its gradients; expected them to be cleared "
        "before its own backward()",
        detector="audit",
        location=location_of(occurrence.site),
        related=related(
            (location_of(occurrence.left), f"this backward was for {occurrence.other}"),
            (location_of(occurrence.own), "this backward added to what was left"),
        ),
        hint="call this optimizer's zero_grad() right before its own backward()",
        evidence={
            "count": count,
            "step": occurrence.step,
            "optimizer": occurrence.optimizer,
            "other_optimizer": occurrence.other,
        },
    )
