"""Clipping that does not do what it is there for.

After the step, or before the backward, it clips what no step will read; on an iterator that is used
up, nothing at all; on the parameters of another network, what is cleared before any step, where the
loss has gone through it, or what a step has used; on each micro-batch of a window, the running sum
again and again; before ``unscale_``, gradients that are still
multiplied by the loss scale. It is a note where an optimizer's gradients are also clipped in the
right place. A limit of infinity measures.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import (
    AccumulationWindow,
)
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_zero
from gradcheck_suite.auditing.events import (
    Attention,
    GradientsClipped,
    ScalerStepped,
    StepFinished,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.step_order.scaled_losses import ScaledLosses
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ClipMisplacedDetector"]

_Wrong: TypeAlias = Literal[
    "after", "before", "nothing", "others", "discarded", "used", "each", "scaled"
]

_ENOUGH = 2
"""Clippings of one line that came to nothing before it is told. Chosen: the least that shows it
goes on; what happens once may be meant."""

_APART: frozenset[_Wrong] = frozenset({"discarded", "used", "each", "scaled"})
"""What clipping in the right place elsewhere does not make up for."""

_OF_SCALE = 1e-2
"""A limit of at least this part of the loss scale, and of 100, was scaled by hand: divided by the
scale it is 0.01 or more, as limits of norms mostly are. Chosen."""


@dataclass(slots=True)
class _Clip:
    """A clipping of a window that has not ended.

    Attributes:
        fills: how many backwards it came after.
        last: the number of the last of them; -1 for none.
        user: the name of an optimizer that has used that backward's gradients and had none of its
            own clipped, and where it stepped.
        waiting: the window of the one optimizer whose gradients waited for a step at that time.
    """

    site: CallSite | None
    function: str
    kind: _Wrong | None
    fills: int
    last: int = -1
    user: tuple[str, CallSite | None] | None = None
    waiting: weakref.ref[AccumulationWindow] | None = None


@dataclass(slots=True)
class _Occurrence:
    kind: _Wrong
    function: str
    optimizer: str
    site: CallSite | None
    step_site: CallSite | None
    step: int
    right: int
    count: int = 0
    elsewhere: bool = False


class _Seen:
    __slots__ = ("clips", "lost", "right", "sites")

    def __init__(self) -> None:
        self.clips: list[_Clip] = []
        self.right = 0
        self.sites: set[CallSite | None] = set()
        self.lost: dict[object, _Occurrence] = {}


class ClipMisplacedDetector:
    """Reports clip-misplaced (GCS304) and clip-before-unscale (GCS305)."""

    def __init__(self, windows: AccumulationWindows, scaled: ScaledLosses) -> None:
        self._windows = windows
        self._scaled = scaled
        self._seen: weakref.WeakKeyDictionary[AccumulationWindow, _Seen] = (
            weakref.WeakKeyDictionary()
        )
        self._all: list[_Seen] = []
        self._of_nothing: list[_Clip] = []
        self._refused: dict[object, Finding] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at each clipping, and at the step that follows."""
        return {
            GradientsClipped: self._clip,
            StepFinished: self._end_step,
            ScalerStepped: self._skip_step,
        }

    def is_following(self) -> bool:
        """Return whether clippings are being counted that may come to nothing."""
        return bool(self._of_nothing) or any(each.lost or each.clips for each in self._all)

    def _of(self, window: AccumulationWindow) -> _Seen:
        seen = self._seen.get(window)
        if seen is None:
            seen = self._seen[window] = _Seen()
            # What was found outlives the optimizer.
            self._all = [each for each in self._all if each.lost or each.clips]
            self._all.append(seen)
        return seen

    def _clip(self, event: GradientsClipped) -> Attention | None:
        if event.limit is not None and math.isinf(event.limit):
            return None
        if event.parameters == 0:
            self._of_nothing.append(_Clip(event.site, event.function, "nothing", 0))
            return Attention.AWAKE
        if event.refused and not event.gradients:
            self._refused.setdefault(event.site, _refusal(event))
            return Attention.AWAKE
        given = set(map(id, event.given))
        gradients = set(map(id, event.gradients))
        anybody = False
        for window in self._windows.all():
            if given:
                concerned = not window.ids.isdisjoint(given)
            else:
                concerned = any(id(each.grad) in gradients for each in window.parameters())
            if concerned:
                kind = self._judge(window, event)
                last = window.fills[-1].number if window.fills else -1
                clip = _Clip(event.site, event.function, kind, len(window.fills), last)
                if kind == "after":
                    clip.waiting = self._waiting(window)
                self._of(window).clips.append(clip)
                anybody = True
        if given and not gradients and not anybody:
            self._of_nothing.append(_Clip(event.site, event.function, "others", 0))
        return Attention.AWAKE

    def _waiting(self, window: AccumulationWindow) -> weakref.ref[AccumulationWindow] | None:
        """Return the one window whose gradients wait for a step, if it is of other parameters."""
        full = [each for each in self._windows.all() if each.fills]
        return (
            weakref.ref(full[0]) if len(full) == 1 and full[0].ids.isdisjoint(window.ids) else None
        )

    def _judge(self, window: AccumulationWindow, event: GradientsClipped) -> _Wrong | None:
        if not window.fills:
            if window.used and event.gradients:
                return "after"
            if window.whole and not window.used and all(map(is_zero, event.gradients)):
                return "before"
            return None
        scale = self._scaled.scale_of(window)
        if scale is None or not scale > 1:
            return None
        by_hand = event.limit is not None and event.limit >= max(100.0, _OF_SCALE * scale)
        return None if by_hand else "scaled"

    def _skip_step(self, event: ScalerStepped) -> None:
        if not event.stepped:
            seen = self._seen.get(self._windows.of(event.optimizer))
            if seen is not None:
                seen.clips.clear()
            self._of_nothing.clear()

    def _end_step(self, event: StepFinished) -> Attention | None:
        window = self._windows.stepped
        nothing, self._of_nothing = self._of_nothing, []
        known = self._seen.get(window)
        if (known is None or not known.clips) and self._seen:
            self._note_use(window, event)
        if not nothing and known is None:
            return None if self._seen else Attention.ASLEEP
        summary = window.summary
        seen = self._of(window)
        clips, seen.clips = seen.clips, []
        if summary is None or not summary.fills:
            return None
        used = {fill.number for fill in summary.fills}
        for clip in clips:
            if clip.kind is None and clip.user is not None and clip.last not in used:
                clip.kind = "discarded"
        right = [clip for clip in clips if clip.kind is None and clip.fills == len(summary.fills)]
        if right:
            seen.right += 1
            seen.sites.update(clip.site for clip in right)
        for clip in [*clips, *nothing]:
            if clip.kind is not None:
                self._count(seen, clip.kind, clip, event)
        fresh = [clip for clip in clips if clip.kind is None]
        again = [clip for clip in fresh if clip.site == fresh[0].site]
        if len({clip.fills for clip in again}) > 1:
            self._count(seen, "each", again[-1], event)
        return None

    def _note_use(self, window: AccumulationWindow, event: StepFinished) -> None:
        """Note on the clippings of others that this step has used their backward, unclipped."""
        summary = window.summary
        if summary is None:
            return
        used = {fill.number for fill in summary.fills}
        for other, seen in self._seen.items():
            for clip in seen.clips if other.ids.isdisjoint(window.ids) else ():
                is_waiting = clip.waiting is not None and clip.waiting() is window
                if is_waiting:
                    clip.kind = "used"
                if is_waiting or clip.last in used:
                    clip.user = (type(event.optimizer).__name__, event.site)

    def _count(self, seen: _Seen, kind: _Wrong, clip: _Clip, event: StepFinished) -> None:
        key = (kind, clip.site)
        known = seen.lost.get(key)
        if known is None:
            optimizer, step_site = clip.user or (type(event.optimizer).__name__, event.site)
            known = seen.lost[key] = _Occurrence(
                kind=kind,
                function=clip.function,
                optimizer=optimizer,
                site=clip.site,
                step_site=step_site,
                step=event.number,
                right=seen.right,
            )
        known.count += 1

    def findings(self) -> list[Finding]:
        """Return one finding for each line and kind of mistake."""
        found: dict[object, _Occurrence] = {}
        for seen in self._all:
            for key, occurrence in seen.lost.items():
                elsewhere = seen.right and occurrence.kind not in _APART
                if occurrence.kind == "nothing" and occurrence.site in seen.sites:
                    # The line clipped until its iterator was used up, and nothing has since.
                    elsewhere = occurrence.right != seen.right
                if occurrence.count >= _ENOUGH:
                    occurrence.elsewhere = bool(elsewhere)
                    found.setdefault(key, occurrence)
        return [*map(_finding, found.values()), *self._refused.values()]


