"""Backwards whose gradients no step ever uses, and accumulation windows that are never finished.

A backward on a line of its own, after the step of its turn, is cleared at the beginning of the next
one: no step uses what it computed. Or the last window of an epoch has fewer micro-batches than the
others, its step is waited for and never comes, and the next epoch clears it. Not where another
optimizer has a share in the backward, where parameters are written in between, as for gradients
that are wanted at two points, and not where a guard clears a whole window now and then.
"""

from __future__ import annotations

import ast
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    Attention,
    GradientsDiscarded,
    StepStarted,
    StepSummarized,
)
from gradcheck_suite.auditing.source_analysis.source import innermost, tree_of
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.findings import JSON

__all__ = ["UnusedGradientsDetector"]

_ENOUGH = 3
"""Backwards of a line that no step has used, and windows that were not finished, before it is told.
Chosen: a try before training, and a run that ends within a window, come once."""


@dataclass(slots=True)
class _Steps:
    """What an optimizer's steps have used and what was cleared, since it was first cleared unused.

    Attributes:
        used: how many backwards of each line its steps have used.
        sizes: how many steps have used so many backwards.
        lost: by the line of the backwards and that of the clearing, how many of them each time, and
            how many the next step has used.
        versions: of the parameters when its last step had ended.
        is_written: whether they were others when the step that runs began; true where nobody knows.
    """

    optimizer: str
    used: Counter[CallSite | None] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    lost: dict[tuple[CallSite | None, CallSite | None], list[tuple[int, int]]] = field(
        default_factory=dict
    )
    versions: list[int] = field(default_factory=list)
    is_written: bool = True


class UnusedGradientsDetector:
    """Reports zero-grad-misplaced (GCS302) of backwards that no step uses."""

    def __init__(
        self, optimizers: Optimizers, windows: AccumulationWindows, leaves: LeafRecords
    ) -> None:
        self._optimizers = optimizers
        self._windows = windows
        self._leaves = leaves
        self._steps: weakref.WeakKeyDictionary[AccumulationWindow, _Steps] = (
            weakref.WeakKeyDictionary()
        )
        self._all: list[_Steps] = []

    def subscriptions(self) -> Subscriptions:
        """Look at each step of an optimizer, once gradients were cleared unused."""
        return {
            GradientsDiscarded: self._wake,
            StepStarted: self._begin_step,
            StepSummarized: self._read_summary,
        }

    def _wake(self, _event: GradientsDiscarded) -> Attention:
        return Attention.AWAKE

    def _begin_step(self, _event: StepStarted) -> Attention | None:
        if not self._all:
            return None if self._windows.any_discarded() else Attention.ASLEEP
        steps = self._steps.get(self._windows.stepped)
        if steps is not None:
            steps.is_written = steps.versions != self._windows.stepped.versions()
        return None

    def _read_summary(self, _event: StepSummarized) -> None:
        window = self._windows.stepped
        summary = window.summary
        if summary is None:
            return
        lost = (*summary.dismissed, *summary.discarded)
        steps = self._steps.get(window)
        if steps is None:
            if not lost:
                return
            steps = self._steps[window] = _Steps(type(window.optimizer()).__name__)
            self._all.append(steps)
            window.is_followed = True
        steps.sizes[len(summary.fills)] += 1
        steps.used.update(fill.site for fill in summary.fills)
        for discarded in lost if summary.fills and not steps.is_written else ():
            sites = {fill.site for fill in discarded.fills}
            if len(sites) == 1 and not any(fill.others for fill in discarded.fills):
                key = sites.pop(), discarded.site
                sizes = len(discarded.fills), len(summary.fills)
                steps.lost.setdefault(key, []).append(sizes)
        steps.versions = window.versions()

    def findings(self) -> list[Finding]:
        """Return one finding for each line of such backwards and each that clears them."""
        return [
            finding
            for steps in self._all
            for (site, cleared), lost in steps.lost.items()
            if len(lost) >= _ENOUGH
            and not self._is_for_others(site)
            and (
                finding := _finding(
                    steps, site, cleared, lost, cut_off=bool(self._optimizers.cut_off)
                )
            )
            is not None
        ]

    def _is_for_others(self, site: CallSite | None) -> bool:
        """Return whether backwards of this line fill gradients of leaves that nobody owns."""
        return any(site in each.sites and not each.owners for each in self._leaves.all())


def _finding(
    steps: _Steps,
    site: CallSite | None,
    cleared: CallSite | None,
    lost: list[tuple[int, int]],
    *,
    cut_off: bool,
) -> Finding | None:
    backward, zeroed = location_of(site), location_of(cleared)
    sizes = [size for size, _ in lost]
    evidence: dict[str, JSON] = {
        "optimizer": steps.optimizer,
        "times": len(sizes),
        "backwards": sum(sizes),
    }
    if not steps.used[site]:
        tree = None if backward is None else tree_of(backward.path)
        scope = None if tree is None or backward is None else innermost(tree, backward.line)
        if scope is not None and _reads_gradients(scope):
            return None
        doubts = []
        if tree is not None and _reads_gradients(tree):
            doubts.append("the file reads .grad: the gradients may be wanted for themselves")
        if cut_off:
            doubts.append(
                "it may be the loss of another optimizer, which is cut off from what that one owns"
            )
        return Finding.of(
            catalogue.ZERO_GRAD_MISPLACED,
            f"the gradients of this backward() were cleared before a step of {steps.optimizer} "
            f"could use them, {len(sizes)} times of {len(sizes)}: nothing is trained by this loss; "
            "expected a step between it and zero_grad()",
            detector="audit",
            severity=Severity.WARNING,
            doubts=doubts,
            location=backward or zeroed,
            related=related((zeroed, "cleared here"), apart_from=backward or zeroed),
            hint="call the optimizer's step() after the last backward() of a turn",
            evidence=evidence,
        )
    # A window that is cleared in its middle goes on with fewer: that is told of by the others.
    usual = steps.sizes.most_common(1)[0][0]
    if max(sizes) >= usual or any(used != usual for _, used in lost):
        return None
    return Finding.of(
        catalogue.ZERO_GRAD_MISPLACED,
        f"gradients of {min(sizes)} backward() calls were cleared here, {len(sizes)} times, while "
        f"{steps.optimizer}.step() waits for {usual}: the last accumulation window is never "
        "finished, and what its micro-batches gave is lost; expected a step for what is left over",
        detector="audit",
        severity=Severity.WARNING,
        location=zeroed or backward,
        related=related((backward, "these backwards"), apart_from=zeroed or backward),
        hint="step once more after the loop if micro-batches are left",
        evidence=evidence,
    )


def _reads_gradients(scope: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)
        for node in ast.walk(scope)
    )
