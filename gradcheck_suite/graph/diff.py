"""What differs between two graphs: what grew from one step to the next, and where.

Drawn as a table, or as a page with the second graph in it.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.layout.labels import short_type
from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.model import AutogradGraph, Node, TensorType
from gradcheck_suite.graph.render.html import html_page
from gradcheck_suite.graph.render.html_data import page_data
from gradcheck_suite.graph.render.svg import drawing_to_svg
from gradcheck_suite.graph.save import check_path, write_content
from gradcheck_suite.reporting.text import byte_count, number, plural, visible

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from gradcheck_suite.findings import JSON

__all__ = ["Change", "GraphDiff", "diff_graphs"]

_Kind: TypeAlias = "tuple[str, str, TensorType | None]"
_WIDTH = 100
_SHOWN = 40
_SHOWN_ROWS = 40


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes of one kind, of which the graphs hold different numbers.

    ``module`` is "" outside modules, or where the forward was not recorded. Leaves go by their
    name in place of ``op``. The bytes are those that these nodes saved.
    """

    module: str
    op: str
    type: TensorType | None
    before: int
    after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """What :func:`gradcheck_suite.diff_graphs` found. ``changes`` are the largest growth first."""

    before: AutogradGraph
    after: AutogradGraph
    changes: tuple[Change, ...]

    @property
    def is_same(self) -> bool:
        """Return whether both graphs hold the same nodes, as far as ops, types and modules tell."""
        return not self.changes

    @property
    def sentences(self) -> tuple[str, ...]:
        """Say what changed in words."""
        before, after = self.before, self.after
        freed = _freed_sentences(before, after)
        if self.is_same:
            return (f"Both graphs hold the same {plural(len(before.nodes), 'node')}.", *freed)
        grown = f"{len(after.nodes) - len(before.nodes):+,}"
        counts = (
            f"{plural(len(before.nodes), 'node')} before, {number(len(after.nodes))} after "
            f"({grown}); {byte_count(before.saved_bytes)} saved before, "
            f"{byte_count(after.saved_bytes)} after."
        )
        said = [counts, *freed]
        if bool(before.calls) != bool(after.calls):
            said.append("Modules are not compared: only one of the two forwards was recorded.")
        times, some, ops = _times_over(before, after)
        if times > 1:
            which = "every op" if some == ops else f"{number(some)} of the {plural(ops, 'op')}"
            said.append(
                f"The second graph holds {which} of the first {times} times over: the graph of "
                "an earlier step is still attached (a sum of losses, a hidden state that is not "
                "detached), or a loop ran more often."
            )
        elif _differ_in_shapes_alone(before, after):
            said.append(
                "Both hold the same ops and leaves; only shapes or dtypes differ, as with another "
                "batch size or length."
            )
        elif times and all(change.after >= change.before for change in self.changes):
            said.append("Nothing of the first graph is missing: the second has only grown.")
        gained = [c.op for c in self.changes if not c.before and _is_leaf(c)]
        lost = [c.op for c in self.changes if not c.after and _is_leaf(c)]
        for words, names in (("Newly reached", gained), ("No longer reached", lost)):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                said.append(f"{words}: {', '.join(names[:_SHOWN])}{more}.")
        return tuple(said)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the comparison to a ``.html``, ``.txt`` or ``.json`` file.

        Raises:
            UsageError: the suffix is another, or the file cannot be written.
        """
        renderers = {".html": diff_to_html, ".json": diff_to_json, ".txt": _to_text}
        destination = check_path(path, suffixes=tuple(renderers), events=False)
        write_content(destination, renderers[destination.suffix.lower()](self))

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
        with console.capture() as captured:
            console.print(self, highlight=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from diff_renderables(self)

    def _repr_mimebundle_(self, **_chosen: object) -> dict[str, str]:
        """Draw the comparison for a notebook."""
        text = str(self)
        return {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}


def diff_graphs(before: AutogradGraph, after: AutogradGraph) -> GraphDiff:
    """Compare the graphs of two steps: what grew tells of leaks and of changed control flow.

    Nodes are compared by op, type of the first output and module; leaves by name.

    >>> import torch
    >>> import gradcheck_suite as gs
    >>> weight = torch.ones(3, requires_grad=True)
    >>> first = gs.trace_graph(weight.sin().sum())
    >>> second = gs.trace_graph(weight.sin().sum() + weight.sin().sum())
    >>> changes = gs.diff_graphs(first, second).changes
    >>> [(change.op, change.before, change.after) for change in changes]
    [('AddBackward0', 0, 1), ('SinBackward0', 1, 2), ('SumBackward0', 1, 2)]

    Raises:
        UsageError: one of them is not a graph.
    """
    for name, given in (("the first", before), ("the second", after)):
        if not isinstance(given, AutogradGraph):
            raise UsageError(
                f"diff_graphs expected two graphs from trace_graph, got {type(given).__name__} as "
                f"{name}"
            )
    modules = bool(before.calls) == bool(after.calls)
    counts = [_counted(graph, modules=modules) for graph in (before, after)]
    changes: list[Change] = []
    for kind in dict.fromkeys([*counts[0], *counts[1]]):
        (n0, bytes0), (n1, bytes1) = (count.get(kind, (0, 0)) for count in counts)
        if n0 != n1:
            changes.append(Change(*kind, n0, n1, bytes0, bytes1))
    changes.sort(key=lambda c: (c.bytes_before - c.bytes_after, c.before - c.after, c.module, c.op))
    return GraphDiff(before, after, tuple(changes))


def _counted(graph: AutogradGraph, *, modules: bool) -> dict[_Kind, tuple[int, int]]:
    counted: dict[_Kind, tuple[int, int]] = {}
    for node in graph.nodes:
        kind = kind_of(graph, node, modules=modules)
        count, size = counted.get(kind, (0, 0))
        counted[kind] = (count + 1, size + node.saved_bytes)
    return counted


def kind_of(graph: AutogradGraph, node: Node, *, modules: bool = True) -> _Kind:
    """Say what a node is compared by."""
    if node.leaf is not None:
        name = visible(node.leaf.name) if node.leaf.names else "unnamed leaf"
        return "", f"{_LEAF} {name}", node.leaf.type
    known = node.outputs[0] if node.outputs else None
    return (graph.module_of(node) or "") if modules else "", node.op, known


_LEAF = "leaf"


def _is_leaf(change: Change) -> bool:
    return change.op.startswith(f"{_LEAF} ")


def _freed_sentences(before: AutogradGraph, after: AutogradGraph) -> tuple[str, ...]:
    """Say that a backward has freed more of one graph than of the other, if it has."""
    freed, held = (
        [sum(map(state, graph.nodes)) for graph in (before, after)] for state in (_is_freed, _holds)
    )
    # By share: the larger of two graphs that are freed has more nodes that are.
    if freed[0] * held[1] == freed[1] * held[0]:
        return ()
    more, less = (0, 1) if freed[0] * held[1] > freed[1] * held[0] else (1, 0)
    if not held[less]:
        return ()
    which = ("first", "second")
    bytes_ = [
        sum(node.saved_bytes for node in graph.nodes if _holds(node)) for graph in (before, after)
    ]
    part = ""
    if held[more]:
        part = f" in {number(freed[more])} of {number(freed[more] + held[more])} nodes"
    other = f"the {which[less]} still holds its own"
    if freed[less]:
        other += f" in {number(held[less])} of {number(freed[less] + held[less])} nodes"
    if bytes_[less]:
        other += f", {byte_count(bytes_[less])}"
    return (f"A backward has freed the saved tensors of the {which[more]} graph{part}; {other}.",)


def _is_freed(node: Node) -> bool:
    return node.freed


def _holds(node: Node) -> bool:
    return bool(node.saved) and not node.freed


def _times_over(before: AutogradGraph, after: AutogradGraph) -> tuple[int, int, int]:
    """Say how many times the second graph holds how many of the first graph's ops.

    The times of more than half of the ops, if each other one is there too: the loss at the end
    is there once however many steps hang on to a hidden state. Else the least.
    """
    # By op and type alone: what an earlier recording saw has no module in a later one.
    ops = [
        Counter(kind_of(graph, node)[1:] for node in graph.nodes if node.leaf is None)
        for graph in (before, after)
    ]
    total = ops[0].total()
    times: Counter[int] = Counter()
    for kind, count in ops[0].items():
        times[ops[1][kind] // count] += count
    least = min(times, default=1)
    usual, share = max(times.items(), key=lambda item: item[1], default=(1, 0))
    if least == 1 < usual and 2 * share > total:
        return usual, share, total
    return least, total, total


def _differ_in_shapes_alone(before: AutogradGraph, after: AutogradGraph) -> bool:
    modules = bool(before.calls) == bool(after.calls)
    first, second = (
        Counter(kind_of(graph, node, modules=modules)[:2] for node in graph.nodes)
        for graph in (before, after)
    )
    return first == second


def describe(change: Change) -> tuple[str, str, str, str]:
    """Return the cells of a row: what, where, how many, bytes."""
    bytes_ = ""
    if change.bytes_before or change.bytes_after:
        bytes_ = f"{byte_count(change.bytes_before)} \u2192 {byte_count(change.bytes_after)}"
    what = visible(change.op)
    if change.type is not None:
        what += f" {short_type(change.type)}"
    counts = f"{number(change.before)} \u2192 {number(change.after)}"
    return what, visible(change.module), counts, bytes_


def diff_renderables(diff: GraphDiff) -> Iterator[RenderableType]:
    """Yield what rich prints for a comparison."""
    for sentence in diff.sentences:
        yield Text(sentence)
    if diff.is_same:
        return
    yield Text()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("saved", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("module", overflow="fold")
    for change in diff.changes[:_SHOWN_ROWS]:
        what, module, counts, size = describe(change)
        table.add_row(counts, size, Text(what), Text(module))
    yield table
    if len(diff.changes) > _SHOWN_ROWS:
        yield Text(f"and {len(diff.changes) - _SHOWN_ROWS} more; save('diff.html') shows all")


def diff_to_html(diff: GraphDiff) -> str:
    """Return a page that shows the second graph, with what it has more of flagged."""
    grown = {
        (change.module, change.op, change.type)
        for change in diff.changes
        if change.after > change.before
    }
    modules = bool(diff.before.calls) == bool(diff.after.calls)
    flagged = {
        node.id: "note"
        for node in diff.after.nodes
        if kind_of(diff.after, node, modules=modules) in grown
    }
    shown = picture(diff.after, flagged=flagged)
    rows: list[JSON] = []
    for change in diff.changes:
        what, module, counts, size = describe(change)
        rows.append([f"{what}{' in ' + module if module else ''}", counts, size])
    data = page_data(shown) | {"notes": list(diff.sentences), "changes": rows}
    drawing = draw(shown)
    return html_page(
        title="Two autograd graphs compared",
        data=data,
        static=drawing_to_svg(shown, drawing).partition("?>")[2],
    )


def diff_to_json(diff: GraphDiff) -> str:
    """Return the comparison for programs."""
    document = {
        "schema": 1,
        "tool": "gradcheck-suite graph diff",
        "same": diff.is_same,
        "sentences": diff.sentences,
        "nodes": [len(diff.before.nodes), len(diff.after.nodes)],
        "saved_bytes": [diff.before.saved_bytes, diff.after.saved_bytes],
        "changes": [dataclasses.asdict(change) for change in diff.changes],
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _to_text(diff: GraphDiff) -> str:
    return f"{diff}\n"
