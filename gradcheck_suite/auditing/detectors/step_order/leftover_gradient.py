"""Gradients of another loss that are still there when an optimizer steps.

One backward fills the gradients of two optimizers, and the first of them steps: that loss was its
own. A backward on another line, which gives the first optimizer nothing new, then adds to what was
left to the second, and the second steps on the sum. A trunk that sums the losses of several heads,
each with an optimizer of its own, does this on purpose: there the later backward fills another
head. So does one that accumulates for longer than others: there the backward is the same line, and
fills the same networks.

Or nobody has stepped in between: an optimizer is cleared for a loss of its own, whose backward
fills its gradients alone; another is cleared, and the backward of its loss comes to its parameters
through the first one's network, as an actor's does through the critic, and adds to what is there.
Where the other network stands behind the first, the first is trained for both on purpose.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.detectors.reachable_parameters import in_order, leaves_after
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

_MOST_WALKS = 4
"""Graphs that are walked for each line of a backward. A bound on cost; a loop has the same graph in
each turn."""


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    other: str
    own: CallSite | None
    left: CallSite | None
    site: CallSite | None
    step: int
    stepped_between: bool = True


class _Crossing:
    """A backward of another loss that comes to gradients which await their step.

    Attributes:
        own: the backward that had filled them, alone.
        other: the optimizer that was cleared for the later one.
        number: which backward that is.
        gradients: the identities of those that await their step.
    """

    __slots__ = ("gradients", "number", "other", "own")

    def __init__(self, window: AccumulationWindow, other: AccumulationWindow, number: int) -> None:
        self.own = window.fills[-1]
        self.other = weakref.ref(other)
        self.number = number
        self.gradients = _gradients_of(window)


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
        self._walks: Counter[CallSite | None] = Counter()
        self._crossings: weakref.WeakKeyDictionary[AccumulationWindow, _Crossing] = (
            weakref.WeakKeyDictionary()
        )
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
        if self._windows.is_alone():
            return Attention.ASLEEP
        if event.accumulates:
            self._look_for_crossings(event)
        if not self._any:
            return None
        for window, leftover in list(self._left.items()):
            if not window.fills or leftover.fill not in window.fills:
                del self._left[window]
            elif not leftover.present and event.accumulates:
                # Cleared by hand, perhaps.
                leftover.present = any(is_nonzero(each.grad) for each in window.parameters())
                if not leftover.present:
                    del self._left[window]
        return None

    def _look_for_crossings(self, event: BackwardStarted) -> None:
        windows = self._windows.all()
        for window in windows:
            if not window.cleared or not window.fills:
                continue
            own = window.fills[-1]
            others = [other for other in windows if _is_cleared_since(own, other, window)]
            if not others or not all(_is_its_own(each, window, windows) for each in window.fills):
                continue
            through = self._first_behind(event, window, others)
            if through is not None:
                self._crossings[window] = _Crossing(window, through, event.number)

    def _first_behind(
        self, event: BackwardStarted, window: AccumulationWindow, others: list[AccumulationWindow]
    ) -> AccumulationWindow | None:
        """Return the optimizer whose network this loss reaches through that of ``window``."""
        if self._walks[event.site] >= _MOST_WALKS:
            return None
        self._walks[event.site] += 1
        order = in_order([root.grad_fn for root in event.roots if root.grad_fn is not None])
        if order is None:
            return None
        behind = leaves_after(order, set(window.ids))
        return next(
            (
                other
                for other in others
                if not leaves_after(order, set(other.ids)).isdisjoint(window.ids)
                and behind.isdisjoint(other.ids)
            ),
            None,
        )

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if self._windows.is_alone():
            return Attention.ASLEEP
        window = self._windows.stepped
        crossing = self._crossings.pop(window, None)
        if crossing is not None:
            self._note_crossing(crossing, window, event)
        leftover = self._left.get(window) if self._any else None
        if leftover is None or not leftover.present or leftover.fill not in window.fills:
            return None
        if window.fills[0].added and not window.cleared:
            return None  # they were never cleared at all, which is another mistake
        other = leftover.other()
        later = window.fills[window.fills.index(leftover.fill) + 1 :]
        if other is None or not later or not all(fill.added for fill in later):
            return None
        last = later[-1]
        # The same line is the same loss, unless it fills another set of networks.
        is_same = last.site == leftover.fill.site and last.others == leftover.fill.others
        if is_same or self._others_filled(last, window, other):
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

    def _note_crossing(
        self, crossing: _Crossing, window: AccumulationWindow, event: StepStarted
    ) -> None:
        other = crossing.other()
        fills = window.fills
        if other is None or crossing.own not in fills[:-1]:
            return
        later = fills[fills.index(crossing.own) + 1]
        # Filled it is by then, or the other has stepped and been told so.
        used = other.summary.fills if other.summary is not None else ()
        filled = any(fill.number == later.number for fill in (*other.fills, *used))
        if later.number != crossing.number or not later.added or not filled:
            return
        if crossing.gradients.isdisjoint(_gradients_of(window)):
            return  # Copies, taken before, are what is applied.
        optimizer = other.optimizer()
        self._occurrences.note(
            (event.site, crossing.own.site, later.site, "crossed"),
            lambda: _Occurrence(
                optimizer=type(event.optimizer).__name__,
                other="another optimizer" if optimizer is None else type(optimizer).__name__,
                own=crossing.own.site,
                left=later.site,
                site=event.site,
                step=event.number,
                stepped_between=False,
            ),
        )

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


def _gradients_of(window: AccumulationWindow) -> set[int]:
    return {id(each.grad) for each in window.parameters() if each.grad is not None}


def _is_cleared_since(own: Fill, other: AccumulationWindow, window: AccumulationWindow) -> bool:
    """Return whether another optimizer was cleared for a loss of its own since that backward."""
    return (
        other is not window
        and other.cleared
        and other.cleared_at > own.number
        and not other.fills
        and other.ids.isdisjoint(window.ids)
    )


def _is_its_own(fill: Fill, window: AccumulationWindow, windows: list[AccumulationWindow]) -> bool:
    """Return whether a backward was for this optimizer, and those that await the same backwards.

    What it gave to others was cleared, used by no step.
    """
    awaited = [each.number for each in window.fills]
    return all(
        [known.number for known in each.fills] == awaited
        or any(fill.number == known.number for gone in each.discarded for known in gone.fills)
        for each in windows
        if id(each) in fill.others
    )


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    if not occurrence.stepped_between:
        return _crossed(occurrence, count)
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        "this backward() added to gradients that the backward() of another loss, which "
        f"{occurrence.other} had stepped on, left to {occurrence.optimizer}, and its step() "
        "applied both; expected them to be cleared in between",
        detector="audit",
        location=location_of(occurrence.own),
        related=related(
            (location_of(occurrence.left), f"this backward was for {occurrence.other}"),
            (location_of(occurrence.site), "this step applied both"),
        ),
        hint="call this optimizer's zero_grad() right before its own backward()",
        evidence={
            "count": count,
            "step": occurrence.step,
            "optimizer": occurrence.optimizer,
            "other_optimizer": occurrence.other,
        },
    )


def _crossed(occurrence: _Occurrence, count: int) -> Finding:
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"this backward() of a loss for which {occurrence.other} had been cleared added to "
        f"gradients that {occurrence.optimizer} had from its own, and its step() applied both; "
        "expected it to step before, or its parameters to be frozen here",
        detector="audit",
        location=location_of(occurrence.left),
        related=related(
            (location_of(occurrence.own), f"this backward was that of {occurrence.optimizer}"),
            (location_of(occurrence.site), "this step applied both"),
        ),
        hint="step right after the backward() of each loss, or take the other loss's gradients "
        "with respect to its own parameters alone: loss.backward(inputs=parameters)",
        evidence={
            "count": count,
            "step": occurrence.step,
            "optimizer": occurrence.optimizer,
            "other_optimizer": occurrence.other,
        },
    )
