"""Decide what a picture shows, and put it in its place.

A group is closed (one box), open (a frame round what is in it), or, for a repeat, open "once": its
first member stands for all. The viewer does the same in JavaScript when a reader opens or closes
one: ``docs/development/graph-layout.md`` specifies both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite.graph.layout.grouping import READABLE, Group, Groups, group
from gradcheck_suite.graph.layout.labels import Label, label_group, label_node, marked_nodes
from gradcheck_suite.graph.layout.sugiyama import Arc, Placed, layered
from gradcheck_suite.graph.layout.text_metrics import shortened, text_width
from gradcheck_suite.graph.model import AutogradGraph
from gradcheck_suite.reporting.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.graph.model import EdgeGradient

__all__ = [
    "ALL",
    "Box",
    "Drawing",
    "Frame",
    "Picture",
    "Wire",
    "draw",
    "frame_title",
    "frame_title_width",
    "picture",
]

Item: TypeAlias = "tuple[Literal['node', 'group'], int]"
Net: TypeAlias = "tuple[Item, str]"
"""What edges that share a way have in common: the box that they lead to, and what they carry."""
State: TypeAlias = Literal["closed", "once", "open"]

ALL = -1
"""The depth that opens every group."""
_HEADER = 24.0
_PADDING = 12.0
_PORT = 6.0
_FEW = 60
"""Groups are opened on their own as long as no more boxes than this are shown."""
_FRAME_TITLE = 11.0


@dataclass(frozen=True, slots=True)
class Box:
    """A node, or a closed group: ``x`` and ``y`` are its left upper corner."""

    item: Item
    label: Label
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Frame:
    """An open group."""

    group: int
    title: str
    depth: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Wire:
    """All edges within one frame that lead to one box alike, as pieces (x1, y1, x2, y2).

    ``state`` says whether the gradient there is NaN or infinite ("bad"), or zero ("zero").
    ``ends`` says whether the last piece reaches the box itself and not just a frame on the way.
    """

    target: Item
    state: str
    segments: tuple[tuple[float, float, float, float], ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything in its place."""

    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    wires: tuple[Wire, ...]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph ready to be drawn: its groups, the words of every box, what is open at first."""

    graph: AutogradGraph
    groups: Groups
    node_labels: tuple[Label, ...]
    group_labels: tuple[Label, ...]
    states: tuple[State, ...]
    marks: Mapping[int, str]


def picture(
    graph: AutogradGraph, *, depth: int | None = None, flagged: Mapping[int, str] | None = None
) -> Picture:
    """Make a picture of ``graph``.

    Args:
        graph: what to draw.
        depth: levels of groups to open; ``ALL`` for every one. By default all of a graph of up to
            ``READABLE`` nodes, and of a larger one as many levels as stay readable.
        flagged: severities of nodes to flag; by default those of the findings.
    """
    groups = group(graph, fold=False if depth == ALL else None)
    marks = marked_nodes(graph) if flagged is None else flagged
    in_group: dict[int, int] = defaultdict(int)
    for node_id in marks:
        for group_id in groups.path(groups.group_of[node_id]):
            in_group[group_id] += 1
    gradients: dict[int, list[EdgeGradient]] = {}
    for edge in graph.edges:
        if edge.gradient is not None:
            gradients.setdefault(edge.target, []).append(edge.gradient)
    starts: dict[int, list[str]] = {}
    if len(graph.roots) > 1:
        for root in graph.roots:
            starts.setdefault(root.node, []).append(root.name)
    return Picture(
        graph=graph,
        groups=groups,
        node_labels=tuple(
            label_node(
                node,
                mark=marks.get(node.id),
                within=groups.module_round(node, graph),
                gradients=gradients.get(node.id, ()),
                freed_is_news=not gradients,
                starts=starts.get(node.id, ()),
            )
            for node in graph.nodes
        ),
        group_labels=tuple(
            label_group(entry, module=_class_of(graph, groups, entry), marks=in_group[entry.id])
            for entry in groups.groups
        ),
        states=_states(groups, depth=depth),
        marks=marks,
    )


def _class_of(graph: AutogradGraph, groups: Groups, entry: Group) -> str | None:
    """Name the class of the module that a group is, or that a repeat's members are."""
    if entry.kind == "repeat":
        entry = groups.groups[entry.children[0]]
    return None if entry.call is None else graph.calls[entry.call - 1].kind


