"""Draw the difference between two graphs: a table, or a page with the second graph in it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gradcheck_suite.graph.diff import describe, kind_of
from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.render.html import html_page
from gradcheck_suite.graph.render.html_data import page_data
from gradcheck_suite.graph.render.svg import drawing_to_svg
from gradcheck_suite.graph.save import check_path, write_content

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from rich.console import RenderableType

    from gradcheck_suite.findings import JSON
    from gradcheck_suite.graph.diff import GraphDiff

__all__ = ["diff_renderables", "diff_to_html", "diff_to_json", "save_diff"]

_ROWS = 40


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
    for change in diff.changes[:_ROWS]:
        what, module, counts, size = describe(change)
        table.add_row(counts, size, Text(what), Text(module))
    yield table
    if len(diff.changes) > _ROWS:
        yield Text(f"and {len(diff.changes) - _ROWS} more; save('diff.html') shows all")


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


def save_diff(diff: GraphDiff, path: str | os.PathLike[str]) -> None:
    """Write a comparison in the format that the suffix asks for.

    Raises:
        UsageError: the suffix is unknown, or the file cannot be written.
    """
    renderers = {".html": diff_to_html, ".json": diff_to_json, ".txt": _to_text}
    destination = check_path(path, suffixes=tuple(renderers), events=False)
    write_content(destination, renderers[destination.suffix.lower()](diff))
