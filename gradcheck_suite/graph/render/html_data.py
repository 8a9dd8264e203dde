"""Write a picture as data for the viewer in HTML files: short, and in plain words on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.graph.layout.labels import nodes_of, short_type, worst_first
from gradcheck_suite.graph.layout.view import frame_title, frame_title_width
from gradcheck_suite.graph.render.svg import headline
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import visible

if TYPE_CHECKING:
    from gradcheck_suite.findings import JSON, Location
    from gradcheck_suite.graph.layout.labels import Label
    from gradcheck_suite.graph.layout.view import Picture
    from gradcheck_suite.graph.model import Edge, Node, SavedTensor

__all__ = ["page_data"]

_MEMORY_ROWS = 12


class _Strings:
    """Every text once; elsewhere its number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str | None) -> int | None:
        if text is None:
            return None
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


def page_data(shown: Picture) -> dict[str, JSON]:
    """Return what ``assets/viewer.js`` reads, by the same names."""
    graph = shown.graph
    strings = _Strings()
    labels: dict[Label, int] = {}
    for label in (*shown.node_labels, *shown.group_labels):
        labels.setdefault(label, len(labels))
    nodes: list[JSON] = [
        _node(node, shown, labels[shown.node_labels[node.id - 1]], strings) for node in graph.nodes
    ]
    groups: list[JSON] = [
        {
            "parent": entry.parent,
            "kind": entry.kind,
            "label": labels[shown.group_labels[entry.id]],
            "children": tuple(entry.children),
            "nodes": tuple(entry.nodes),
            "size": entry.size,
            "bytes": entry.saved_bytes,
            **_titles(shown, entry.id),
        }
        for entry in shown.groups.groups
    ]
    repeats: dict[str, JSON] = {
        str(repeat): [[node, like] for node, like in likes.items()]
        for repeat, likes in shown.groups.stands_for.items()
    }
    memory = graph.memory_by_module
    rest = [size for _, size in memory[_MEMORY_ROWS:]]
    return {
        "headline": headline(graph),
        "state": graph.state,
        "labels": [
            [label.title, list(label.lines), " ".join(label.classes), label.width, label.height]
            for label in labels
        ],
        "nodes": nodes,
        "groups": groups,
        "repeats": repeats,
        "edges": [_edge(edge) for edge in graph.edges],
        "states": tuple(shown.states),
        "roots": [
            [visible(root.name), root.node, "" if root.type is None else short_type(root.type)]
            for root in graph.roots
        ],
        "ignored": [visible(name) for name in graph.ignored],
        "findings": [
            [
                finding.severity.value,
                f"{finding.code} {finding.rule}",
                finding.message,
                finding.hint or "",
                nodes_of(finding),
                "" if finding.location is None else _place(finding.location),
            ]
            for finding in worst_first(graph.findings)
        ],
        "not_covered": graph.report.not_covered,
        "memory": [
            [visible(name) or "outside modules", size] for name, size in memory[:_MEMORY_ROWS]
        ],
        "memory_more": [len(rest), sum(rest)],
        "strings": tuple(strings.texts),
    }


def _titles(shown: Picture, number: int) -> dict[str, JSON]:
    title = frame_title(shown, number, "open")
    found: dict[str, JSON] = {"title": title, "titleWidth": frame_title_width(title)}
    if shown.groups.groups[number].kind == "repeat":
        once = frame_title(shown, number, "once")
        found |= {"once": once, "onceWidth": frame_title_width(once)}
    return found


def _node(node: Node, shown: Picture, label: int, strings: _Strings) -> JSON:
    graph = shown.graph
    call = None if node.call is None else graph.calls[node.call - 1]
    # As the title of a frame says it; the model itself has no path.
    module = None if call is None else " \u00b7 ".join(filter(None, (call.path, call.kind)))
    flags = [
        *(["freed by an earlier backward"] if node.freed else []),
        *([] if node.saved_is_visible else ["what it saved is not visible"]),
    ]
    leaf = None
    if node.leaf is not None:
        names = " = ".join(visible(name) for name in node.leaf.names) or "unnamed"
        leaf = f"{'parameter' if node.leaf.is_parameter else 'leaf tensor'} {names}"
    return [
        label,
        shown.groups.group_of[node.id],
        strings(visible(node.op)),
        node.sequence_number,
        strings(None if module is None else visible(module)),
        strings(None if call is None or call.number == 1 else f"call {call.number}"),
        strings(None if node.source is None else _place(node.source)),
        strings(None if node.location is None else _place(node.location)),
        strings(leaf),
        [strings(short_type(known)) for known in node.outputs],
        [_saved(saved, strings) for saved in node.saved],
        strings("; ".join(flags) or None),
    ]


def _saved(saved: SavedTensor, strings: _Strings) -> JSON:
    words = None
    if saved.hooked:
        words = "held by saved-tensor hooks"
    elif saved.modified:
        words = "overwritten since: backward raises"
    elif saved.owner is not None:
        words = f"same memory as {visible(saved.owner)}"
    kind = None if saved.hooked else short_type(saved.type)
    return [strings(visible(saved.name)), strings(kind), saved.storage_bytes, strings(words)]


def _edge(edge: Edge) -> JSON:
    ends: list[JSON] = [edge.source, edge.target, edge.input_index, edge.output_index]
    gradient = edge.gradient
    if gradient is None:
        return ends
    return [*ends, gradient.norm, gradient.zeros, gradient.elements, gradient.non_finite]


def _place(location: Location) -> str:
    where = f"{visible(display_path(location.path))}:{location.line}"
    return f"{where} in {visible(location.function)}" if location.function else where
