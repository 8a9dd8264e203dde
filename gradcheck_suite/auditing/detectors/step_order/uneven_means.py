"""Micro-batches whose losses are means over different numbers of elements, and weigh the same.

A mean over the 40 tokens of one micro-batch and over the 400 of the next, each divided by the
number of micro-batches: a token of the first weighs ten times as much as one of the second, and the
step is not that of the batch they make up. By what a loss was divided, its graph tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import node_output_types, number_of, reduces_to_mean
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import is_looked_at, next_looked_at
from gradcheck_suite.auditing.events import BackwardStarted, StepFinished
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_of_node, packed_tensors_of
from gradcheck_suite.auditing.source_analysis.assignments import division_of_loss
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["UnevenMeansDetector"]

_UNEVEN = 1.5
"""How many times as many elements the largest mean of a step has as the smallest, at least. Chosen:
a last micro-batch that is a little shorter is usual."""
_ENOUGH = 3
"""Steps looked at in which it was so before it is told. Chosen: one or two may be the odd end of an
epoch."""
_MOST_NODES = 32
"""Nodes of the top of a graph that are followed. A bound on cost."""
_MOST_BACKWARDS = 64
"""Backwards of one step that are looked at. A bound on cost."""

_LOSSES = frozenset({"NllLoss", "NllLoss2D"})
_MEANS = _LOSSES | {"Mean"}
_PASSING = frozenset(("Alias", "Clone", "Neg", "Squeeze", "ToCopy", "View"))


@dataclass(frozen=True, slots=True)
class _Mean:
    """The loss of one backward.

    Attributes:
        elements: over how many elements it is a mean.
        weight: by what an element was divided, all in all: the elements, and numbers beside them.
        is_masked: whether some of what it is a mean over was left out, as padding is.
        site: the line of the mean.
        backward: the line of the backward.
    """

    elements: float
    weight: float
    is_masked: bool
    site: CallSite | None
    backward: CallSite | None


@dataclass(slots=True)
class _Uneven:
    """The uneven steps of one line with a backward: the first, and what the others had."""

    means: list[_Mean]
    optimizer: str
    steps: int = 0
    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)


class UnevenMeansDetector:
    """Reports accumulation-mismatch (GCS311) of means over uneven micro-batches."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._means: list[_Mean] = []
        self._backwards, self._is_accumulating = 0, False
        self._uneven: dict[CallSite | None, _Uneven] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the losses of some steps."""
        return {BackwardStarted: self._before_backward, StepFinished: self._end_step}

    def findings(self) -> list[Finding]:
        """Return one finding for each line with such backwards."""
        return [_finding(each) for each in self._uneven.values() if each.steps >= _ENOUGH]

    def _before_backward(self, event: BackwardStarted) -> int | None:
        iteration = self._recorder.state.iteration
        if not is_looked_at(iteration):
            return next_looked_at(iteration)
        self._backwards += event.accumulates
        looks = event.accumulates and self._is_accumulating and not ops_are_recorded()
        if looks and len(self._means) < _MOST_BACKWARDS:
            for root in event.roots:
                mean = without_user_modes(_mean_under, root, event.site)
                if mean is not None:
                    self._means.append(mean)
        return None

    def _end_step(self, event: StepFinished) -> int | None:
        means, self._means = self._means, []
        # Values are read where the step before had several backwards alone.
        self._is_accumulating, self._backwards = self._backwards > 1, 0
        if len(means) > 1 and len({mean.backward for mean in means}) == 1:
            self._compare(means, event)
        iteration = self._recorder.state.iteration
        return next_looked_at(iteration)

    def _compare(self, means: list[_Mean], event: StepFinished) -> None:
        least = min(mean.weight for mean in means)
        most = max(mean.weight for mean in means)
        if least <= 0 or most / least < _UNEVEN:
            return
        line = means[0].backward
        known = self._uneven.get(line)
        if known is None:
            known = self._uneven[line] = _Uneven(means, type(event.optimizer).__name__)
        known.steps += 1
        known.least.append(least)
        known.most.append(most)


def _mean_under(root: Tensor, backward: CallSite | None) -> _Mean | None:
    """Return what a loss is a mean over, down to where it is no product or quotient any more."""
    node: Node | None = root.grad_fn
    elements, weight, site, is_masked, looked_at = 1.0, 1.0, None, False, 0
    while node is not None and looked_at < _MOST_NODES:
        looked_at += 1
        name = type(node).__name__.partition("Backward")[0]
        below = [edge for edge, _ in node.next_functions if edge is not None]
        if name in _MEANS:
            counted, is_masked = _count_of(node, name)
            if counted is None:
                return None
            elements, weight = elements * counted, weight * counted
        elif name in {"Div", "Mul"} and len(below) == 1:
            number = _number_of(node)
            if not number:
                return None
            weight *= number if name == "Div" else 1 / number
        elif name not in _PASSING or len(below) != 1:
            site = site or line_of_node(node)
            break
        site = line_of_node(node) or site
        if name in _LOSSES:
            break
        node = below[0]
    return _Mean(elements, weight, is_masked, site, backward) if elements > 1 else None


def _count_of(node: Node, name: str) -> tuple[float | None, bool]:
    """Return how many elements a mean is over, and whether others were left out."""
    if not reduces_to_mean(node):
        return 1.0, False
    saved = packed_tensors_of(node, type(node))
    if name == "Mean":
        following = next((edge for edge, _ in node.next_functions if edge is not None), None)
        known = node_output_types(following) if following is not None else ()
        return (float(_product(known[0][0])) if known and known[0] is not None else None), False
    # The weights of all targets together; ignored ones have none.
    totals = [each.tensor for each in saved if not each.tensor.dim()]
    targets = [each.tensor for each in saved if not each.tensor.is_floating_point()]
    if len(totals) != 1 or not is_readable(totals[0]):
        return None, False
    total = float(totals[0])
    return total, bool(targets) and total < targets[0].numel()


def _number_of(node: Node) -> float | None:
    """Return the number by which a node multiplies or divides; None for several, or unreadable."""
    saved = packed_tensors_of(node, type(node))
    if not saved:
        return number_of(node)
    number = saved[0].tensor
    is_number = len(saved) == 1 and not number.dim() and is_readable(number)
    return abs(float(number)) if is_number else None


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _finding(uneven: _Uneven) -> Finding:
    first = uneven.means
    mean, backward = location_of(first[0].site), location_of(first[0].backward)
    divided = None if backward is None else division_of_loss(backward)
    where = divided or mean or backward
    counts = ", ".join(f"{mean.elements:g}" for mean in first[:6])
    is_masked = any(mean.is_masked for mean in first)
    largest = max(most / least for most, least in zip(uneven.most, uneven.least, strict=True))
    return Finding.of(
        catalogue.ACCUMULATION_MISMATCH,
        f"the micro-batches of one {uneven.optimizer}.step() are means over {counts} elements and "
        f"weigh the same, in each of {uneven.steps} steps looked at: an element of the one counts "
        f"up to {largest:.1f} times as much as one of the other; expected the sum over all "
        "elements, divided by their number in the whole step",
        detector="audit",
        severity=Severity.WARNING if is_masked else Severity.NOTE,
        location=where,
        related=related(
            (mean, "the mean is taken here"), (backward, "accumulated here"), apart_from=where
        ),
        hint='use reduction="sum" and divide by the number of elements of all micro-batches',
        evidence={"elements": [mean.elements for mean in first], "steps": uneven.steps},
    )