def frame_title(shown: Picture, number: int, state: State) -> str:
    """Title the frame of an open group."""
    entry = shown.groups.groups[number]
    label = shown.group_labels[number]
    title = label.title
    kind = _class_of(shown.graph, shown.groups, entry)
    if entry.kind == "module" and kind is not None and kind != entry.title:
        title += f" \u00b7 {shortened(visible(kind), 40)}"
    return f"{title} \u00b7 one shown" if state == "once" else title


def frame_title_width(title: str) -> float:
    """Return the room that a frame's title needs."""
    return float(int(text_width(title, size=_FRAME_TITLE, bold=True) + 40.0))


def _states(groups: Groups, *, depth: int | None) -> tuple[State, ...]:
    states: list[State] = ["closed"] * len(groups.groups)
    states[0] = "open"
    if depth == ALL or (depth is None and groups.groups[0].size <= READABLE):
        return tuple("open" for _ in states)
    shown = _shown(groups, 0)
    level = list(groups.groups[0].children)
    opened = 0
    while level and (depth is None or opened < depth):
        below: list[int] = []
        # The largest level that stays readable; within it, small groups first.
        for number in sorted(level, key=lambda g: (_shown(groups, g), g)):
            entry = groups.groups[number]
            is_repeat = entry.kind == "repeat"
            more = _shown(groups, entry.children[0] if is_repeat else number) - 1
            if depth is None and shown + more > _FEW:
                continue
            shown += more
            states[number] = "once" if is_repeat else "open"
            inner = [entry.children[0]] if is_repeat else [number]
            if is_repeat:
                states[entry.children[0]] = "open"
            for open_group in inner:
                below += groups.groups[open_group].children
        level = below
        opened += 1
    return tuple(states)


def _shown(groups: Groups, number: int) -> int:
    entry = groups.groups[number]
    return len(entry.nodes) + len(entry.children)


