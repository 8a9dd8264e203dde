"""Draw a graph as a text tree, for terminals, pipes and ``.txt`` files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_suite.graph.layout.labels import gradient_words, saved_words
from gradcheck_suite.graph.layout.module_summary import module_rows
from gradcheck_suite.graph.layout.outline import Fold, Line, Reference, Unfinished, outline
from gradcheck_suite.graph.model import Leaf, Node, Root, TensorType
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import byte_count, encodable, number, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from gradcheck_suite.findings import Location
    from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient

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
    at_most: str

    def fit(self, encoding: str | None) -> bool:
        """Return whether text with these marks can be written in ``encoding``."""
        marks = self.along + self.branch + self.see + self.ellipsis + self.times + self.at_most
        return encodable(marks, encoding) == marks


_UNICODE = _Guides(
    along="│  ", branch="├─ ", see="→ see", ellipsis="…", times="\u00d7", at_most="≤ "
)
_ASCII = _Guides(along="|  ", branch="|- ", see="-> see", ellipsis="...", times="x", at_most="<= ")


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
    lines: list[str] = []
    for renderable in graph_renderables(
        graph, width=width, limit=limit, encoding=encoding, with_findings=with_findings
    ):
        if isinstance(renderable, Text):
            # Wrapped already: a console would only take its time.
            lines.append(renderable.plain.rstrip())
            continue
        with console.capture() as capture:
            console.print(renderable, highlight=False, markup=False)
        lines += (line.rstrip() for line in capture.get().splitlines())
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
    facts = _Facts(graph)
    for line in outline(graph, limit=limit):
        heading = facts.heading(line)
        if heading is not None:
            # On the line of its own it belongs to the branch that it stands above.
            depth = line.depth - line.opens_branch
            lead = guides.along * min(depth, _DEEPEST)
            yield from _wrapped(heading, width=width, lead=lead, follow=lead + _CONTINUATION)
        yield from _drawn(line, guides=guides, width=width, facts=facts)
    yield Text()
    yield _summary(graph, guides=guides)
    if graph.calls:
        yield Text()
        yield _modules(graph, guides=guides)
    if with_findings:
        yield from _findings(graph, width=width)


def _headline(graph: AutogradGraph) -> Text:
    text = (
        f"Autograd graph: {plural(len(graph.nodes), 'node')}, {plural(len(graph.edges), 'edge')}, "
        f"{plural(len(graph.leaves), 'leaf', 'leaves')}, "
        f"{saved_words(graph)}"
    )
    if graph.ignored:
        text += f"; {plural(len(graph.ignored), 'tensor')} without a graph left out"
    return Text(text, style="bold")


class _Facts:
    """What is known of nodes beyond themselves: module and line, and the gradients they get."""

    def __init__(self, graph: AutogradGraph) -> None:
        self._graph = graph
        self._last: tuple[str | None, Location | None] = (None, None)
        self._given: dict[int, list[EdgeGradient]] = {}
        for edge in graph.edges:
            if edge.gradient is not None:
                self._given.setdefault(edge.target, []).append(edge.gradient)
        self.backward_was_recorded = bool(self._given)

    def heading(self, line: Line) -> Text | None:
        """Return what stands above the first of some nodes of one module and one source line."""
        node = line.content
        if not isinstance(node, Node) or node.leaf is not None:
            return None
        call = None if node.call is None else self._graph.calls[node.call - 1]
        module = None if call is None else call.label
        here = module, node.source
        if here == self._last:
            return None
        was, self._last = self._last, here
        text = Text(style="cyan")
        if module is not None:
            text.append(f"in {_name(module)}")
        elif was[0] is not None:
            text.append("outside modules")
        if node.source is not None:
            place = f"{_name(display_path(node.source.path))}:{node.source.line}"
            text.append(f"{', ' if text else ''}{place}")
        return text or None

    def gradients(self, node: Node) -> Text:
        """Return the sizes of the gradients that a recorded backward sent here."""
        text = Text()
        given = self._given.get(node.id, [])
        if not given:
            return text
        text.append(f"  gradient{'s' if len(given) > 1 else ''} ", style="not bold not dim")
        if len(given) > _LISTED:
            given = sorted(given, key=lambda gradient: gradient.non_finite is None)
        for place, gradient in enumerate(given[:_LISTED]):
            words = f"{', ' if place else ''}{gradient_words(gradient)}"
            text.append(words, style=f"not dim {_gradient_style(gradient)}")
        if len(given) > _LISTED:
            text.append(f" and {number(len(given) - _LISTED)} more", style="not bold not dim")
        return text


def _gradient_style(gradient: EdgeGradient) -> str:
    if gradient.non_finite is not None:
        return "bold red"
    return "bold yellow" if gradient.is_missing or gradient.is_zero else "not bold magenta"


def _drawn(line: Line, *, guides: _Guides, width: int, facts: _Facts) -> Iterator[Text]:
    # Deep branches share the deepest column, so that there is always room for the text.
    depth = min(line.depth, _DEEPEST)
    lead = guides.along * (depth - 1) + guides.branch if line.opens_branch else guides.along * depth
    follow = guides.along * depth + _CONTINUATION
    content = _content(line, guides=guides, freed_is_news=not facts.backward_was_recorded)
    if isinstance(line.content, Node):
        content.append_text(facts.gradients(line.content))
    if isinstance(line.content, Root):
        follow = _CONTINUATION
    yield from _wrapped(content, width=width, lead=lead, follow=follow)


def _content(line: Line, *, guides: _Guides, freed_is_news: bool) -> Text:
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
        _leaf_name(content.leaf) if content.leaf else _name(content.op),
        style=_style(content, freed_is_news=freed_is_news),
    )
    details = (
        _leaf_details(content.leaf)
        if content.leaf
        else _node_details(content, freed_is_news=freed_is_news)
    )
    return text.append("".join(f"  {detail}" for detail in details), style="not bold not dim")


def _style(node: Node, *, freed_is_news: bool) -> str:
    if (node.freed and freed_is_news) or node.kind == "undefined" or not node.saved_is_visible:
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


def _node_details(node: Node, *, freed_is_news: bool) -> list[str]:
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
    if node.saved_bytes:
        # What was only recorded while it was saved has numbers for names.
        counted = [saved.name for saved in node.saved if saved.bytes and saved.type is not None]
        named = [visible(name) for name in counted if not name.startswith("tensor ")]
        listed = f": {', '.join(named[:_LISTED])}" if named else ""
        more = f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
        details.append(f"saves {byte_count(node.saved_bytes)}{listed}{more}")
    hooked = sum(saved.hooked for saved in node.saved)
    if hooked:
        details.append(f"{plural(hooked, 'saved tensor')} held by hooks")
    if not node.saved_is_visible:
        details.append("in-place write into a view; what it saved is not visible")
    if node.freed and freed_is_news:
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
    shown = _SUMMARY_ROWS if len(counts) > _SUMMARY_ROWS + 1 else len(counts)
    for op, count in counts[:shown]:
        table.add_row(number(count), Text(_name(op)), byte_count(saved[op]) if saved[op] else "")
    rest = counts[shown:]
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


def _modules(graph: AutogradGraph, *, guides: _Guides) -> Table:
    """Sum the graph up by module."""
    rows = module_rows(graph, rows=_SUMMARY_ROWS)
    most = _SUMMARY_ROWS if len(rows) > _SUMMARY_ROWS + 1 else len(rows)
    shown, rest = rows[:most], rows[most:]
    with_gradients = any(row.norm is not None for row in rows)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("module", overflow="fold")
    for column in ("ops", "parameters", "saved", *(["gradient"] if with_gradients else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for row in shown:
        cells = [number(row.ops), number(row.parameters) if row.parameters else ""]
        cells.append(byte_count(row.saved_bytes) if row.saved_bytes else "")
        gradient = Text()
        if row.non_finite is not None:
            gradient = Text("NaN" if row.non_finite == "nan" else "infinity", style="bold red")
        elif row.norm is not None:
            gradient = Text(f"{guides.at_most if row.is_bound else ''}{row.norm:.3g}")
        table.add_row(
            Text(_name(row.name) if row.name else "outside modules"),
            *cells,
            *([gradient] if with_gradients else []),
        )
    if rest:
        table.add_row(
            f"{guides.ellipsis} {plural(len(rest), 'other module')}",
            number(sum(row.ops for row in rest)),
            number(sum(row.parameters for row in rest)),
            byte_count(sum(row.saved_bytes for row in rest)),
        )
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
    if text.cell_len <= room and "\n" not in text.plain:
        text.rstrip()
        yield Text.assemble((lead, "dim"), text, no_wrap=True)
        return
    lines = text.wrap(Console(width=width, file=io.StringIO()), room)
    for place, line in enumerate(lines):
        line.rstrip()
        yield Text.assemble((follow if place else lead, "dim"), line, no_wrap=True)
