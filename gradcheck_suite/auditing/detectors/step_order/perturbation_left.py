"""Weights that were moved for a measurement, and from which training went on.

Between two steps of an optimizer a program moves its weights by hand, runs a backward there, and
goes on without moving them back. That it was a measurement shows in where it was taken: at two
points that have what the last step had left in their middle (a central difference), or at one up
the gradient of a backward before (a worst case nearby, as in SAM or adversarial training). Whoever
trains by hand goes down the gradient and takes no points in pairs.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import (
    AccumulationWindow,
)
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import local_name
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.write_log import Write

__all__ = ["PerturbationLeftDetector"]

_SAMPLED = 1024
"""Elements of a parameter that show where it was moved. A bound on cost; of an embedding, some rows
have a gradient."""
_LOOKED_AT = 64
"""Backwards before which nobody has moved weights after which none is looked at any more. A bound
on cost: who perturbs weights does so in the first turns."""
_MOST_POINTS = 8
"""Points between two steps that are compared. A bound on cost."""
_MOST_TURNS = 256
"""Turns in which nothing was left behind after which an optimizer is followed no more. A bound on
cost."""
_ENOUGH = 2
"""Turns that began from a point of a measurement before that is a habit. Chosen: the least."""
_TOLERANCE = 0.02
"""How much the middle of two points may lie off, as part of their distance. Chosen: rounding moves
a step of 1e-4 of a weight by 1e-3 of it."""
_PARALLEL = 0.999
"""The cosine of what a move and a gradient have at least where one follows the other. Chosen for
half precision, which rounds to three digits."""

_Sort: TypeAlias = Literal["pair", "uphill"]


@dataclass(slots=True, eq=False)
class _Followed:
    """A parameter that was moved by hand between two steps of its optimizer.

    Attributes:
        window: that of the optimizer.
        parameter: the largest of those that were.
        left: elements of it then; None where that was not seen.
        points: what they were at the backwards since, in their order, where they had moved.
        gradient: the same elements of the gradient of the last backward.
        uphill: the points among them that lie up such a gradient.
        turns: how many turns were looked at in which nothing was left behind.
    """

    window: weakref.ref[AccumulationWindow]
    parameter: weakref.ref[Tensor]
    left: Tensor | None = None
    points: list[Tensor] = field(default_factory=list)
    gradient: Tensor | None = None
    uphill: list[Tensor] = field(default_factory=list)
    turns: int = 0

    def now(self) -> Tensor | None:
        """Return some elements of the parameter; None where they can't be read."""
        parameter = self.parameter()
        if parameter is None or ops_are_recorded():
            return None
        return without_user_modes(sample_of, parameter, _SAMPLED)

    def begin(self) -> None:
        """Begin a turn, after a step."""
        self.left = self.now() if self.turns < _MOST_TURNS else None
        self.forget()

    def forget(self) -> None:
        """Forget the points of a turn."""
        self.points.clear()
        self.uphill.clear()
        self.gradient = None


@dataclass(frozen=True, slots=True)
class _Occurrence:
    written: CallSite | None
    site: CallSite | None
    optimizer: str
    parameter: str | None
    sort: _Sort
    step: int