@dataclass(slots=True)
class _Level:
    """What lies directly in one open group."""

    items: list[Item] = field(default_factory=list)
    ways: dict[tuple[Item, Item, Net], None] = field(default_factory=dict)
    tops: dict[Net, None] = field(default_factory=dict)
    bottoms: dict[Net, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Laid:
    """A group that is laid out: sizes, and where arcs come in and go out, from its middle."""

    placed: Placed
    items: list[Item]
    width: float
    height: float
    shift_x: float
    tops: dict[Net, float]
    bottoms: dict[Net, float]
    targets: dict[int, tuple[Net, bool]]


_PORT_TOP: Item = ("group", -1)
_PORT_BOTTOM: Item = ("group", -2)


def draw(shown: Picture, states: Sequence[State] | None = None) -> Drawing:
    """Lay out a picture, with the groups open that it opens, or that ``states`` says."""
    return _Drawer(shown, states if states is not None else shown.states).drawing()


class _Drawer:
    def __init__(self, shown: Picture, states: Sequence[State]) -> None:
        self.shown = shown
        self.groups = shown.groups
        self.states = states
        self.levels: dict[int, _Level] = {}
        self.laid: dict[int, _Laid] = {}
        self.boxes: list[Box] = []
        self.frames: list[Frame] = []
        self.wires: list[Wire] = []

    def drawing(self) -> Drawing:
        self._collect()
        for number in reversed(self._open_groups()):
            self._lay_out(number)
        self._put(0, 0.0, 0.0, 0)
        root = self.laid[0]
        return Drawing(
            tuple(self.boxes), tuple(self.frames), tuple(self.wires), root.width, root.height
        )

    def _open_groups(self) -> list[int]:
        found = [0]
        for number in found:
            found += [
                n for kind, n in self.levels[number].items if kind == "group" and self._open(n)
            ]
        return found

    def _open(self, number: int) -> bool:
        return self.states[number] != "closed"

    def _representatives(self) -> list[int]:
        """Return, for each node, the one that is drawn for it."""
        drawn_as = list(range(len(self.shown.graph.nodes) + 1))
        for entry in self.groups.groups:
            # From the outside in: an outer repeat's members hold repeats of their own.
            if entry.kind == "repeat" and self.states[entry.id] == "once":
                stands_for = self.groups.stands_for[entry.id]
                for node_id, drawn in enumerate(drawn_as):
                    drawn_as[node_id] = stands_for.get(drawn, drawn)
        return drawn_as

    def _collect(self) -> None:
        drawn_as = self._representatives()
        item_of: list[Item] = [("node", 0)] * len(drawn_as)
        path_of: dict[Item, list[int]] = {}
        closed_at: dict[int, int | None] = {}
        paths: dict[int, list[int]] = {}
        for entry in self.groups.groups:
            above = None if entry.parent is None else closed_at[entry.parent]
            if above is None and not self._open(entry.id):
                above = entry.id
            closed_at[entry.id] = above
            paths[entry.id] = (
                [entry.id] if entry.parent is None else [*paths[entry.parent], entry.id]
            )
        self.levels = {
            entry.id: _Level() for entry in self.groups.groups if closed_at[entry.id] is None
        }
        present: dict[Item, None] = {}
        for node in self.shown.graph.nodes:
            drawn = drawn_as[node.id]
            inner = self.groups.group_of[drawn]
            closed = closed_at[inner]
            item: Item = ("node", drawn) if closed is None else ("group", closed)
            item_of[node.id] = item
            if item in present:
                continue
            present[item] = None
            parent = self.groups.groups[closed].parent if closed is not None else inner
            path_of[item] = paths[parent] if parent is not None else [0]
            self.levels[path_of[item][-1]].items.append(item)
        in_use = [0]
        for number in in_use:
            for child in self.groups.groups[number].children:
                if self._open(child) and child in self.levels and self._is_shown(number, child):
                    self.levels[number].items.append(("group", child))
                    in_use.append(child)
        for number in in_use:
            self.levels[number].items.sort(key=self._first_node)
        self._join(item_of, path_of)

    def _join(self, item_of: Sequence[Item], path_of: Mapping[Item, list[int]]) -> None:
        """Lead the edges from box to box, several between two boxes as one."""
        members_of_repeats = self._members_of_repeats()
        pairs: dict[tuple[Item, Item], str] = {}
        for edge in self.shown.graph.edges:
            source, target = item_of[edge.source], item_of[edge.target]
            if source == target:
                continue
            if any(_differ(members, edge.source, edge.target) for members in members_of_repeats):
                continue
            state = _state(edge.gradient)
            known = pairs.setdefault((source, target), state)
            if known != state:
                pairs[source, target] = "bad" if "bad" in {known, state} else ""
        for (source, target), state in pairs.items():
            self._connect(source, (target, state), path_of)

    def _is_shown(self, parent: int, child: int) -> bool:
        entry = self.groups.groups[parent]
        return not (
            entry.kind == "repeat" and self.states[parent] == "once" and child != entry.children[0]
        )

    def _first_node(self, item: Item) -> int:
        kind, number = item
        if kind == "node":
            return number
        entry = self.groups.groups[number]
        while not entry.nodes:
            entry = self.groups.groups[entry.children[0]]
        return entry.nodes[0]

    def _members_of_repeats(self) -> list[dict[int, int]]:
        """Return, for each repeat that is shown once, the member that each node is in."""
        found: list[dict[int, int]] = []
        for entry in self.groups.groups:
            if entry.kind == "repeat" and self.states[entry.id] == "once":
                members: dict[int, int] = {}
                for child in entry.children:
                    pending = [child]
                    while pending:
                        inner = self.groups.groups[pending.pop()]
                        members.update(dict.fromkeys(inner.nodes, child))
                        pending += inner.children
                found.append(members)
        return found

    def _connect(self, source: Item, net: Net, path_of: Mapping[Item, list[int]]) -> None:
        target, _ = net
        down, up = path_of[source], path_of[target]
        shared = 0
        while shared < len(down) and shared < len(up) and down[shared] == up[shared]:
            shared += 1
        common = self.levels[down[shared - 1]]
        first: Item = ("group", down[shared]) if shared < len(down) else source
        last: Item = ("group", up[shared]) if shared < len(up) else target
        common.ways[first, last, net] = None
        for place in range(shared, len(down)):
            level = self.levels[down[place]]
            inner: Item = ("group", down[place + 1]) if place + 1 < len(down) else source
            level.bottoms[net] = None
            level.ways[inner, _PORT_BOTTOM, net] = None
        for place in range(shared, len(up)):
            level = self.levels[up[place]]
            inner = ("group", up[place + 1]) if place + 1 < len(up) else target
            level.tops[net] = None
            level.ways[_PORT_TOP, inner, net] = None

    def _size(self, item: Item) -> tuple[float, float]:
        kind, number = item
        if kind == "group" and self._open(number):
            laid = self.laid[number]
            return laid.width, laid.height
        label = self._label(item)
        return label.width, label.height

    def _label(self, item: Item) -> Label:
        kind, number = item
        return (
            self.shown.node_labels[number - 1]
            if kind == "node"
            else self.shown.group_labels[number]
        )

    def _lay_out(self, number: int) -> None:
        level = self.levels[number]
        sizes = [self._size(item) for item in level.items]
        places = {item: place for place, item in enumerate(level.items)}
        tops: dict[Net, int] = {}
        bottoms: dict[Net, int] = {}
        for ports, wanted in ((tops, level.tops), (bottoms, level.bottoms)):
            for net in wanted:
                ports[net] = len(sizes)
                sizes.append((_PORT, 0.0))
        nets: dict[Net, int] = {}
        arcs: list[Arc] = []
        targets: dict[int, tuple[Net, bool]] = {}
        for source, target, net in level.ways:
            start = tops[net] if source == _PORT_TOP else places[source]
            end = bottoms[net] if target == _PORT_BOTTOM else places[target]
            code = nets.setdefault(net, len(nets))
            targets[code] = (net, target == net[0])
            arcs.append(
                Arc(
                    start,
                    end,
                    code,
                    self._out_at(source, net),
                    self._in_at(target, net),
                )
            )
        placed = layered(sizes, arcs, top=list(tops.values()), bottom=list(bottoms.values()))
        title = 0.0
        if number:
            title = frame_title_width(self._frame_title(number))
        inner = max(placed.width, title)
        shift = (inner - placed.width) / 2 + _PADDING
        width = float(int(inner + 2 * _PADDING + 1))
        height = placed.height + 2 * _PADDING + (_HEADER if number else 0.0)
        self.laid[number] = _Laid(
            placed=placed,
            items=level.items,
            width=width,
            height=height,
            shift_x=shift,
            tops={net: placed.x[place] + shift - width / 2 for net, place in tops.items()},
            bottoms={net: placed.x[place] + shift - width / 2 for net, place in bottoms.items()},
            targets=targets,
        )

    def _out_at(self, item: Item, net: Net) -> float:
        if item[0] == "group" and item[1] >= 0 and self._open(item[1]):
            return self.laid[item[1]].bottoms[net]
        return 0.0

    def _in_at(self, item: Item, net: Net) -> float:
        if item[0] == "group" and item[1] >= 0 and self._open(item[1]):
            return self.laid[item[1]].tops[net]
        return 0.0

    def _frame_title(self, number: int) -> str:
        return frame_title(self.shown, number, self.states[number])

    def _put(self, number: int, left: float, top: float, depth: int) -> None:
        pending = [(number, left, top, depth)]
        while pending:
            number, left, top, depth = pending.pop()
            laid = self.laid[number]
            if number:
                self.frames.append(
                    Frame(
                        number, self._frame_title(number), depth, left, top, laid.width, laid.height
                    )
                )
            x0 = left + laid.shift_x
            y0 = top + _PADDING + (_HEADER if number else 0.0)
            # Wires that cross the frame go on to its border.
            upper, lower = top, top + laid.height
            for code, segments in laid.placed.segments.items():
                net, ends = laid.targets[code]
                moved = [(x0 + x1, y0 + y1, x0 + x2, y0 + y2) for x1, y1, x2, y2 in segments]
                if net in laid.tops:
                    x = left + laid.width / 2 + laid.tops[net]
                    moved.append((x, upper, x, y0))
                if net in laid.bottoms:
                    x = left + laid.width / 2 + laid.bottoms[net]
                    moved.append((x, y0 + laid.placed.height, x, lower))
                self.wires.append(Wire(*net, tuple(moved), ends))
            for place, item in enumerate(laid.items):
                width, _ = self._size(item)
                x = x0 + laid.placed.x[place] - width / 2
                y = y0 + laid.placed.y[place]
                if item[0] == "group" and self._open(item[1]):
                    pending.append((item[1], x, y, depth + 1))
                else:
                    self.boxes.append(Box(item, self._label(item), x, y))


def _state(gradient: EdgeGradient | None) -> str:
    if gradient is None:
        return ""
    if gradient.non_finite:
        return "bad"
    return "zero" if gradient.is_zero or gradient.is_missing else ""


def _differ(members: Mapping[int, int], source: int, target: int) -> bool:
    """Return whether an edge leads from one member of a repeat to another."""
    first, second = members.get(source), members.get(target)
    return first is not None and second is not None and first != second
