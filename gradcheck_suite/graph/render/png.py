"""Draw a graph as PNG: the SVG picture, drawn by resvg."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from gradcheck_suite.errors import MissingDependencyError, UsageError
from gradcheck_suite.graph.render.stylesheet import attributes
from gradcheck_suite.graph.render.svg import graph_to_svg

if TYPE_CHECKING:
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["check_png", "graph_to_png"]

_ZOOM = 2.0
_MOST_PIXELS = 50_000_000
_SIZE = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"{}><text y="15">{}</text></svg>'
)


def check_png() -> None:
    """Say what to install if pictures cannot be drawn here.

    Raises:
        MissingDependencyError: the resvg-py package is missing.
        UsageError: there is no font, without which boxes would be empty.
    """
    _renderer()
    if not _finds_fonts():
        raise UsageError(
            "saving a graph as PNG needs a font, and resvg finds none of the usual ones here; "
            "install one, such as DejaVu Sans (apt-get install fonts-dejavu-core), or save the "
            "graph as .svg or .html, which need none"
        )


def _renderer() -> Any:
    try:
        return importlib.import_module("resvg_py")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "saving a graph as PNG needs the resvg-py package, which is not installed here; "
            "install it with: pip install 'gradcheck-suite[png]'. "
            "a name that ends in .svg needs nothing: -o graph.svg, or graph.save('graph.svg')"
        ) from error


@cache
def _finds_fonts() -> bool:
    """Return whether letters leave a trace: resvg leaves out what it has no font for, silently."""
    draw = _renderer().svg_to_bytes
    style = attributes("svg", "gcs")
    written, empty = (draw(svg_string=_PROBE.format(style, words)) for words in ("ab", ""))
    return bool(written != empty)


def graph_to_png(graph: AutogradGraph, *, depth: int | None = None) -> bytes:
    """Return the picture of ``graph``, two pixels for each of the SVG's, or fewer if it is huge.

    Args:
        graph: what to draw.
        depth: how many levels of modules to open; see ``graph_to_svg``.

    Raises:
        MissingDependencyError: the resvg-py package is missing.
        UsageError: there is no font.
    """
    check_png()
    svg = graph_to_svg(graph, depth=depth)
    size = _SIZE.search(svg)
    assert size is not None
    zoom = min(_ZOOM, (_MOST_PIXELS / (float(size[1]) * float(size[2]))) ** 0.5)
    return bytes(_renderer().svg_to_bytes(svg_string=svg, zoom=zoom))