def _refusal(event: GradientsClipped) -> Finding:
    return Finding.of(
        catalogue.CLIP_MISPLACED,
        f"{event.function} found no gradient to clip, and torch refuses; expected clipping between "
        "backward() and step(), of parameters that backward() has reached",
        detector="audit",
        location=location_of(event.site),
        hint=f"move {event.function} between backward() and step()",
        evidence={"count": 1, "function": event.function, "refused": True},
    )


def _finding(occurrence: _Occurrence) -> Finding:
    name, function = occurrence.optimizer, occurrence.function
    times = f"in {occurrence.count} steps"
    message = {
        "after": f"{function} clipped gradients that {name}.step() had used already, and those "
        f"that it used next were never clipped, {times}; expected clipping between "
        "backward() and step()",
        "before": f"{function} ran before backward(), when there was no gradient to clip, and "
        f"{name}.step() used unclipped ones, {times}; expected clipping between "
        "backward() and step()",
        "nothing": f"{function} was given no parameters, as from an iterator that is used up, and "
        f"{name}.step() used unclipped gradients, {times}; expected the parameters",
        "others": f"{function} was given parameters that have no gradient and that no optimizer "
        f"owns, and {name}.step() used unclipped gradients, {times}; expected its own parameters",
        "discarded": f"{function} clipped gradients of parameters that {name} does not own, which "
        f"were cleared before any step used them, and {name}.step() used unclipped ones of that "
        f"backward(), {times}; expected the parameters of {name}",
        "used": f"{function} clipped gradients of parameters that {name} does not own, which "
        f"another step had used already, and {name}.step() used unclipped ones, {times}; expected "
        f"the parameters of {name}",
        "each": f"{function} ran after each of several backward() calls of one window, so that it "
        f"clipped the running sum again and again, {times} of {name}; expected it once, "
        "before the step",
        "scaled": f"{function} clipped gradients that were still multiplied by the loss scale, "
        f"{times} of {name}; expected scaler.unscale_(optimizer) first",
    }[occurrence.kind]
    hint = {
        "after": f"move {function} between backward() and step()",
        "before": f"move {function} between backward() and step()",
        "nothing": "pass model.parameters() anew, or keep a list of them",
        "others": "pass the parameters that the optimizer owns",
        "discarded": "pass the parameters that the optimizer owns whose step comes next",
        "used": "pass the parameters that the optimizer owns whose step comes next",
        "each": f"call {function} once, right before step()",
        "scaled": "call scaler.unscale_(optimizer) once, after the last backward() and before "
        "clipping; if it comes after clipping now, move it",
    }[occurrence.kind]
    entry = (
        catalogue.CLIP_BEFORE_UNSCALE if occurrence.kind == "scaled" else catalogue.CLIP_MISPLACED
    )
    is_likely = occurrence.kind in {"discarded", "used", "each"}
    severity = Severity.WARNING if is_likely else Severity.ERROR
    doubts = ["they were also clipped in the right place"] if occurrence.elsewhere else []
    return Finding.of(
        entry,
        message,
        detector="audit",
        severity=Severity.NOTE if occurrence.elsewhere else severity,
        doubts=doubts,
        location=location_of(occurrence.site),
        related=related((location_of(occurrence.step_site), "this step used the gradients")),
        hint=hint,
        evidence={
            "count": occurrence.count,
            "step": occurrence.step,
            "optimizer": name,
            "function": function,
        },
    )
