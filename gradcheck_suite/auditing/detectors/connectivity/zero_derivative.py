"""Gradients from ``autograd.grad`` that are zero, each time that one call is looked at.

The second derivative of a network of ReLUs, as an equation's residual has it, is there, has a graph
and is zero everywhere, and so is what comes through a rounding, or of a divergence of something
from itself, where it may be zero but for rounding: that shows beside other gradients of the same
shapes. What is made of it for a loss is a constant. A divergence from what does not move has no
slope where both are the same, and a second derivative: where the next ``autograd.grad`` through it
is not zero, nothing is said. A network whose last layer begins at zero gives zeros as well, in its
first step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_frames
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import is_looked_at
from gradcheck_suite.auditing.events import GradientsReturned
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ZeroDerivativeDetector"]

_ENOUGH = 4
"""Steps in which every element was zero before that is told. Chosen: what begins at zero, as a last
layer or a LoRA matrix, has moved by the second or third."""

_MOST_CALLS = 64
"""Calls of ``autograd.grad`` that are told apart. A bound on memory."""

_CALLERS = 3
"""Functions by whose places calls are told apart: one helper computes all derivatives of a
program. Chosen."""

_ROUNDING = 16 * torch.finfo(torch.float32).eps
"""Part of other gradients of the same shapes up to which one may be rounding alone. Chosen: a few
terms that cancel leave a few units in the last place; a gradient that is there is rarely so small
in each step."""

_Key: TypeAlias = "tuple[tuple[int, int], ...]"


@dataclass(slots=True, eq=False)
class _Call:
    """What was seen of one call.

    Attributes:
        stack: where it stands, and where the functions around it were called.
        creates_graph: whether its results have a graph.
        shapes: those of the results, the first time.
        zeros: in how many steps all of them were zero, or so small that it may be rounding.
        turns: in how many steps it ran.
        step: the last of these.
        size: the greatest element of the results that was seen.
        is_live: whether that is too great for rounding.
        follower: the call that has gone through its graph, by all that is known: the next one in
            its step with results of the same shapes and without a graph.
    """

    stack: tuple[CallSite, ...]
    creates_graph: bool
    shapes: tuple[torch.Size, ...] = ()
    zeros: int = 0
    turns: int = 0
    step: int = -1
    size: float = 0.0
    is_live: bool = False
    follower: _Call | None = None

    def is_zero(self, others: Iterable[_Call]) -> bool:
        """Return whether it has returned nothing but zeros, beside what others have returned."""
        if self.is_live or self.zeros < _ENOUGH:
            return False
        alike = (each.size for each in others if each.shapes == self.shapes and each is not self)
        return self.size <= _ROUNDING * max(alike, default=0.0)


class ZeroDerivativeDetector:
    """Reports GCS411 and, of gradients without a graph, GCS401.

    Args:
        recorder: whose events these are.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls: dict[_Key, _Call] = {}
        self._with_graph: _Call | None = None

    def subscriptions(self) -> Subscriptions:
        """Look at what ``autograd.grad`` returns, in some steps."""
        return {GradientsReturned: self._look_at}

    def findings(self) -> list[Finding]:
        """Return one finding for each call that has returned nothing but zeros."""
        calls = self._calls.values()
        zero = [call for call in calls if call.is_zero(calls)]
        told = [call for call in zero if call.follower is None or call.follower in zero]
        followers = [call.follower for call in told]
        # By place: a helper that several functions call is one line to look at.
        found = {call.stack[0]: call for call in reversed(told) if call not in followers}
        return [_finding(call) for call in reversed(found.values())]

    def _look_at(self, event: GradientsReturned) -> None:
        call = None if ops_are_recorded() else self._call_of(event)
        if call is None:
            return
        iteration = self._recorder.state.iteration
        if call.step != iteration:
            call.step = iteration
            call.turns += 1
            if not call.is_live and is_looked_at(call.turns - 1):
                without_user_modes(_look, call, event.gradients)
        before = self._with_graph
        if call.creates_graph:
            self._with_graph = None if call.is_live else call
        elif before is not None and before.step == iteration and before.shapes == call.shapes:
            before.follower, self._with_graph = call, None

    def _call_of(self, event: GradientsReturned) -> _Call | None:
        frames = [frame for frame, _ in zip(user_frames(), range(_CALLERS), strict=False)]
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        call = self._calls.get(key)
        if call is None and len(self._calls) < _MOST_CALLS:
            stack = tuple((frame.f_code, frame.f_lasti) for frame in frames)
            call = self._calls[key] = _Call(stack, event.finished.creates_graph)
        return call


def _look(call: _Call, returned: Sequence[Tensor | None]) -> None:
    """Note whether all that a call has returned is zero, or may be so but for rounding."""
    gradients = [each.detach() for each in returned if each is not None and each.numel()]
    if not gradients:
        return  # Not connected at all, which the program has allowed.
    if not all(each.layout is torch.strided and is_readable(each) for each in gradients):
        call.is_live = True  # Where nobody can look, nothing is claimed.
        return
    call.shapes = call.shapes or tuple(each.shape for each in gradients)
    size = max(float(each.abs().max()) for each in gradients)
    call.is_live = not size <= _ROUNDING
    call.size = max(call.size, size)
    call.zeros += not call.is_live


def _finding(call: _Call) -> Finding:
    where, *callers = map(location_of, call.stack)
    elements = sum(shape.numel() for shape in call.shapes)
    exactly = "zero, but for rounding" if call.size else "exactly zero"
    what = f"all {elements} elements that this autograd.grad() returns are {exactly}"
    evidence = {"steps": call.zeros, "elements": elements}
    if not call.creates_graph:
        return Finding.of(
            catalogue.GRAPH_BROKEN,
            f"{what}, in each of {call.zeros} steps looked at",
            detector="audit",
            severity=Severity.NOTE,
            location=where,
            related=related(*((place, "called from here") for place in callers)),
            hint="look for an op of zero slope, or a branch that does not depend on the input",
            evidence=evidence,
        )
    return Finding.of(
        catalogue.CONSTANT_LOSS_TERM,
        f"{what}, in each of {call.zeros} steps looked at: what a loss makes of them "
        "(create_graph=True) is a constant and trains nothing",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related(*((place, "called from here") for place in callers)),
        hint=(
            "a second derivative through ReLU, LeakyReLU or abs is zero: use tanh, SiLU, softplus; "
            "so are those of a divergence of something from itself: detach one side"
        ),
        evidence=evidence,
    )
