"""Write a graph as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import TYPE_CHECKING

from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.render.html_data import page_data
from gradcheck_suite.graph.render.stylesheet import asset, dark_on_demand
from gradcheck_suite.graph.render.svg import drawing_to_svg, headline

if TYPE_CHECKING:
    from gradcheck_suite.findings import JSON
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["graph_to_html", "html_page"]

_STATIC_BOXES = 400
"""A picture of more boxes is drawn by the script alone: the file would hold it twice."""


def graph_to_html(graph: AutogradGraph, *, depth: int | None = None) -> str:
    """Return a page that shows ``graph``: to pan, zoom, search, open and close.

    Args:
        graph: what to show.
        depth: how many levels of modules are open at first; see ``graph_to_svg``.
    """
    shown = picture(graph, depth=depth)
    drawing = draw(shown)
    static = drawing_to_svg(shown, drawing) if len(drawing.boxes) <= _STATIC_BOXES else ""
    return html_page(
        title=f"Autograd graph: {headline(graph)}",
        data=page_data(shown),
        static=static.partition("?>")[2],
    )


def html_page(*, title: str, data: dict[str, JSON], static: str = "") -> str:
    """Put data and script into one page that may load nothing and run nothing else."""
    script = "".join(map(asset, ("layout.js", "minimap.js", "search.js", "viewer.js")))
    styles = asset("picture.css") + dark_on_demand() + asset("viewer.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{styles}</style></head>\n<body>\n"
        f"{asset('viewer.html')}"
        f"{_without_script(static)}\n"
        f'<script type="application/json" id="data">{_json_in_html(data)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _without_script(static: str) -> str:
    """Return what readers get whose viewer runs no scripts: mail, previews of artefacts."""
    words = (
        "This is the picture alone: to search, open and close, the page has to run its script."
        if static
        else "The picture is large, and drawn by a script, which does not run here: open the page "
        "in a browser, or save the graph as .svg."
    )
    return (
        "<noscript><style>#app { display: none }</style>"
        f'<div class="gcs plain"><p>{words}</p>{static}</div></noscript>'
    )


def _json_in_html(data: dict[str, JSON]) -> str:
    """Write JSON that no text in it can break out of a script element with."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
