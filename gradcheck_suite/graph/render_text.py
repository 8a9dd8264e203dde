"""Draw a graph as a text tree, for terminals, pipes and ``.txt`` files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_suite.graph._outline import Fold, Line, Reference, Unfinished, outline
from gradcheck_suite.graph.model import Leaf, Node, Root, TensorType
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import byte_count, encodable, number, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["DEFAULT_LIMIT", "graph_renderables", "graph_to_text"]

DEFAULT_LIMIT = 500
"""A straight run of more nodes is folded when a graph is printed."""

_DEFAULT_WIDTH = 80
_NARROWEST = 40
_NAME_LENGTH = 120
_DEEPEST = 12
_LISTED = 4
_SUMMARY_ROWS = 20
_CONTINUATION = "    "


@dataclass(frozen=True, slots=True)
class _Guides:
    """The marks that lead the eye."""

    along: str
    branch: str
    see: str
    ellipsis: str
    times: str

    def fit(self, encoding: str | None) -> bool:
        """Whether text with these marks can be written in ``encoding``."""
        marks = self.along + self.branch + self.see + self.ellipsis + self.times
        return encodable(marks, encoding) == marks


_UNICODE = _Guides(along="│  ", branch="├─ ", see="→ see", ellipsis="…", times="\u00d7")
_ASCII = _Guides(along="|  ", branch="|- ", see="-> see", ellipsis="...", times="x")


def graph_to_text(
    graph: AutogradGraph,
    *,
    width: int = _DEFAULT_WIDTH,
    limit: int | None = DEFAULT_LIMIT,
    encoding: str | None = None,
    with_findings: bool = True,
) -> str:
    """Draw ``graph`` as plain text that ends with a newline.

    Args:
        graph: what to draw.
        width: columns to stay within.
        limit: straight runs longer than this are folded; None draws every node.
        encoding: what the text must be expressible in; None stands for any text.
        with_findings: end with the findings and with what could not be looked at.
    """
    console = Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False, emoji=False
    )
    with console.capture() as capture:
        for renderable in graph_renderables(
            graph, width=width, limit=limit, encoding=encoding, with_findings=with_findings
        ):
            console.print(renderable, highlight=False, markup=False)
    lines = (line.rstrip() for line in capture.get().splitlines())
    return encodable("\n".join(lines) + "\n", encoding)


def graph_renderables(
    graph: AutogradGraph,
    *,
    width: int,
    limit: int | None = DEFAULT_LIMIT,
    encoding: str | None = None,
    with_findings: bool = True,
) -> Iterator[RenderableType]:
    """Yield what rich prints for ``graph`` on a console that is ``width`` cells wide."""
    width = max(width, _NARROWEST)
    guides = _UNICODE if _UNICODE.fit(encoding) else _ASCII
    yield from _wrapped(_headline(graph), width=width)
    yield from _wrapped(
        Text(f"Backward runs from the top down to the leaves. {graph.state}"), width=width
    )
    yield Text()
    for line in outline(graph, limit=limit):
        yield from _drawn(line, guides=guides, width=width)
    yield Text()
    yield _summary(graph, guides=guides)
    if with_findings:
        yield from _findings(graph, width=width)


def _headline(graph: AutogradGraph) -> Text:
    saved = byte_count(graph.saved_bytes)
    at_least = "" if graph.saved_bytes_are_complete else "at least "
    text = (
        f"Autograd graph: {plural(len(graph.nodes), 'node')}, {plural(len(graph.edges), 'edge')}, "
        f"{plural(len(graph.leaves), 'leaf', 'leaves')}, {at_least}{saved} saved for backward"
    )
    if graph.ignored:
        text += f"; {plural(len(graph.ignored), 'tensor')} without a graph left out"
    return Text(text, style="bold")


def _drawn(line: Line, *, guides: _Guides, width: int) -> Iterator[Text]:
    # Deep branches share the deepest column, so that there is always room for the text.
    depth = min(line.depth, _DEEPEST)
    lead = guides.along * (depth - 1) + guides.branch if line.opens_branch else guides.along * depth
    follow = guides.along * depth + _CONTINUATION
    content = _content(line, guides=guides)
    if isinstance(line.content, Root):
        follow = _CONTINUATION
    yield from _wrapped(content, width=width, lead=lead, follow=follow)


def _content(line: Line, *, guides: _Guides) -> Text:
    content = line.content
    if isinstance(content, Root):
        text = Text(_name(content.name), style="bold")
        return text.append(f"  {_type(content.type)}" if content.type else "", style="not bold")
    if isinstance(content, Reference):
        where = " (folded)" if content.is_folded else ""
        return Text(f"{guides.see} #{content.node_id}{where}", style="dim")
    if isinstance(content, Fold):
        return Text(_fold(content, guides=guides), style="italic")
    if isinstance(content, Unfinished):
        return Text(
            f"{guides.ellipsis} {plural(content.count, 'more node')} not drawn; "
            "graph.save('graph.txt') writes all",
            style="italic",
        )
    level = f" [level {line.depth}]" if line.depth > _DEEPEST else ""
    text = Text(f"#{content.id}{level} ", style="dim")
    text.append(
        _leaf_name(content.leaf) if content.leaf else _name(content.op), style=_style(content)
    )
    details = _leaf_details(content.leaf) if content.leaf else _node_details(content)
    return text.append("".join(f"  {detail}" for detail in details), style="not bold not dim")


def _style(node: Node) -> str:
    if node.freed or node.kind == "undefined" or not node.saved_is_visible:
        return "not dim red"
    return {"leaf": "not dim green", "custom function": "not dim magenta"}.get(
        node.kind, "not dim bold"
    )


def _leaf_name(leaf: Leaf) -> str:
    return _name(leaf.name.rpartition(".")[-1])


def _leaf_details(leaf: Leaf) -> list[str]:
    kind = "parameter" if leaf.is_parameter else "leaf tensor"
    names = " = ".join(_name(name) for name in leaf.names)
    return [_type(leaf.type), f"{kind} {names}".rstrip()]


def _node_details(node: Node) -> list[str]:
    types = [_type(known) for known in node.outputs]
    details = [", ".join(types[:_LISTED])] if types else []
    if len(types) > _LISTED:
        details.append(f"and {plural(len(types) - _LISTED, 'more output')}")
    if node.location:
        path = _name(display_path(node.location.path))
        details.append(f"custom function at {path}:{node.location.line}")
    elif node.kind == "custom function":
        details.append("custom function")
    elif node.kind == "undefined":
        raises = "Undefined" not in node.op
        details.append("backward raises here" if raises else "no gradient comes from here")
    counted = [saved.name for saved in node.saved if saved.bytes]
    if counted:
        listed = ", ".join(map(visible, counted[:_LISTED]))
        more = f" and {len(counted) - _LISTED} more" if len(counted) > _LISTED else ""
        details.append(f"saves {byte_count(node.saved_bytes)}: {listed}{more}")
    hooked = sum(saved.hooked for saved in node.saved)
    if hooked:
        details.append(f"{plural(hooked, 'saved tensor')} held by hooks")
    if not node.saved_is_visible:
        details.append("in-place write into a view; what it saved is not visible")
    if node.freed:
        details.append("freed by an earlier backward")
    return details


def _type(known: TensorType | None) -> str:
    return f"{known.shape} {known.dtype}" if known else "unknown shape"


def _name(name: str) -> str:
    """Make a name safe to print, and shorten one that would fill the screen in its middle."""
    if len(name) > _NAME_LENGTH:
        half = _NAME_LENGTH // 2
        name = f"{name[:half]}…{name[-half:]} ({number(len(name))} characters)"
    return visible(name)


def _fold(fold: Fold, *, guides: _Guides) -> str:
    text = f"{guides.ellipsis} {number(fold.count)} more"
    if fold.period is not None and fold.period > 1:
        text += f", the same {plural(fold.period, 'op')} {plural(fold.repeats, 'time')} over"
    ops = [f"{number(count)} {guides.times} {_name(op)}" for op, count in fold.op_counts]
    if len(ops) > _LISTED:
        ops = [*ops[:_LISTED], f"{len(ops) - _LISTED} other kinds"]
    if fold.leaf_names:
        names = ", ".join(_name(name) for name in fold.leaf_names[:_LISTED])
        more = f" and {number(len(fold.leaf_names) - _LISTED)} more"
        ops.append(f"leaves {names}{more if len(fold.leaf_names) > _LISTED else ''}")
    return f"{text}: {', '.join(ops)}"


def _summary(graph: AutogradGraph, *, guides: _Guides) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("of op", overflow="fold")
    table.add_column("saved", justify="right", no_wrap=True)
    saved: dict[str, int] = {}
    for node in graph.nodes:
        saved[node.op] = saved.get(node.op, 0) + node.saved_bytes
    counts = graph.op_counts
    for op, count in counts[:_SUMMARY_ROWS]:
        table.add_row(number(count), Text(_name(op)), byte_count(saved[op]) if saved[op] else "")
    rest = counts[_SUMMARY_ROWS:]
    if rest:
        rest_bytes = sum(saved[op] for op, _ in rest)
        table.add_row(
            number(sum(count for _, count in rest)),
            f"{guides.ellipsis} {len(rest)} other kinds",
            byte_count(rest_bytes) if rest_bytes else "",
        )
    for kind, is_parameter in (("parameters", True), ("other leaves", False)):
        leaves = sum(
            node.leaf.is_parameter is is_parameter for node in graph.nodes if node.leaf is not None
        )
        if leaves:
            table.add_row(number(leaves), kind, "")
    table.add_row(number(len(graph.nodes)), "all", byte_count(graph.saved_bytes))
    return table


def _findings(graph: AutogradGraph, *, width: int) -> Iterator[Text]:
    for finding in graph.findings:
        yield Text()
        text = Text(f"{finding.severity.value} {finding.code} {finding.rule}: ", style="bold")
        text.append(finding.message, style="not bold")
        yield from _wrapped(text, width=width)
        if finding.hint:
            yield from _wrapped(Text(f"hint: {finding.hint}"), width=width)
    for line in graph.report.not_covered:
        yield Text()
        yield from _wrapped(Text(f"not covered: {line}"), width=width)


def _wrapped(text: Text, *, width: int, lead: str = "", follow: str = "") -> Iterator[Text]:
    room = width - max(len(lead), len(follow))
    lines = text.wrap(Console(width=width, file=io.StringIO()), room)
    for place, line in enumerate(lines):
        line.rstrip()
        yield Text.assemble((follow if place else lead, "dim"), line, no_wrap=True)
