"""A column and a vector of one length that meet in a loss, and make a matrix of all their pairs.

Predictions of shape (N, 1) minus targets of shape (N,) are (N, N): each prediction is compared with
each target, and what is best for all of them is one constant. Torch warns of it in its own losses
alone. Who wants all pairs says so, by ``x[:, None]`` or a sum with ``keepdim``: the graph shows
that, and nothing is told of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_output_types
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import is_looked_at, next_looked_at
from gradcheck_suite.auditing.events import BackwardStarted
from gradcheck_suite.auditing.saved_tensors.saved_tensor import (
    line_near,
    line_of_node,
    packed_tensors_of,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

    Shape = tuple[int, ...]

__all__ = ["OuterBroadcastDetector"]

_MOST_NODES = 256
"""Nodes of the top of a graph that are looked at. A bound on cost."""
_MOST_LINES = 64
"""Lines with a backward whose losses are looked at. A bound on cost."""
_ENOUGH = 2
"""Backwards of one line in which it was so before it is told. Chosen: the least that shows a
loop."""

_PAIRING = frozenset(("Add", "Sub", "Rsub", "Mul", "Div", "Maximum", "Minimum", "Where", "Pow"))
"""Elementwise ops of two operands, as torch names their nodes in front of ``Backward``."""
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Clamp", "ClampMin", "ClampMax", "Clone", "Exp", "Log", "Log1P", "LogSigmoid"),
        *("Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh", "ToCopy", "LeakyRelu", "Elu"),
        *("Alias", "Cos", "Sin", "Reciprocal", "Rsqrt", "Expm1", "Gelu", "Silu"),
    )
)
_REDUCING = frozenset(("Mean", "Sum", "Stack", "Cat", "View", "Squeeze", "Nansum"))
"""What the way from a loss down to its elements may go through beside elementwise ops."""
_ON_PURPOSE = frozenset(
    (
        *("Unsqueeze", "Expand", "View", "UnsafeView", "ReshapeAlias", "Permute", "Transpose", "T"),
        *("Sum", "Mean", "Norm", "LinalgVectorNorm", "Logsumexp", "Std", "Var", "Amax", "Amin"),
        *("Max", "Min", "Median", "Prod", "Cumsum", "Sort", "Topk", "Repeat"),
    )
)
"""What makes a column on purpose: an axis that is put in, or one that is kept in a reduction."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """An op in which a column and a vector met.

    Attributes:
        op: its name.
        shape: of its result.
        live: the shapes of the operands that carry a gradient, or were saved.
        site: its line, or one near it.
        is_known: whether the shapes of both operands are.
    """

    op: str
    shape: Shape
    live: tuple[Shape, ...]
    site: CallSite | None
    is_known: bool


@dataclass(slots=True)
class _Loss:
    """What was seen of the backwards of one line."""

    pair: _Pair
    count: int = 0
    sizes: set[int] = field(default_factory=set)


class OuterBroadcastDetector:
    """Reports outer-broadcast (GCS614)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._losses: dict[CallSite | None, _Loss] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the top of each loss, in some steps."""
        return {BackwardStarted: self._before_backward}

    def findings(self) -> list[Finding]:
        """Return one finding for each line with such a backward."""
        return [
            _finding(site, loss) for site, loss in self._losses.items() if loss.count >= _ENOUGH
        ]

    def _before_backward(self, event: BackwardStarted) -> int | None:
        iteration = self._recorder.state.iteration
        if not is_looked_at(iteration):
            return next_looked_at(iteration)
        if event.site in self._losses or len(self._losses) < _MOST_LINES:
            self._look(event)
        return None

    def _look(self, event: BackwardStarted) -> None:
        pair = _pair_under(event.roots)
        if pair is not None:
            loss = self._losses.setdefault(event.site, _Loss(pair))
            loss.count += 1
            loss.sizes.add(pair.shape[-1])


def _pair_under(roots: Iterable[Tensor]) -> _Pair | None:
    """Return the first such op on the way from a loss of one element down to its elements."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None and root.numel() == 1]
    above: dict[Node, Node | None] = dict.fromkeys(waiting)
    while waiting and len(above) < _MOST_NODES:
        node = waiting.pop()
        name = _name_of(node)
        if name not in _PAIRING | _ELEMENTWISE | _REDUCING:
            continue
        pair = _pair_in(node, name, above) if name in _PAIRING else None
        if pair is not None:
            return pair
        for edge, _ in node.next_functions:
            if edge is not None and edge not in above:
                above[edge] = node
                waiting.append(edge)
    return None


