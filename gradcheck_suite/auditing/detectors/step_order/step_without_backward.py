"""Steps that no backward has come before: step without a fresh gradient.

No backward of any kind has begun since the optimizer's last step. Either there are no gradients,
and the step has written nothing, though a forward was recorded that they could come from; or they
are those that its last step has used, with the same contents. A step that finds gradients which the
program has put there itself is left alone, zeros among them, and so is one that moves parameters
without gradients (an optimizer that needs none).

Or, in each of an optimizer's turns, no backward has begun since its gradients were cleared, and
those that were cleared, if any, came from a backward before the forward that was recorded last.

Where ``zero_grad`` clears what the backward of the turn before has left, and the very first step
on that line came before there was any gradient, the step comes too early in each turn.

Or a line steps optimizers that are made anew, as an inner loop does, and none of them has ever
found a gradient, though backwards ran before each step: they went to other parameters.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import none_left
from gradcheck_suite.auditing.events import StepFinished, StepSummarized
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    import torch

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
        StepSummary,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["StepWithoutBackwardDetector"]

_COMPARED = 4
"""Gradients of a step that are compared with those of the step before. A bound on cost: a backward
in between writes to all of them."""

_ENOUGH_SKIPPED = 3
"""Turns of an optimizer, all there were, that skipped its gradients. Chosen: the first may come
before any backward, and one more may be left out on purpose."""

_ENOUGH_MADE = 3
"""Optimizers that one line has stepped, all there were, none of which ever found a gradient.
Chosen: one of them is told of by its parameters, and two may be a pair of which a later one
trains."""

_LIKELY = ("again", "elsewhere", "skipped")


class _Seen:
    """What an optimizer's last step has left, once there is reason to look.

    Attributes:
        blank_at: where the optimizer stepped first, if no backward had run by then.
        idle: how many steps in a row were idle.
        versions: the versions of the parameters when the last idle step had ended.
        left: parameters with identity and contents of the gradients that the last step has used.
        skipped: how many steps in a row had only backwards for other optimizers before them.
        watch: whether the next steps take note of that.
        zeros: a few of the gradients, all zero, that the last idle step has found.
    """

    __slots__ = ("blank_at", "idle", "left", "skipped", "versions", "watch", "zeros")

    def __init__(self) -> None:
        self.blank_at: CallSite | None = None
        self.idle = self.skipped = 0
        self.versions: list[int] = []
        self.left: list[tuple[int, int, Fingerprint]] = []
        self.watch = False
        # Held for as long as steps are idle: an address alone may come again.
        self.zeros: list[torch.Tensor] = []


@dataclass(slots=True)
class _Elsewhere:
    """How many optimizers a line has stepped, and how often, without a gradient ever."""

    optimizers: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    kind: str
    step: int
    site: CallSite | None
    other: CallSite | None


class StepWithoutBackwardDetector:
    """Reports step-without-backward (GCS303)."""

    def __init__(self, windows: AccumulationWindows, optimizers: Optimizers) -> None:
        self._windows = windows
        self._optimizers = optimizers
        self._seen: weakref.WeakKeyDictionary[AccumulationWindow, _Seen] = (
            weakref.WeakKeyDictionary()
        )
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()
        # By the line of the step; None where one on that line has found gradients.
        self._elsewhere: dict[CallSite | None, _Elsewhere | None] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at each step's end: a closure runs its backward inside the step."""
        return {StepSummarized: self._read_summary}

    def _read_summary(self, ended: StepSummarized) -> None:
        event = ended.step
        window = self._windows.stepped
        summary = window.summary
        if summary is None:
            self._elsewhere[event.site] = None  # nobody knows what that one has found
            return
        self._look_at_line(window, summary, event)
        seen = self._seen.get(window)
        blank_at = None if seen is None else seen.blank_at
        is_early = bool(summary.discarded) and blank_at is not None and blank_at == summary.site
        skipped = _is_skipped(summary) and not is_early
        if not skipped and summary.fills and seen is not None and seen.skipped:
            seen.skipped = 0
            # It was only waiting.
            self._occurrences.discard((event.site, "skipped"))
            self._optimizers.without_backward.discard(id(event.optimizer))
        if summary.backwards and not skipped and not (summary.discarded and not summary.fills):
            if seen is not None:
                seen.idle = 0
                seen.zeros = []
                if seen.watch:
                    seen.left = _used_gradients(window)
            return
        if seen is None:
            seen = self._seen[window] = _Seen()
            window.is_followed = True
        if skipped:
            self._look_at_skipped(window, seen, event)
        elif summary.backwards:
            self._look_at_early(window, seen, summary, event)
        else:
            self._look_at_idle(window, seen, summary, event)

    def _look_at_line(
        self, window: AccumulationWindow, summary: StepSummary, event: StepFinished
    ) -> None:
        """Count the optimizers of a line whose gradients no backward has ever filled."""
        line = self._elsewhere.setdefault(event.site, _Elsewhere())
        if line is None:
            return
        has_gradients = any(each.grad is not None for each in window.parameters())
        # Those of torch move nothing without a gradient.
        is_known = type(event.optimizer).__module__.startswith("torch.optim")
        is_blank = is_known and not (summary.fills or summary.discarded or has_gradients)
        if not is_blank:
            self._elsewhere[event.site] = None
            self._occurrences.discard((event.site, "elsewhere"))
        elif summary.backwards:
            line.optimizers += window.steps == 1
            line.steps += 1
            if line.optimizers >= _ENOUGH_MADE:
                made = window.constructed_at
                self._report(event, "elsewhere", made, count=line.steps)

    def _look_at_early(
        self, window: AccumulationWindow, seen: _Seen, summary: StepSummary, event: StepFinished
    ) -> None:
        same_line = seen.blank_at is not None and seen.blank_at == summary.site
        if same_line and not summary.backward_inside and none_left(window.parameters()):
            lost = summary.discarded[-1].fills[-1].site
            self._report(event, "early", lost)

    def _look_at_skipped(
        self, window: AccumulationWindow, seen: _Seen, event: StepFinished
    ) -> None:
        versions = window.versions()
        moved = seen.skipped and versions != seen.versions
        seen.versions = versions
        if moved or any(parameter.grad is not None for parameter in window.parameters()):
            seen.skipped = 0  # an optimizer that needs none; or zeros, which may move as well
            return
        seen.skipped += 1
        # The very first may have come before any backward.
        every = seen.skipped + (seen.blank_at is not None) == window.steps
        if every and seen.skipped >= _ENOUGH_SKIPPED:
            self._report(event, "skipped", None, count=seen.skipped)

    def _look_at_idle(
        self, window: AccumulationWindow, seen: _Seen, summary: StepSummary, event: StepFinished
    ) -> None:
        if window.steps == 1 and not window.met_late:
            seen.blank_at = summary.site
        if none_left(window.parameters()):
            zeros = [each.grad for each in window.parameters() if each.grad is not None]
            versions = window.versions()
            # Zeros move parameters, by momentum and by weight decay. None does not.
            moved = not zeros and seen.idle and versions != seen.versions
            seen.versions = versions
            # Zeros that nobody has cleared, as they were not there: the program has put them.
            put = seen.idle and any(
                id(each) not in map(id, seen.zeros) for each in zeros[:_COMPARED]
            )
            seen.zeros = zeros[:_COMPARED]
            seen.idle = 0 if moved or put else seen.idle + 1
            if seen.idle > 1 and self._windows.anything_to_learn():
                self._report(event, "none", None, count=seen.idle)
            return
        if seen.left and _are_unchanged(window, seen.left):
            self._report(event, "again", None)
        seen.watch = True
        seen.left = _used_gradients(window)

    def _report(
        self, event: StepFinished, kind: str, other: CallSite | None, *, count: int = 1
    ) -> None:
        if kind != "again":
            self._optimizers.without_backward.add(id(event.optimizer))
        self._occurrences.note(
            (event.site, kind),
            lambda: _Occurrence(
                type(event.optimizer).__name__, kind, event.number, event.site, other
            ),
            times=count,
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return self._occurrences.findings(_finding)


def _is_skipped(summary: StepSummary) -> bool:
    """Return whether gradients were cleared, rightly, and no backward followed.

    There were none, or they came from a backward before the forward that was recorded last, as
    a generator's reach the discriminator.
    """
    return (
        summary.backwards > 0
        and summary.cleared_last
        and not summary.fills
        and (summary.forward_since or not summary.discarded)
        and not summary.backward_inside
    )


def _used_gradients(window: AccumulationWindow) -> list[tuple[int, int, Fingerprint]]:
    """Return position, identity and contents of a few of the gradients there are."""
    taken = []
    for index, parameter in enumerate(window.parameters()):
        gradient = parameter.grad
        content = None if gradient is None else fingerprint(gradient)
        if content is not None:
            taken.append((index, id(gradient), content))
            if len(taken) == _COMPARED:
                break
    return taken


def _are_unchanged(window: AccumulationWindow, left: list[tuple[int, int, Fingerprint]]) -> bool:
    parameters = window.parameters()
    for index, identity, content in left:
        gradient = parameters[index].grad if index < len(parameters) else None
        if gradient is None or id(gradient) != identity or not same_content(content, gradient):
            return False
    return True


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    name = occurrence.optimizer
    beside = "this backward runs after the step"
    if occurrence.kind == "early":
        message = (
            f"{name}.step() ran before backward() in each turn: it found no gradient, and those "
            "of the backward() that followed were cleared before the next step; expected "
            "backward() first"
        )
        hint = "move step() after backward()"
    elif occurrence.kind == "none":
        message = (
            f"{name}.step() ran {count} times without a gradient: no backward() had run "
            "since its last step; expected a backward() before each step"
        )
        hint = "call loss.backward() before step()"
    elif occurrence.kind == "elsewhere":
        message = (
            f"{name}.step() ran {count} times on this line, of optimizers that are made anew, and "
            "none of them ever found a gradient: each backward() before it went to other "
            "parameters, and no step has changed anything; expected the forward to run with the "
            "parameters that the optimizer was given"
        )
        beside = "the optimizers are made here"
        hint = "run the copies that the optimizer owns, and not what they were copied from"
    elif occurrence.kind == "skipped":
        message = (
            f"{name}.step() ran {count} times without a gradient: no backward() ran "
            "between zero_grad() and this step, only others before that; expected one between them"
        )
        hint = "call loss.backward() between zero_grad() and step()"
    else:
        message = (
            f"{name}.step() used the gradients that its last step had used already, unchanged: no "
            "backward() ran in between; expected one step for each backward()"
        )
        hint = "step once for each backward()"
    return Finding.of(
        catalogue.STEP_WITHOUT_BACKWARD,
        message,
        detector="audit",
        severity=Severity.WARNING if occurrence.kind in _LIKELY else Severity.ERROR,
        location=location_of(occurrence.site),
        related=related((location_of(occurrence.other), beside)),
        hint=hint,
        evidence={"count": count, "step": occurrence.step, "optimizer": name},
    )
