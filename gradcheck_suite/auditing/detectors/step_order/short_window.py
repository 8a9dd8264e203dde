"""Windows that are shorter than most, and whose losses are divided by the length of the others.

A loss that is divided by the number of micro-batches makes their sum a mean. What an epoch has left
over are fewer: divided by the same number, two of eight make a quarter of their mean.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import number_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    GradientsClipped,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_of_node
from gradcheck_suite.auditing.source_analysis.assignments import division_of_loss
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,  # noqa: TC004 - nobody asks for the types of the fields
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ShortWindowDetector"]

_ENOUGH = 3
"""Short windows before they are told. Chosen: one for each of three epochs."""
_SHORT = 2
"""How many times as many backwards the usual window has, at least. Chosen: by less, the step is a
little shorter, as the last batch mostly is."""
_FIRST_STEPS = 8
"""Steps with one backward each after which nothing is looked at any more. Chosen."""
_MOST_BACKWARDS = 4_096
"""Backwards that are looked at. A bound on cost."""
_MOST_NODES = 4
"""Nodes at the top of a graph among which the division is looked for: a scaler may stand above it.
A bound on cost."""

_RESCALING = frozenset(
    {"__imul__", "__itruediv__", "_foreach_div_", "_foreach_mul_", "copy_", "div_", "mul_"}
)
"""Writes into a gradient that may make up for it."""


@dataclass(slots=True)
class _Short:
    """The windows of one optimizer.

    Attributes:
        window: whose they are.
        kind: its class.
        lengths: how many there were with so many backwards.
        count: how many short ones were divided by the length of the longest.
        whole: the line of the backwards of windows that were divided by their own length.
        backwards: how many the first short one had.
        divided_at: where its losses were divided, if that is known.
        backward: the line of its backwards.
        step: that of its step.
    """

    window: weakref.ref[AccumulationWindow]
    kind: str
    lengths: dict[int, int] = field(default_factory=dict)
    count: int = 0
    whole: dict[int, CallSite | None] = field(default_factory=dict)
    backwards: int = 0
    divided_at: CallSite | None = None
    backward: CallSite | None = None
    step: CallSite | None = None

    def is_shown(self) -> bool:
        """Return whether the usual windows are divided by their length, and short ones by it."""
        usual = max(self.lengths)
        return self.count >= _ENOUGH and self.whole.get(usual) == self.backward


class ShortWindowDetector:
    """Reports accumulation-mismatch (GCS311) of short windows."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._known: dict[int, _Short] = {}
        self._divided: list[tuple[float, CallSite | None]] = []
        self._is_accumulating = self._is_rescaled = False
        self._looks = self._begun = 0
        self._divided_at: CallSite | None = None
        self._clipped_at: set[CallSite | None] = set()

    def subscriptions(self) -> Subscriptions:
        """Look at what losses are divided by, once a step has used several."""
        return {
            BackwardStarted: self._begin_backward,
            GradientsClipped: self._clip,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            WatchResumed: self._resume,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer."""
        return [_finding(each) for each in self._known.values() if each.is_shown()]

    def _resume(self, _event: WatchResumed) -> None:
        self._divided = [(0.0, None)]  # this window may have begun before

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        if not self._is_accumulating or self._looks > _MOST_BACKWARDS:
            return Attention.ASLEEP
        self._looks += 1
        if not self._divided:
            self._begun = self._recorder.state.clock.tick()
        if event.accumulates and len(self._divided) < _MOST_BACKWARDS:
            node = event.roots[0].grad_fn if len(event.roots) == 1 else None
            self._divided.append(_divisor(node))
        return None

    def _clip(self, event: GradientsClipped) -> Attention | None:
        if not self._is_accumulating:
            return Attention.ASLEEP
        self._clipped_at.add(event.site)
        return None

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not self._is_accumulating:
            return Attention.ASLEEP
        self._is_rescaled = False
        usual = max((max(each.lengths) for each in self._known.values()), default=0)
        if 0 < len(self._divided) * _SHORT <= usual:
            gradient = next(
                (p.grad for p in parameters_of(event.optimizer) if p.grad is not None), None
            )
            writes = self._recorder.write_log.since(self._begun, gradient)
            self._is_rescaled = any(
                each.operation in _RESCALING and each.site not in self._clipped_at
                for each in writes
            )
        return None

    def _end_step(self, event: StepFinished) -> Attention | None:
        window = self._windows.stepped
        summary = window.summary
        divided, self._divided = self._divided, []
        if summary is None or summary.failed or summary.discarded:
            return None
        backwards = len(summary.fills)
        if backwards < 2 and not self._is_accumulating:  # noqa: PLR2004 - the least that is a sum
            return Attention.ASLEEP if event.number >= _FIRST_STEPS else None
        was_accumulating, self._is_accumulating = self._is_accumulating, True
        known = self._known.get(id(window))
        if known is None or known.window() is not window:
            kind = type(event.optimizer).__name__
            known = self._known[id(window)] = _Short(weakref.ref(window), kind)
        known.lengths[backwards] = known.lengths.get(backwards, 0) + 1
        sites = [fill.site for fill in summary.fills]
        divisors = {each for each, _ in divided}
        self._divided_at = divided[0][1] if divided else None
        if len(divided) == backwards and len(divisors) == 1 and sites.count(sites[0]) == backwards:
            self._compare(known, int(*divisors), sites, event.site)
        return None if was_accumulating else Attention.AWAKE

    def _compare(
        self, known: _Short, divisor: int, sites: list[CallSite | None], step: CallSite | None
    ) -> None:
        """Note a window whose losses were all divided by one number, on one line."""
        if divisor == len(sites):
            known.whole[divisor] = sites[0]
        elif divisor == max(known.lengths) >= _SHORT * len(sites) and not self._is_rescaled:
            if not known.count:
                known.backwards, known.divided_at = len(sites), self._divided_at
                known.backward, known.step = sites[0], step
            known.count += 1


def _divisor(node: Node | None) -> tuple[float, CallSite | None]:
    """Return the whole number by which a loss was divided last, and where; 0 for none."""
    for _ in range(_MOST_NODES):
        if node is None:
            break
        name = type(node).__name__
        number = number_of(node) if name in {"DivBackward0", "MulBackward0"} else None
        if number:
            divisor = number if name == "DivBackward0" else 1 / number
            if divisor > 1 and abs(divisor - round(divisor)) < 1e-6 * divisor:
                return float(round(divisor)), line_of_node(node)
        following = [each for each, _ in node.next_functions if each is not None]
        node = following[0] if len(following) == 1 else None
    return 0.0, None


def _finding(short: _Short) -> Finding:
    usual = max(short.lengths)
    backward = location_of(short.backward)
    divided = None if backward is None else division_of_loss(backward)
    where = location_of(short.divided_at) or divided or backward
    return Finding.of(
        catalogue.ACCUMULATION_MISMATCH,
        f"{short.count} of {sum(short.lengths.values())} calls of {short.kind}.step() used fewer "
        f"backward() calls, {short.backwards} in place of {usual}, whose losses were divided by "
        f"{usual} all the same: the gradient is {short.backwards}/{usual} of that of their mean; "
        "expected the number that the step uses",
        detector="audit",
        severity=Severity.NOTE,  # each sample weighs the same so, and that may be meant
        location=where,
        related=related(
            (backward, "accumulated here"),
            (location_of(short.step), "this step used them"),
            apart_from=where,
        ),
        hint="divide by the number of micro-batches in this window, or leave the rest out",
        evidence={
            "count": short.count,
            "backwards": short.backwards,
            "usual_backwards": usual,
            "optimizer": short.kind,
        },
    )