class PerturbationLeftDetector:
    """Reports weights-not-restored (GCS316) of measurements between two steps."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._looked_at = 0
        self._followed: list[_Followed] = []
        self._seen: Occurrences[tuple[CallSite | None, CallSite | None, _Sort], _Occurrence] = (
            Occurrences()
        )

    def subscriptions(self) -> Subscriptions:
        """Look where weights are at each backward between two steps."""
        return {
            BackwardStarted: self._before_backward,
            BackwardFinished: self._after_backward,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            WatchResumed: self._resume,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that moves weights and each step from there."""
        return self._seen.findings(_finding)

    def _resume(self, _event: WatchResumed) -> None:
        for known in self._followed:
            known.left = None
            known.forget()

    def _before_backward(self, _event: BackwardStarted) -> Attention | None:
        for known in self._followed:
            if known.left is not None:
                self._look(known)
        if self._looked_at >= _LOOKED_AT:
            return None if self._followed else Attention.ASLEEP
        self._looked_at += 1
        if self._recorder.write_log.latest <= self._windows.stepped_at:
            return None
        moved = [each for each in self._windows.all() if each.steps and self._follow(each)]
        return Attention.AWAKE if moved else None

    def _follow(self, window: AccumulationWindow) -> bool:
        """Follow an optimizer some of whose parameters were written to since its last step."""
        if any(known.window() is window for known in self._followed):
            return False
        since = self._recorder.write_log.since
        moved = [each for each in window.parameters() if since(window.stepped_at, each)]
        if moved:
            largest = max(moved, key=torch.Tensor.numel)
            self._followed.append(_Followed(weakref.ref(window), weakref.ref(largest)))
        return bool(moved)

    def _writes_into(self, known: _Followed) -> list[Write]:
        """Return the writes into a parameter since its last step."""
        parameter, window = known.parameter(), known.window()
        if parameter is None or window is None:
            return []
        return self._recorder.write_log.since(window.stepped_at, parameter)

    def _look(self, known: _Followed) -> None:
        if len(known.points) >= _MOST_POINTS or not self._writes_into(known):
            return  # Asked first, as a comparison may wait for a device.
        now, left = known.now(), known.left
        if now is None or left is None:
            return
        last = known.points[-1] if known.points else left
        if _are_same(now, last):
            return
        known.points.append(now)
        gradient = known.gradient
        if gradient is not None and _is_along(now - last, gradient):
            known.uphill.append(now)

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if not self._followed:
            return Attention.ASLEEP
        for known in self._followed:
            parameter = known.parameter()
            gradient = None if parameter is None else parameter.grad
            if known.left is None or gradient is None or ops_are_recorded():
                continue
            if event.created or event.accumulated:
                known.gradient = without_user_modes(sample_of, gradient, _SAMPLED)
        return None

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not self._followed:
            return Attention.ASLEEP
        known = self._of(self._windows.stepped)
        if known is None or known.left is None:
            return None
        now = known.now() if known.points else None
        sort = None if now is None else _sort_of(now, known.left, known)
        if sort is None:
            known.turns += 1
        else:
            self._note(known, event, sort)
        return None

    def _note(self, known: _Followed, event: StepStarted, sort: _Sort) -> None:
        parameter = known.parameter()
        writes = self._writes_into(known)
        site = writes[-1].site if writes else None
        self._seen.note(
            (site, event.site, sort),
            lambda: _Occurrence(
                site,
                event.site,
                type(event.optimizer).__name__,
                None if parameter is None else local_name(parameter),
                sort,
                self._recorder.state.step,
            ),
        )

    def _end_step(self, _event: StepFinished) -> Attention | None:
        if not self._followed:
            return Attention.ASLEEP
        known = self._of(self._windows.stepped)
        if known is not None:
            known.begin()
        return None

    def _of(self, window: AccumulationWindow) -> _Followed | None:
        return next((known for known in self._followed if known.window() is window), None)


def _sort_of(now: Tensor, left: Tensor, known: _Followed) -> _Sort | None:
    """Return what measurement a step begins at a point of, if it does."""
    if not any(_are_same(now, each) for each in known.points):
        return None
    for other in known.points:
        apart = (now - other).float().norm()
        if apart and (now + other - 2 * left).float().norm() <= _TOLERANCE * apart:
            return "pair"
    return "uphill" if any(_are_same(now, each) for each in known.uphill) else None


def _is_along(move: Tensor, gradient: Tensor) -> bool:
    """Return whether a move goes up a gradient, as far as both go anywhere."""
    one, other = move.double(), gradient.double()
    length = one.norm() * other.norm()
    return bool(length > 0) and bool((one * other).sum() >= _PARALLEL * length)


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and torch.equal(one, other)


_WHERE: dict[_Sort, str] = {
    "pair": "one of two points on both sides of what the last step had left, at which backwards "
    "had run, as for a central difference",
    "uphill": "a point up the gradient of an earlier backward, at which another had run, as for a "
    "worst case nearby",
}


def _finding(first: _Occurrence, count: int) -> Finding:
    step = location_of(first.site)
    where = location_of(first.written) or step
    which = f" (`{first.parameter}`)" if first.parameter else ""
    return Finding.of(
        catalogue.WEIGHTS_NOT_RESTORED,
        f"weights{which} were moved by hand and not moved back: {first.optimizer}.step() went on "
        f"from {_WHERE[first.sort]}, {count} time{'s' if count > 1 else ''}; expected the weights "
        "to be put back after the measurement",
        detector="audit",
        severity=Severity.WARNING,
        doubts=["it was seen once"] if count < _ENOUGH else [],
        location=where,
        related=related((step, "this step went on from there"), apart_from=where),
        hint="keep p.detach().clone() of each parameter before, and copy it back after",
        evidence={
            "count": count,
            "step": first.step,
            "optimizer": first.optimizer,
            "points": first.sort,
        },
    )
