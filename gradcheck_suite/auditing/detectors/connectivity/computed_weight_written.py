"""Weights that were set, and that torch computes anew from other parameters at the next use.

With weight norm, spectral norm, pruning or a parametrization ``module.weight`` is a result. To
initialize it, or to copy something into it, changes memory that nothing reads again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.events import Attention, BackwardStarted, ComputedWeightWritten
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ComputedWeightWrittenDetector"]

_MOST = 4_096
"""Writes that wait for the next backward, the latest. A bound on memory."""


class ComputedWeightWrittenDetector:
    """Reports no-effect (GCS318) of writes into computed weights."""

    def __init__(self) -> None:
        self._waiting: deque[ComputedWeightWritten] = deque(maxlen=_MOST)
        self._lost: Occurrences[CallSite | None, ComputedWeightWritten] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Ask at the backward after a write whether anything still has what was written."""
        return {ComputedWeightWritten: self._write, BackwardStarted: self._begin_backward}

    def _write(self, event: ComputedWeightWritten) -> Attention:
        self._waiting.append(event)
        return Attention.AWAKE

    def _begin_backward(self, _event: BackwardStarted) -> Attention:
        # What a loss was computed with is in its graph, and what is kept may yet be used.
        while self._waiting:
            write = self._waiting.popleft()
            if write.memory.expired():  # type: ignore[no-untyped-call]
                self._lost.note(write.site, partial(_itself, write))
        return Attention.ASLEEP

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return self._lost.findings(_finding)


def _itself(write: ComputedWeightWritten) -> ComputedWeightWritten:
    return write


def _finding(write: ComputedWeightWritten, count: int) -> Finding:
    times = f", {count} times" if count > 1 else ""
    return Finding.of(
        catalogue.NO_EFFECT,
        f"{write.operation}() set a weight here{times}, which {write.computed_by} computes from "
        "other parameters at each use: what was written is gone; expected the weight to be set "
        f"before {write.computed_by} is applied",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(write.site),
        hint=(
            "initialize first and apply it afterwards, or assign: `module.weight = tensor` where "
            "it is a parametrization that has an inverse"
        ),
        evidence={
            "count": count,
            "operation": write.operation,
            "computed_by": write.computed_by,
        },
    )
