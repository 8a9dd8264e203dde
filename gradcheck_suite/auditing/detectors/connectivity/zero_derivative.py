"""Gradients from ``autograd.grad`` that are exactly zero, each time that one call is looked at.

The second derivative of a network of ReLUs, as an equation's residual has it, is there, has a graph
and is zero everywhere, and so is what comes through a rounding. What is made of it for a loss is a
constant. A network whose last layer begins at zero gives zeros as well, in its first step alone.
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
    from collections.abc import Sequence

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

_Key: TypeAlias = "tuple[tuple[int, int], ...]"


@dataclass(slots=True)
class _Call:
    """What was seen of one call.

    Attributes:
        stack: where it stands, and where the functions around it were called.
        creates_graph: whether its results have a graph.
        elements: how many elements the results had the first time.
        zeros: in how many steps all of them were zero.
        step: the last step that was looked at.
        is_live: whether any other was ever seen.
    """

    stack: tuple[CallSite, ...]
    creates_graph: bool
    elements: int = 0
    zeros: int = 0
    step: int = -1
    is_live: bool = False


class ZeroDerivativeDetector:
    """Reports GCS411 and, of gradients without a graph, GCS401.

    Args:
        recorder: whose events these are.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls: dict[_Key, _Call] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what ``autograd.grad`` returns, in some steps."""
        return {GradientsReturned: self._look_at}

    def findings(self) -> list[Finding]:
        """Return one finding for each call that has returned nothing but zeros."""
        return [
            _finding(call)
            for call in self._calls.values()
            if not call.is_live and call.zeros >= _ENOUGH
        ]

    def _look_at(self, event: GradientsReturned) -> None:
        iteration = self._recorder.state.iteration
        if not is_looked_at(iteration) or ops_are_recorded():
            return
        frames = [frame for frame, _ in zip(user_frames(), range(_CALLERS), strict=False)]
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MOST_CALLS:
                return
            stack = tuple((frame.f_code, frame.f_lasti) for frame in frames)
            call = self._calls[key] = _Call(stack, event.finished.creates_graph)
        if not call.is_live and call.step != iteration:
            call.step = iteration
            without_user_modes(_look, call, event.gradients)


def _look(call: _Call, returned: Sequence[Tensor | None]) -> None:
    """Note whether all that a call has returned is zero."""
    gradients = [each for each in returned if each is not None and each.numel()]
    if not gradients:
        return  # Not connected at all, which the program has allowed.
    plain = all(each.layout is torch.strided and is_readable(each) for each in gradients)
    # Where nobody can look, nothing is claimed.
    call.is_live = not plain or any(bool(each.detach().any()) for each in gradients)
    call.elements = call.elements or sum(each.numel() for each in gradients)
    call.zeros += not call.is_live


def _finding(call: _Call) -> Finding:
    where, *callers = map(location_of, call.stack)
    what = f"all {call.elements} elements that this autograd.grad() returns are exactly zero"
    evidence = {"steps": call.zeros, "elements": call.elements}
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
        hint="a second derivative through ReLU, LeakyReLU or abs is zero: use tanh, SiLU, softplus",
        evidence=evidence,
    )