def _name_of(node: Node) -> str:
    return type(node).__name__.partition("Backward")[0]


def _pair_in(node: Node, name: str, above: dict[Node, Node | None]) -> _Pair | None:
    """Return what has met in an op, if it is all pairs of a column and a vector."""
    outputs = node_output_types(node)
    result = outputs[0][0] if len(outputs) == 1 and outputs[0] is not None else ()
    if len(result) < 2 or result[-1] < 2 or result[-2] != result[-1]:  # noqa: PLR2004 - a matrix
        return None
    shapes, edges = [], []
    for edge, number in node.next_functions:
        known = node_output_types(edge) if edge is not None else ()
        kind = known[number] if number < len(known) else None
        if edge is not None and kind is not None:
            shapes.append(kind[0])
            edges.append(edge)
    saved = [tuple(each.tensor.shape) for each in packed_tensors_of(node, type(node))]
    live = tuple(shapes)
    shapes += [each for each in saved if each and each not in shapes]
    is_known = len(shapes) > 1
    if not _make_all_pairs(shapes, result) or any(map(_is_on_purpose, edges)):
        return None
    site = _line_of(node, above) or line_near(node)
    return _Pair(name, result, tuple(shapes) or live, site, is_known)


def _line_of(node: Node | None, above: dict[Node, Node | None]) -> CallSite | None:
    """Return the line of a node, or of the first that uses it and has saved something."""
    while node is not None:
        site = line_of_node(node)
        if site is not None:
            return site
        node = above[node]
    return None


def _make_all_pairs(shapes: list[Shape], result: Shape) -> bool:
    """Return whether a column and a vector of its length are among the operands of a matrix."""
    if result in shapes:
        return False
    columns = [each for each in shapes if len(each) == len(result) and each[-1] == 1]
    vectors = [each for each in shapes if len(each) == len(result) - 1]
    if columns and vectors:
        return columns[0][:-1] == vectors[0]
    # One of them carries no gradient and was not saved: the result tells what it was.
    rows = result[:-1]
    return (columns or vectors) == [(*rows, 1) if columns else rows] and len(shapes) == 1


def _is_on_purpose(operand: Node) -> bool:
    """Return whether an axis of this operand was put in, or kept in a reduction, on purpose."""
    node, looked_at = operand, 0
    while _name_of(node) in _ELEMENTWISE | _PAIRING and looked_at < _MOST_NODES:
        looked_at += 1
        following = next((edge for edge, _ in node.next_functions if edge is not None), None)
        if following is None:
            return False
        node = following
    outputs = node_output_types(node)
    shape = outputs[0][0] if len(outputs) == 1 and outputs[0] is not None else ()
    return bool(shape) and shape[-1] == 1 and _name_of(node) in _ON_PURPOSE


def _in_words(shapes: Iterable[Shape]) -> Iterator[str]:
    for shape in shapes:
        yield f"[{', '.join(map(str, shape))}]"


def _finding(backward: CallSite | None, loss: _Loss) -> Finding:
    pair = loss.pair
    where, called = location_of(pair.site), location_of(backward)
    (result,) = _in_words([pair.shape])
    operands = list(dict.fromkeys(_in_words(pair.live)))
    met = (
        f"{' and '.join(operands)} meet"
        if pair.is_known
        else f"{operands[0]} meets another shape, of which no gradient is asked,"
    )
    doubts = []
    if not pair.is_known and len(pair.live[0]) == 1 and len(loss.sizes) == 1:
        doubts.append("the other operand may be a matrix")
    return Finding.of(
        catalogue.OUTER_BROADCAST,
        f"{met} in {pair.op.lower()} and make {result}, all of which goes into the loss: each "
        f"element of the one is paired with each of the other; seen in {loss.count} backwards",
        detector="audit",
        severity=Severity.WARNING,
        doubts=doubts,
        location=where or called,
        related=related((called, "in this backward"), apart_from=where or called),
        hint="bring both to one shape first: prediction.squeeze(-1), or target.unsqueeze(-1)",
        evidence={
            "operands": [list(each) for each in pair.live],
            "result": list(pair.shape),
            "backwards": loss.count,
        },
    )
