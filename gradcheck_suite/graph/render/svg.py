"""Draw a graph as SVG: deterministic, self-contained, readable in light and dark.

Colours are attributes of the elements, which every viewer knows; browsers turn them dark.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gradcheck_suite.graph.layout.labels import SMALL, nodes_of, saved_words, worst_first
from gradcheck_suite.graph.layout.text_metrics import shortened, text_width
from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.render.stylesheet import attributes, dark_rules
from gradcheck_suite.reporting.text import plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.graph.layout.view import Box, Drawing, Frame, Picture, Wire
    from gradcheck_suite.graph.model import AutogradGraph

__all__ = ["drawing_to_svg", "graph_to_svg", "headline"]

_MARGIN = 12.0
_HEADLINE = 26.0
_ARROW = 3.5
_NARROWEST = 420.0
_LINE = 14.0
_FINDINGS_SHOWN = 3
_SENTENCE_LINES = 4
_LONGEST_WORD = 46


def graph_to_svg(graph: AutogradGraph, *, depth: int | None = None) -> str:
    """Draw ``graph`` as an SVG document that ends with a newline.

    Args:
        graph: what to draw.
        depth: how many levels of modules to open; None chooses what stays readable, and -1 opens
            everything.
    """
    shown = picture(graph, depth=depth)
    return drawing_to_svg(shown, draw(shown))


def headline(graph: AutogradGraph) -> str:
    """Say in a line what the picture is of."""
    text = (
        f"{plural(len(graph.nodes), 'node')}, {plural(len(graph.leaves), 'leaf', 'leaves')}, "
        f"{saved_words(graph)}"
    )
    if graph.findings:
        text += f", {plural(len(graph.findings), 'finding')}"
    return text


def drawing_to_svg(shown: Picture, drawing: Drawing) -> str:
    """Write a drawing as an SVG document."""
    words = headline(shown.graph)
    width = max(drawing.width, _NARROWEST) + 2 * _MARGIN
    findings = worst_first(shown.graph.findings)
    sentences = list(_finding_lines(findings, width - 2 * _MARGIN))
    above = _MARGIN + _HEADLINE + _LINE * len(sentences)
    height = drawing.height + _MARGIN + above
    names = _names(findings)
    title = f"Autograd graph: {words}" + (f": {names}" if names else "")
    shift = (width - drawing.width) / 2
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gcs" role="img" '
        f'aria-label="{escape(title)}" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}"{attributes("svg", "gcs")}>'
    )
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        opening,
        f"<title>{escape(title)}</title>",
        f"<style>{dark_rules()}</style>",
        _rect(0, 0, width, height, classes="paper"),
        *(
            _text(width / 2, _MARGIN + 8 + _LINE * place, line, classes="s")
            for place, line in enumerate([words, *sentences])
        ),
        f'<g transform="translate({_n(shift)} {_n(above)})">',
        *svg_elements(shown, drawing),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _class(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


def _rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    radius: int = 0,
    classes: str = "",
    parent: str = "",
) -> str:
    rounded = f' rx="{radius}"' if radius else ""
    return (
        f'<rect{_class(classes)} x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" '
        f'height="{_n(height)}"{rounded}{attributes("rect", classes, parent)}/>'
    )


def _text(x: float, y: float, words: str, *, classes: str = "", parent: str = "") -> str:
    return (
        f'<text{_class(classes)} x="{_n(x)}" y="{_n(y)}"{attributes("text", classes, parent)}>'
        f"{escape(words)}</text>"
    )


def _names(findings: Sequence[Finding]) -> str:
    """Name the mistakes that were found, each once."""
    return ", ".join(dict.fromkeys(f"{finding.code} {finding.rule}" for finding in findings))


def _finding_lines(findings: Sequence[Finding], width: float) -> Iterator[str]:
    """Tell the findings in lines of this width, those that there is no room for by their names."""
    for finding in findings[:_FINDINGS_SHOWN]:
        words = f"{finding.severity.value} {finding.code} {finding.rule}: {finding.message}"
        lines = _filled(visible(words).split(" "), width)
        yield from lines[:_SENTENCE_LINES]
        if len(lines) > _SENTENCE_LINES:
            yield "\u2026"
    rest = findings[_FINDINGS_SHOWN:]
    if rest:
        yield shortened(f"and {len(rest)} more: {_names(rest)}", int(width / SMALL))


def _filled(words: Sequence[str], width: float) -> list[str]:
    lines = [""]
    for word in words:
        short = shortened(word, _LONGEST_WORD)
        longer = f"{lines[-1]} {short}" if lines[-1] else short
        if lines[-1] and text_width(longer, size=SMALL) > width:
            lines.append(short)
        else:
            lines[-1] = longer
    return lines


def svg_elements(shown: Picture, drawing: Drawing) -> Iterator[str]:
    """Yield the elements of a drawing: frames below wires below titles and boxes."""
    for frame in drawing.frames:
        yield _frame(frame)
    for wire in drawing.wires:
        yield from _wire(wire)
    for frame in drawing.frames:
        yield _title(frame)
    for box in drawing.boxes:
        yield _box(box, shown)


def _frame(frame: Frame) -> str:
    outline = _rect(frame.x, frame.y, frame.width, frame.height, radius=8, parent="f")
    return f'<g class="f" data-group="{frame.group}">{outline}</g>'


def _title(frame: Frame) -> str:
    # Two texts, because few viewers know how to draw the outline of one below its signs.
    x, y = frame.x + 10, frame.y + 16
    halo = _text(x, y, frame.title, classes="halo", parent="f")
    title = _text(x, y, frame.title, parent="f")
    return f'<g class="f" data-group="{frame.group}">{halo}{title}</g>'


def _wire(wire: Wire) -> Iterator[str]:
    path = "".join(_piece(*segment) for segment in wire.segments)
    classes = f"w {wire.state}" if wire.state else "w"
    yield f'<path class="{classes}" d="{path}"{attributes("path", classes)}/>'
    if wire.ends and wire.segments:
        x, y = max(((s[2], s[3]) for s in wire.segments), key=lambda end: end[1])
        yield (
            f'<path class="a" d="M{_n(x)} {_n(y)}l-{_ARROW} -{2 * _ARROW}h{2 * _ARROW}z"'
            f"{attributes('path', 'a')}/>"
        )


def _piece(x1: float, y1: float, x2: float, y2: float) -> str:
    if x1 == x2:
        return f"M{_n(x1)} {_n(y1)}V{_n(y2)}"
    middle = (y1 + y2) / 2
    return f"M{_n(x1)} {_n(y1)}C{_n(x1)} {_n(middle)} {_n(x2)} {_n(middle)} {_n(x2)} {_n(y2)}"


def _box(box: Box, shown: Picture) -> str:
    label = box.label
    kind, number = box.item
    classes = f"b {' '.join(label.classes)}"
    radius = 11 if "leaf" in label.classes else 4
    behind: Sequence[int] = ()
    if "group" in label.classes:
        behind = (6, 3) if "repeat" in label.classes else (3,)
    middle = box.x + label.width / 2
    parts = [
        f'<g class="{classes}" data-{kind}="{number}">',
        f"<title>{escape(_tooltip(box, shown))}</title>",
        *(
            _rect(
                box.x + by,
                box.y + by,
                label.width,
                label.height,
                radius=radius,
                parent=classes,
            )
            for by in (*behind, 0)
        ),
        _text(middle, box.y + 17, label.title, classes="t", parent=classes),
        *(
            _text(middle, box.y + 31 + 13 * place, line, classes="s", parent=classes)
            for place, line in enumerate(label.lines)
        ),
    ]
    if not {"error", "warning", "note", "has-marks"}.isdisjoint(label.classes):
        parts.append(
            _text(box.x + label.width - 9, box.y + 16, "!", classes="flag", parent=classes)
        )
    return "".join(parts) + "</g>"


def _tooltip(box: Box, shown: Picture) -> str:
    kind, number = box.item
    if kind == "group":
        return visible(shown.groups.groups[number].title)
    node = shown.graph.node(number)
    if node.leaf is not None:
        return f"#{node.id} {' = '.join(map(visible, node.leaf.names)) or 'unnamed leaf'}"
    words = f"#{node.id} {visible(node.op)}"
    module = shown.graph.module_of(node)
    found = _names([each for each in shown.graph.findings if number in nodes_of(each)])
    return words + (f" in {visible(module)}" if module else "") + (f": {found}" if found else "")


def _n(value: float) -> str:
    """Write a number with one decimal at most; halves go up, as in JavaScript."""
    tenths = int(value * 10 + 0.5) if value >= 0 else -int(-value * 10 + 0.5)
    whole, rest = divmod(abs(tenths), 10)
    sign = "-" if tenths < 0 else ""
    return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"
