"""Group the nodes of a graph for reading: module calls within one another, repeats told once.

A repeat is a run of neighbours that are the same: calls of equal modules, or the same ops over and
over. Same means the same ops, types and edges within, down to the last node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gradcheck_suite.graph.model import AutogradGraph, Node

__all__ = ["READABLE", "Group", "GroupKind", "Groups", "group"]

READABLE = 150
"""A graph of more nodes is grouped; a picture of more boxes is more than people read."""

GroupKind: TypeAlias = Literal["graph", "module", "block", "repeat"]
_LEAST_MODULE = 2
_LEAST_IN_REPEAT = 12
_LEAST_TIMES_OF_OPS = 3
_PERIODS_TRIED = 6
_OPS_NAMED = 3


@dataclass(slots=True)
class Group:
    """Nodes that are drawn as one box, or as a frame round what is in it.

    ``kind`` "repeat" has its members as children: equal groups, the first of which stands for all.
    ``call`` is the module call that a "module" is. ``nodes`` are those directly in it.
    """

    id: int
    parent: int | None
    kind: GroupKind
    title: str
    call: int | None = None
    children: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    size: int = 0
    saved_bytes: int = 0


@dataclass(slots=True)
class Groups:
    """The tree of groups. ``group_of`` gives each node's innermost group, by node id.

    ``stands_for`` gives, for a node in a repeat's further members, its like in the first member,
    by repeat and node id.
    """

    groups: list[Group]
    group_of: list[int]
    stands_for: dict[int, dict[int, int]]

    def module_round(self, node: Node, graph: AutogradGraph) -> str:
        """Return the path of the innermost module that a node of ``graph`` is grouped in."""
        number: int | None = self.group_of[node.id]
        while number is not None:
            entry = self.groups[number]
            if entry.call is not None:
                return graph.calls[entry.call - 1].path
            number = entry.parent
        return ""

    def path(self, group_id: int | None) -> list[int]:
        """Return the groups from the outermost to this one."""
        path: list[int] = []
        while group_id is not None:
            path.append(group_id)
            group_id = self.groups[group_id].parent
        return path[::-1]


def group(graph: AutogradGraph, *, fold: bool | None = None) -> Groups:
    """Group the nodes of ``graph`` by module calls, and tell repeats once.

    Args:
        graph: what to group.
        fold: look for repeats; by default in graphs of more than ``READABLE`` nodes.
    """
    builder = _Builder(graph)
    builder.add_modules()
    if fold if fold is not None else len(graph.nodes) > READABLE:
        builder.fold_repeats()
    return builder.finished()


_Item: TypeAlias = "tuple[Literal['node', 'group'], int]"


class _Builder:
    def __init__(self, graph: AutogradGraph) -> None:
        self.graph = graph
        self.groups = [Group(0, None, "graph", "graph")]
        self.group_of = [0] * (len(graph.nodes) + 1)
        self.stands_for: dict[int, dict[int, int]] = {}
        self.nodes_of: dict[int, list[int]] = {}
        self.kids: dict[int, list[int]] = {}
        self.every: dict[int, list[int]] = {}
        self.known: dict[Hashable, int] = {}
        self.out: list[list[tuple[int, int, int]]] = [[] for _ in range(len(graph.nodes) + 1)]
        self.sources: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
        for edge in graph.edges:
            self.out[edge.source].append((edge.target, edge.input_index, edge.output_index))
            self.sources[edge.target].append(edge.source)
        self.only_source = [
            sources[0] if sources and len(set(sources)) == 1 else 0 for sources in self.sources
        ]

    # Modules.

    def add_modules(self) -> None:
        """Make a group of each module call that has enough in it to be worth a frame."""
        held: Counter[int] = Counter()
        for node in self.graph.nodes:
            holder = node.call
            while holder is not None:
                held[holder] += 1
                holder = self.graph.calls[holder - 1].parent
        of_call: dict[int, int] = {}
        for call in self.graph.calls:
            above = call.parent
            while above is not None and above not in of_call:
                above = self.graph.calls[above - 1].parent
            if held[call.id] >= _LEAST_MODULE:
                parent = of_call[above] if above is not None else 0
                of_call[call.id] = self._new(parent, "module", call.label, call=call.id)
        for node in self.graph.nodes:
            inner = node.call
            while inner is not None and inner not in of_call:
                inner = self.graph.calls[inner - 1].parent
            self.group_of[node.id] = of_call[inner] if inner is not None else 0
        self._place_leaves()

    def _new(self, parent: int, kind: GroupKind, title: str, call: int | None = None) -> int:
        number = len(self.groups)
        self.groups.append(Group(number, parent, kind, title, call))
        return number

    def _place_leaves(self) -> None:
        """Put what forward did not make (leaves) where all its users are.

        A leaf that is no parameter goes into modules, and is not one of theirs.
        """
        for node in self.graph.nodes:
            if node.sequence_number is None and self.sources[node.id]:
                common = self._common(self.sources[node.id])
                if node.leaf is not None and not node.leaf.is_parameter:
                    while self.groups[common].kind == "module":
                        common = self.groups[common].parent or 0
                self.group_of[node.id] = common

    def _common(self, nodes: Sequence[int]) -> int:
        first, *others = dict.fromkeys(self.group_of[node] for node in nodes)
        common = self._path(first)
        for group_id in others:
            other = self._path(group_id)
            shared = 0
            while shared < min(len(common), len(other)) and common[shared] == other[shared]:
                shared += 1
            del common[shared:]
            if shared == 1:
                break
        return common[-1]

    def _path(self, group_id: int | None) -> list[int]:
        path: list[int] = []
        while group_id is not None:
            path.append(group_id)
            group_id = self.groups[group_id].parent
        return path[::-1]

    # Repeats.

    def fold_repeats(self) -> None:
        """Find runs of equal neighbours in every group, innermost groups first."""
        self.nodes_of = self._by_group()
        self.kids = self._by_parent()
        for number in range(len(self.groups) - 1, -1, -1):
            nodes = list(self.nodes_of.get(number, ()))
            for child in self.kids.get(number, ()):
                nodes += self.every[child]
            self.every[number] = sorted(nodes)
            self._fold_in(number)
        self._place_leaves()

    def _by_group(self) -> dict[int, list[int]]:
        by_group: dict[int, list[int]] = defaultdict(list)
        for node in self.graph.nodes:
            by_group[self.group_of[node.id]].append(node.id)
        return by_group

    def _by_parent(self) -> dict[int, list[int]]:
        by_parent: dict[int, list[int]] = defaultdict(list)
        for entry in self.groups[1:]:
            assert entry.parent is not None
            by_parent[entry.parent].append(entry.id)
        return by_parent

    def _fold_in(self, number: int) -> None:
        items = self._items(number)
        labels = [self._label(item) for item in items]
        for found, period, most in _tandems(labels):
            start, times = self._verified(items, found, period, most)
            least = 2 if period == 1 and items[start][0] == "group" else _LEAST_TIMES_OF_OPS
            members = [
                items[start + member * period : start + (member + 1) * period]
                for member in range(times)
            ]
            if times >= least and len(self._nodes_in(members[0])) * times >= _LEAST_IN_REPEAT:
                self._make_repeat(number, members)

    def _items(self, number: int) -> list[_Item]:
        """Return what forward made in a group, in the order of backward."""
        first: dict[int, _Item] = {}
        for node_id in self.nodes_of.get(number, ()):
            if self.graph.nodes[node_id - 1].sequence_number is not None:
                first[node_id] = ("node", node_id)
        for child in self.kids.get(number, ()):
            if self.every[child]:
                first[self.every[child][0]] = ("group", child)
        return [first[node_id] for node_id in sorted(first)]

    def _nodes_in(self, items: Sequence[_Item]) -> list[int]:
        nodes: list[int] = []
        for kind, number in items:
            if kind == "group":
                nodes += self.every[number]
            else:
                nodes.append(number)
                nodes += self._own_leaves(number)
        return sorted(set(nodes))

    def _own_leaves(self, node_id: int) -> list[int]:
        return [
            target
            for target, _, _ in self.out[node_id]
            if self.graph.nodes[target - 1].sequence_number is None
            and self.only_source[target] == node_id
        ]

    def _label(self, item: _Item) -> int:
        kind, number = item
        described: Hashable
        if kind == "node":
            node = self.graph.nodes[number - 1]
            described = (node.op, node.outputs, len(self.out[number]))
        else:
            described = self._signature(self.every[number])
        return self.known.setdefault(described, len(self.known))

    def _signature(self, nodes: Sequence[int]) -> Hashable:
        """Describe nodes so that equal descriptions mean equal groups, whatever the ids."""
        place = {node_id: index for index, node_id in enumerate(nodes)}
        described: list[Hashable] = []
        for node_id in nodes:
            node = self.graph.nodes[node_id - 1]
            edges = tuple(
                (place[target], index, output)
                for target, index, output in self.out[node_id]
                if target in place
            )
            leaf = None if node.leaf is None else (node.leaf.type, node.leaf.is_parameter)
            described.append((node.op, node.outputs, leaf, len(self.out[node_id]), edges))
        return tuple(described)

    def _verified(
        self, items: Sequence[_Item], start: int, period: int, times: int
    ) -> tuple[int, int]:
        """Shorten a run to the members that are the same in every edge."""
        signatures = [
            self._signature(self._nodes_in(items[start + m * period : start + (m + 1) * period]))
            for m in range(times)
        ]
        best, best_times = start, 0
        run_start = 0
        for member in range(1, times + 1):
            if member == times or signatures[member] != signatures[run_start]:
                if member - run_start > best_times:
                    best, best_times = start + run_start * period, member - run_start
                run_start = member
        return best, best_times

    def _make_repeat(self, parent: int, members: Sequence[Sequence[_Item]]) -> None:
        repeat = self._new(parent, "repeat", "")
        lists = [self._nodes_in(items) for items in members]
        self.every[repeat] = [node_id for nodes in lists for node_id in nodes]
        titles: list[str] = []
        for place, (items, nodes) in enumerate(zip(members, lists, strict=True)):
            if len(items) == 1 and items[0][0] == "group":
                member = items[0][1]
                self.groups[member].parent = repeat
            else:
                member = self._new(repeat, "block", f"block {len(members) - place}")
                self.every[member] = nodes
                for kind, number in items:
                    if kind == "group":
                        self.groups[number].parent = member
                    else:
                        self.group_of[number] = member
                        for leaf in self._own_leaves(number):
                            self.group_of[leaf] = member
            titles.append(self.groups[member].title)
        # Backward meets the last block of forward first; people count the other way.
        self.groups[repeat].title = _span(titles[-1], titles[0], self._what(members[0]))
        self.stands_for[repeat] = {
            node_id: like
            for nodes in lists[1:]
            for node_id, like in zip(nodes, lists[0], strict=True)
        }

    def _what(self, items: Sequence[_Item]) -> str:
        ops = [
            self.graph.nodes[number - 1].op.partition("Backward")[0]
            for kind, number in items
            if kind == "node"
        ]
        return ", ".join(ops[:_OPS_NAMED]) + (", …" if len(ops) > _OPS_NAMED else "")

    def finished(self) -> Groups:
        """Number the groups from the outside in, leave empty ones out, and sum up."""
        order: list[int] = []
        by_group = self._by_group()
        children = self._by_parent()
        total: dict[int, list[int]] = {}

        def first(number: int) -> int:
            return min(total[number]) if total[number] else 0

        for number in reversed(_outside_in(children)):
            total[number] = list(by_group.get(number, ()))
            for child in children.get(number, ()):
                total[number] += total[child]
        pending = [0]
        while pending:
            number = pending.pop()
            order.append(number)
            kept = [child for child in children.get(number, ()) if total[child]]
            pending += sorted(kept, key=first, reverse=True)
        new = {old: index for index, old in enumerate(order)}
        groups: list[Group] = []
        for old in order:
            entry = self.groups[old]
            nodes = total[old]
            groups.append(
                Group(
                    id=new[old],
                    parent=None if entry.parent is None else new[entry.parent],
                    kind=entry.kind,
                    title=entry.title,
                    call=entry.call,
                    children=sorted(new[c] for c in children.get(old, ()) if c in new),
                    nodes=by_group.get(old, []),
                    size=len(nodes),
                    saved_bytes=sum(self.graph.nodes[n - 1].saved_bytes for n in nodes),
                )
            )
        return Groups(
            groups=groups,
            group_of=[new[number] for number in self.group_of],
            stands_for={new[repeat]: likes for repeat, likes in self.stands_for.items()},
        )


def _outside_in(children: dict[int, list[int]]) -> list[int]:
    order = [0]
    for number in order:
        order += children.get(number, ())
    return order


def _span(first: str, last: str, ops: str) -> str:
    if first.startswith("block ") and last.startswith("block "):
        return ops
    name, found, number = last.partition(" (call ")
    if found and first.partition(" (call ")[0] == name:
        started = first.partition(" (call ")[2].rstrip(")") or "1"
        return f"{name}, calls {started} … {number.rstrip(')')}"
    return f"{first} … {last}"


def _tandems(labels: Sequence[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, period, times) of runs that repeat, the longest first, none overlapping."""
    length = len(labels)
    last: dict[Hashable, int] = {}
    distances: Counter[int] = Counter()
    for place, label in enumerate(labels):
        if label in last:
            distances[place - last[label]] += 1
        last[label] = place
    common = [period for period, _ in distances.most_common(_PERIODS_TRIED)]
    # A label that comes twice in each block is seen at less than the block's length.
    for period in sorted({*common, *(a + b for a in common[:3] for b in common[:3])}):
        if period not in common and period <= length // 2:
            common.append(period)
    runs: list[tuple[int, int, int, int]] = []
    for period in common:
        equal = 0
        for place in range(period, length + 1):
            if place < length and labels[place] == labels[place - period]:
                equal += 1
                continue
            times = equal // period + 1
            if times > 1:
                runs.append((-times * period, period, place - equal - period, times))
            equal = 0
    taken = [False] * length
    chosen: list[tuple[int, int, int]] = []
    for _, period, start, times in sorted(runs):
        span = range(start, start + period * times)
        if not any(taken[place] for place in span):
            for place in span:
                taken[place] = True
            chosen.append((start, period, times))
    yield from sorted(chosen)
