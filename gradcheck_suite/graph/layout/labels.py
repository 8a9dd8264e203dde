"""The words and the size of each box in a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite.graph.layout.text_metrics import shortened, text_width
from gradcheck_suite.reporting.text import byte_count, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.graph.layout.grouping import Group
    from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient, Leaf, Node, TensorType

__all__ = [
    "SMALL",
    "TITLE",
    "Label",
    "gradient_words",
    "label_group",
    "label_node",
    "marked_nodes",
    "nodes_of",
    "saved_words",
    "short_type",
    "worst_first",
]

TITLE = 12.0
SMALL = 10.0
_PADDING = 10.0
_LINE = 13.0
_LONGEST_TITLE = 34
_LONGEST_LINE = 46
_SHORT_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "int64": "i64",
    "int32": "i32",
}


@dataclass(frozen=True, slots=True)
class Label:
    """What a box says: a title and lines below it; ``classes`` say how it is drawn."""

    title: str
    lines: tuple[str, ...]
    classes: tuple[str, ...]
    width: float
    height: float


def label_node(
    node: Node,
    *,
    mark: str | None,
    within: str = "",
    gradients: Sequence[EdgeGradient] = (),
    freed_is_news: bool = True,
    starts: Sequence[str] = (),
) -> Label:
    """Label the box of a node.

    Args:
        node: what the box stands for.
        mark: the severity of the worst finding on it.
        within: the path of the module whose frame is drawn round it: names begin below that.
        gradients: what a recorded backward sent there.
        freed_is_news: whether to show that it was freed: after a recorded backward all are, which
            the page says once.
        starts: the names of the tensors that backward starts from there, where they need telling
            apart.
    """
    if node.leaf is not None:
        title = visible(_name_within(node.leaf, within))
        lines = [short_type(node.leaf.type)] if node.leaf.type is not None else []
        classes = ["leaf", "parameter" if node.leaf.is_parameter else "input"]
    else:
        title = visible(node.op.partition("Backward")[0] or node.op)
        lines = _node_lines(node)
        classes = [node.kind.replace(" ", "-")]
        if node.op == "CopySlices":
            classes.append("in-place")
        elif node.op.startswith("ToCopyBackward"):
            classes.append("cast")
    if gradients:
        more = f" and {len(gradients) - 1} more" if len(gradients) > 1 else ""
        worst = next((each for each in gradients if each.non_finite), gradients[0])
        lines.append(f"gradient {gradient_words(worst)}{more}")
    elif node.freed and freed_is_news:
        classes.append("freed")
    if starts:
        more = f" and {len(starts) - 1} more" if len(starts) > 1 else ""
        lines.insert(0, f"backward from {visible(starts[0])}{more}")
    if mark is not None:
        classes.append(mark)
    return _sized(title, lines, classes)


def _name_within(leaf: Leaf, path: str) -> str:
    """Name a leaf to a reader who sees that it is in the module at ``path``."""
    if not leaf.names:
        return "unnamed leaf"
    if not path:
        return leaf.name
    below = f"{path}."
    inner = (name.removeprefix(below) for name in leaf.names if name.startswith(below))
    return next(inner, leaf.name)


def _node_lines(node: Node) -> list[str]:
    lines: list[str] = []
    if node.outputs:
        more = len(node.outputs) - 1
        known = node.outputs[0]
        text = short_type(known) if known is not None else "unknown shape"
        lines.append(text + (f" +{more}" if more else ""))
    if node.saved_bytes:
        lines.append(f"saves {byte_count(node.saved_bytes)}")
    lines += [f"{name}: {value}" for name, value in node.attributes]
    return lines


def gradient_words(gradient: EdgeGradient) -> str:
    """Say in a word or two what was sent along an edge: ``"0.53 (12 % zeros)"``."""
    if gradient.non_finite is not None:
        return "NaN" if gradient.non_finite == "nan" else "infinity"
    if gradient.is_missing:
        return "none"
    if gradient.is_zero:
        return "0"
    words = "?" if gradient.norm is None else f"{gradient.norm:.3g}"
    if gradient.zeros:
        words += f" ({100 * gradient.zeros / gradient.elements:.2g} % zeros)"
    return words


def saved_words(graph: AutogradGraph) -> str:
    """Say how much a graph keeps alive."""
    if not graph.saved_bytes and any(node.freed for node in graph.nodes):
        return "what was saved for backward is gone"
    at_least = "" if graph.saved_bytes_are_complete else "at least "
    return f"{at_least}{byte_count(graph.saved_bytes)} saved for backward"


def label_group(group: Group, *, module: str | None, marks: int) -> Label:
    """Label a closed group of class ``module``; ``marks`` counts the findings in it."""
    lines = [visible(module)] if module and module != group.title else []
    lines.append(plural(group.size, "node"))
    if group.saved_bytes:
        lines.append(f"saves {byte_count(group.saved_bytes)}")
    title = visible(group.title)
    if group.kind == "repeat":
        title = f"{shortened(title, _LONGEST_TITLE - 8)}  \u00d7 {len(group.children)}"
    classes = ["group", group.kind]
    if marks:
        classes.append("has-marks")
        lines.append(plural(marks, "finding"))
    return _sized(title, lines, classes)


def short_type(known: TensorType | None) -> str:
    """Write a type in few letters: ``"(64, 32) f32"``."""
    if known is None:
        return "unknown shape"
    return f"{known.shape} {_SHORT_DTYPES.get(known.dtype, known.dtype)}"


def _sized(title: str, lines: list[str], classes: list[str]) -> Label:
    title = shortened(title, _LONGEST_TITLE)
    short = tuple(shortened(line, _LONGEST_LINE) for line in lines)
    width = text_width(title, size=TITLE, bold=True)
    for line in short:
        width = max(width, text_width(line, size=SMALL))
    if "error" in classes or "warning" in classes or "note" in classes or "has-marks" in classes:
        width += 18.0
    return Label(
        title=title,
        lines=short,
        classes=tuple(classes),
        # Whole numbers, so that two languages agree on them.
        width=float(int(width + 2 * _PADDING + 1)),
        height=8.0 + _LINE * (1 + len(short)) + 5.0,
    )


def nodes_of(finding: Finding) -> tuple[int, ...]:
    """Return the nodes that a finding is about, the one to look at first."""
    one, several = (finding.evidence.get(key) for key in ("node", "nodes"))
    numbers = (one, *several) if isinstance(several, tuple) else (one,)
    return tuple(dict.fromkeys(number for number in numbers if isinstance(number, int)))


def worst_first(findings: Iterable[Finding]) -> Sequence[Finding]:
    """Return findings as reports tell them: errors, then warnings, then notes."""
    return sorted(findings, key=lambda finding: -finding.severity.weight)


def marked_nodes(graph: AutogradGraph) -> Mapping[int, str]:
    """Return the worst severity of the findings on each node that has one."""
    ranks = {"note": 0, "warning": 1, "error": 2}
    worst: dict[int, str] = {}
    for finding in graph.findings:
        value = finding.severity.value
        for number in nodes_of(finding):
            if number not in worst or ranks[value] > ranks[worst[number]]:
                worst[number] = value
    return worst
