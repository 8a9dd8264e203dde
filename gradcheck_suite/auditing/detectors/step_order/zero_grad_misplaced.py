"""Gradients cleared before a step has used them: a misplaced ``zero_grad``.

Between backward and step: the gradients that a backward has filled were cleared, the step that
follows finds none, and this turn after turn. A loop that clears now and then to leave out a bad
batch does not do this each time. Where the gradients were put away by hand, nobody may have written
to the parameters meanwhile, and no later step on that line may use gradients after all.

On each micro-batch: the same backwards come several times, are each time cleared on one line, and
only the last reach the step; as often in every window. Who evaluates the gradient at several points
(SAM) writes to the parameters in between; who combines gradients (PCGrad) writes to ``.grad``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import StepSummary
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import RESCALING, none_left
from gradcheck_suite.auditing.events import (
    Attention,
    GradientsDiscarded,
    ScalerStepped,
    StepFinished,
    StepStarted,
    StepSummarized,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ZeroGradMisplacedDetector"]

_ENOUGH_EMPTY = 3
"""Steps in a row that found their gradients cleared, where earlier ones did not; where none did,
two. Chosen: a loop that leaves out a bad batch seldom does so three times in a row."""

_ENOUGH_WINDOWS = 3
"""Windows in a row of which only the last micro-batch was left, with the same lines and sizes.
Chosen, as above."""


class _Seen:
    """What is known of one optimizer's steps so far.

    Attributes:
        empty: how many steps in a row found their gradients cleared.
        blank_at: where the optimizer stepped first, if nothing had been filled by then.
        windows: how many windows in a row lost all but their last backward.
        size: how many backwards each of these windows had.
        versions: the versions of the parameters when its last step had ended.
    """

    __slots__ = ("blank_at", "empty", "lines", "size", "versions", "windows")

    def __init__(self) -> None:
        self.empty = 0
        self.blank_at: CallSite | None = None
        self.windows = 0
        self.size = 0
        self.lines: object = None
        self.versions: list[int] = []


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    summary: StepSummary
    number: int
    lost: int
    each_micro_batch: bool


class ZeroGradMisplacedDetector:
    """Reports zero-grad-misplaced (GCS302)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._seen: weakref.WeakKeyDictionary[AccumulationWindow, _Seen] = (
            weakref.WeakKeyDictionary()
        )
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at each step, before and after."""
        return {
            GradientsDiscarded: self._wake,
            StepStarted: self._begin_step,
            StepSummarized: self._read_summary,
            ScalerStepped: self._refused_step,
        }

    def _refused_step(self, event: ScalerStepped) -> None:
        """Look at a scaler's step that torch refuses as there are no gradients."""
        window = self._windows.of(event.optimizer)
        if event.failed and window.discarded and not window.fills:
            discarded = tuple(window.discarded)
            if all(parameter.grad is None for parameter in window.parameters()):
                summary = StepSummary((), discarded, 0, event.site, backward_inside=False)
                self._report(event, summary, 1, each_micro_batch=False)

    def _wake(self, _event: GradientsDiscarded) -> Attention:
        return Attention.AWAKE

    def _begin_step(self, _event: StepStarted) -> Attention | None:
        window = self._windows.stepped
        if not window.discarded or not window.fills:
            return None if self._windows.any_discarded() else Attention.ASLEEP
        seen = self._of(window)
        if (
            not window.whole
            or _was_written(window, seen)
            or not _is_last_alone(window)
            or _is_for_others(window)
            or self._gradients_were_set(window)
        ):
            window.dismiss()
        return None

    def _gradients_were_set(self, window: AccumulationWindow) -> bool:
        """Return whether the program has put other gradients in the place of the last ones."""
        parameters = window.parameters()
        if [id(each.grad) for each in parameters] != window.gradients:
            return True
        since = self._recorder.write_log.since
        return any(
            write.operation not in RESCALING
            for each in parameters
            if each.grad is not None
            for write in since(window.filled_at, each.grad)
        )

    def _of(self, window: AccumulationWindow) -> _Seen:
        seen = self._seen.get(window)
        if seen is None:
            seen = self._seen[window] = _Seen()
            window.is_followed = True
        return seen

    def _read_summary(self, ended: StepSummarized) -> None:
        event = ended.step
        window = self._windows.stepped
        summary = window.summary
        if summary is None:
            return
        if summary.fills:
            # Whoever took gradients away by hand until now has only let this optimizer wait.
            self._occurrences.discard((None, summary.site, False))
        if not summary.discarded:
            if window.steps == 1 and not summary.backwards and not window.met_late:
                self._of(window).blank_at = summary.site
            seen = self._seen.get(window)
            if seen is not None:
                seen.empty = seen.windows = 0
                seen.versions = []
            return
        seen = self._of(window)
        if summary.fills:
            self._count_window(window, seen, summary, event)
            seen.empty = 0
        else:
            self._count_empty(window, seen, summary, event)
            seen.windows = 0

    def _count_empty(
        self, window: AccumulationWindow, seen: _Seen, summary: StepSummary, event: StepFinished
    ) -> None:
        if summary.backward_inside or summary.failed or not none_left(window.parameters()):
            seen.empty = 0
            return
        if seen.blank_at is not None and seen.blank_at == summary.site:
            return  # it stepped before there was any gradient: the step is too early
        if summary.forward_since and summary.cleared_last:
            return  # clearing was right: what is missing is the backward of that forward
        if summary.discarded[-1].site is None and self._moved(window, seen):
            seen.empty = 0
            return  # by whoever has taken the gradients away
        seen.empty += 1
        every = seen.empty == window.steps and seen.empty > 1
        if every or seen.empty >= _ENOUGH_EMPTY:
            self._report(event, summary, seen.empty, each_micro_batch=False)

    def _moved(self, window: AccumulationWindow, seen: _Seen) -> bool:
        """Return whether parameters were written to since the end of the step before."""
        moved = bool(seen.empty) and _was_written(window, seen)
        seen.versions = window.versions()
        return moved

    def _count_window(
        self, window: AccumulationWindow, seen: _Seen, summary: StepSummary, event: StepFinished
    ) -> None:
        size = 1 + len(summary.discarded)
        lines = (summary.discarded[0].site, summary.fills[0].site)
        alike = seen.lines == lines and seen.size == size
        seen.windows = seen.windows + 1 if alike and seen.windows else 1
        seen.lines, seen.size = lines, size
        seen.versions = window.versions()
        if seen.windows >= _ENOUGH_WINDOWS:
            self._report(event, summary, seen.windows, each_micro_batch=True)

    def _report(
        self,
        event: StepFinished | ScalerStepped,
        summary: StepSummary,
        count: int,
        *,
        each_micro_batch: bool,
    ) -> None:
        self._occurrences.note(
            (summary.discarded[-1].site, summary.site, each_micro_batch),
            lambda: _Occurrence(
                optimizer=type(event.optimizer).__name__,
                summary=summary,
                number=self._recorder.state.step,
                lost=sum(len(discarded.fills) for discarded in summary.discarded),
                each_micro_batch=each_micro_batch,
            ),
            times=count,
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of a clearing's and a step's line."""
        return self._occurrences.findings(_finding)


def _is_last_alone(window: AccumulationWindow) -> bool:
    """Return whether the same backwards came again and again, and were cleared on one line.

    One that has filled the gradients of another optimizer as well, as an actor's loss those of the
    critic, is of another loss.
    """
    clearings = {discarded.site for discarded in window.discarded}
    parts = [discarded.fills for discarded in window.discarded] + [tuple(window.fills)]
    alike = {tuple((fill.site, fill.others) for fill in fills) for fills in parts}
    return len(clearings) == len(alike) == 1


def _is_for_others(window: AccumulationWindow) -> bool:
    """Return whether any of what was cleared came of a backward that another optimizer used."""
    cleared = {fill.number for each in window.discarded for fill in each.fills}
    return not cleared.isdisjoint(window.others)


def _was_written(window: AccumulationWindow, seen: _Seen) -> bool:
    """Return whether parameters were written to since the last step, as far as that was noted."""
    return bool(seen.versions) and window.versions() != seen.versions


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    summary = occurrence.summary
    cleared = summary.discarded[-1]
    step = location_of(summary.site)
    name = occurrence.optimizer
    if occurrence.each_micro_batch:
        last = len(summary.fills)
        lost = sum(len(discarded.fills) for discarded in summary.discarded)
        which = "last" if last == 1 else f"last {last}"
        message = (
            f"each {name}.step() used the gradients of the {which} of {last + lost} backward() "
            f"calls, and those of the other {lost} were cleared unused; expected an accumulation "
            "window "
            "to be cleared once (if only the last was to be used, the others are not needed)"
        )
        hint = "call zero_grad() once for each step, before the first backward() of the window"
    elif cleared.site is None:
        message = (
            f"gradients that backward() had filled were gone when {name}.step() was to use them: "
            f"each .grad was None, {count} times, and nobody wrote to the parameters; "
            "expected them to be set to None before backward() or after step()"
        )
        hint = "set .grad to None before backward(), or after step()"
    else:
        message = (
            f"gradients that backward() had filled were cleared before {name}.step() could use "
            f"them, so that it found none, {count} times; expected them to be cleared "
            "before backward() or after step()"
        )
        hint = "move zero_grad() before backward(), or after step()"
    return Finding.of(
        catalogue.ZERO_GRAD_MISPLACED,
        message,
        detector="audit",
        severity=Severity.WARNING if occurrence.each_micro_batch else Severity.ERROR,
        location=location_of(cleared.site) or step,
        related=related(
            (location_of(cleared.fills[-1].site), "this backward filled them"),
            (step if cleared.site else None, "this step came too late for them"),
        ),
        hint=hint,
        evidence={
            "count": count,
            "step": occurrence.number,
            "optimizer": name,
            "backwards_lost": occurrence.lost,
        },
    )
