"""Lay a graph out as lines: long runs flat, branches beneath, every node once.

A run follows, from where it starts, the input that has the longest way to a leaf; the other inputs
branch off it. A node belongs to the first run that claims it, and is referred to from elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_suite.graph.model import AutogradGraph, Edge, Node, Root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Fold", "Line", "Reference", "Unfinished", "outline"]

_HEAD = 10
_TAIL = 10
_LINES_PER_LIMIT = 10
_LONGEST_PERIOD = 200


@dataclass(frozen=True, slots=True)
class Reference:
    """A node that has its line elsewhere, or in a fold."""

    node_id: int
    is_folded: bool


@dataclass(frozen=True, slots=True)
class Fold:
    """Nodes that are not drawn one by one.

    ``period`` and ``repeats`` say that the run consists of the same ops over and over.
    """

    count: int
    op_counts: tuple[tuple[str, int], ...]
    leaf_names: tuple[str, ...]
    period: int | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The end of a drawing that has grown too long: how many nodes it leaves out."""

    count: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the outline.

    ``depth`` counts the branches that it lies in; ``opens_branch`` marks the first of a branch.
    """

    depth: int
    opens_branch: bool
    content: Root | Node | Reference | Fold | Unfinished


@dataclass(frozen=True, slots=True)
class _Branch:
    start: int
    depth: int


_Item: TypeAlias = "Line | _Branch"


def outline(graph: AutogradGraph, *, limit: int | None) -> Iterator[Line]:
    """Yield the lines that show ``graph``, root by root.

    Args:
        graph: what to show.
        limit: a run, or the inputs of one node, are folded in the middle if they are longer than
            this, and the drawing ends after ten times as many lines. None draws everything.
    """
    left = len(graph.nodes)
    for drawn, line in enumerate(_Layout(graph, limit).lines()):
        if limit is not None and drawn >= _LINES_PER_LIMIT * limit and left:
            yield Line(0, opens_branch=False, content=Unfinished(left))
            return
        yield line
        if isinstance(line.content, Node):
            left -= 1
        elif isinstance(line.content, Fold):
            left -= line.content.count


@dataclass(slots=True)
class _Layout:
    graph: AutogradGraph
    limit: int | None
    inputs: dict[int, list[Edge]] = field(init=False)
    heights: list[int] = field(init=False)
    claimed: set[int] = field(init=False, default_factory=set)
    folded: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.inputs = defaultdict(list)
        for edge in self.graph.edges:
            self.inputs[edge.source].append(edge)
        # Ids run from roots to leaves, so that every target is done before its source.
        self.heights = [0] * (len(self.graph.nodes) + 1)
        for node in reversed(self.graph.nodes):
            below = (self.heights[edge.target] for edge in self.inputs.get(node.id, ()))
            self.heights[node.id] = 1 + max(below, default=0)

    def lines(self) -> Iterator[Line]:
        for root in self.graph.roots:
            yield Line(0, opens_branch=False, content=root)
            if root.node in self.claimed:
                yield self._reference(root.node, depth=0, opens_branch=False)
                continue
            open_runs = [self._run(root.node, depth=0)]
            while open_runs:
                item = next(open_runs[-1], None)
                if item is None:
                    open_runs.pop()
                elif isinstance(item, _Branch):
                    open_runs.append(self._run(item.start, depth=item.depth))
                else:
                    yield item

    def _run(self, start: int, *, depth: int) -> Iterator[_Item]:
        run = self._claim_run(start)
        first, last = 0, 0
        if self.limit is not None and len(run) > self.limit:
            first = min(_HEAD, max(1, self.limit // 2))
            last = len(run) - min(_TAIL, max(1, self.limit // 2))
        for place, node_id in enumerate(run):
            if first <= place < last:
                if place == first:
                    yield Line(depth, opens_branch=False, content=self._fold_run(run[first:last]))
                continue
            opens = place == 0 and depth > 0
            yield Line(depth, opens_branch=opens, content=self.graph.node(node_id))
            successor = run[place + 1] if place + 1 < len(run) else None
            yield from self._inputs_of(node_id, successor=successor, depth=depth)

    def _claim_run(self, start: int) -> list[int]:
        run = [start]
        self.claimed.add(start)
        while True:
            free = [edge.target for edge in self.inputs.get(run[-1], ())]
            free = [target for target in free if target not in self.claimed]
            if not free:
                return run
            run.append(max(free, key=self.heights.__getitem__))
            self.claimed.add(run[-1])

    def _inputs_of(self, node_id: int, *, successor: int | None, depth: int) -> Iterator[_Item]:
        """Yield what branches off a node; the last input of a run's end is drawn flat."""
        targets = [edge.target for edge in self.inputs.get(node_id, ())]
        flat = None
        if successor is not None:
            targets.remove(successor)
        elif targets:
            flat = targets.pop()
        first, last = 0, 0
        if self.limit is not None and len(targets) > self.limit:
            first = min(_HEAD, max(1, self.limit // 2))
            last = len(targets) - min(_TAIL, max(1, self.limit // 2))
        for place, target in enumerate(targets):
            if first <= place < last:
                if place == first:
                    hidden = self._hide(targets[first:last])
                    yield Line(depth + 1, opens_branch=True, content=self._fold(hidden))
            elif target in self.claimed:
                yield self._reference(target, depth=depth + 1, opens_branch=True)
            else:
                yield _Branch(target, depth + 1)
        if flat is not None:
            yield self._reference(flat, depth=depth, opens_branch=False)

    def _reference(self, node_id: int, *, depth: int, opens_branch: bool) -> Line:
        return Line(depth, opens_branch, Reference(node_id, is_folded=node_id in self.folded))

    def _fold_run(self, run: Sequence[int]) -> Fold:
        """Fold the nodes of a run together with what branches off them alone."""
        inputs = [edge.target for node_id in run for edge in self.inputs.get(node_id, ())]
        hidden = list(run) + self._hide(inputs)
        self.folded.update(run)
        ops = [self.graph.node(node_id).op for node_id in run]
        period = _period(ops)
        if period is None:
            return self._fold(hidden)
        return self._fold(hidden, period=period, repeats=len(ops) // period)

    def _hide(self, starts: Sequence[int]) -> list[int]:
        """Claim, without drawing them, the nodes that are reached from ``starts`` first."""
        hidden: list[int] = []
        pending = list(starts)
        while pending:
            node_id = pending.pop()
            if node_id in self.claimed:
                continue
            self.claimed.add(node_id)
            hidden.append(node_id)
            pending.extend(edge.target for edge in self.inputs.get(node_id, ()))
        self.folded.update(hidden)
        return hidden

    def _fold(self, hidden: list[int], *, period: int | None = None, repeats: int = 1) -> Fold:
        nodes = [self.graph.node(node_id) for node_id in sorted(hidden)]
        counts = Counter(node.op for node in nodes if node.leaf is None)
        return Fold(
            count=len(nodes),
            op_counts=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
            leaf_names=tuple(node.leaf.name for node in nodes if node.leaf is not None),
            period=period,
            repeats=repeats,
        )


def _period(ops: Sequence[str]) -> int | None:
    """Return the length of the block that ``ops`` repeats, whole or with a part of one more."""
    for period in range(1, min(_LONGEST_PERIOD, len(ops) // 2) + 1):
        if all(ops[place] == ops[place - period] for place in range(period, len(ops))):
            return period
    return None
