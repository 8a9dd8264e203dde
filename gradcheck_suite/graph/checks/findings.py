"""What deserves attention in a graph, as findings: facts of the graph itself and of a backward."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import byte_count, plural, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradcheck_suite.graph.model import (
        Edge,
        EdgeGradient,
        ModuleCall,
        Node,
        Root,
        TensorType,
    )

__all__ = [
    "born_non_finite",
    "dtype_changes",
    "modified_since_saved",
    "never_given",
    "slice_write_chains",
]

_COPY_SLICES = "CopySlices"
_CHAIN = 4
"""Slice writes by hand, two or three of them, are ordinary; a loop makes more."""
_LONG_CHAIN = 16
_LISTED = 8
_SIGNIFICANT_BITS = {
    "float64": 53, "complex128": 53, "float32": 24, "complex64": 24, "float16": 11, "complex32": 11,
    "bfloat16": 8,
}  # fmt: skip
_ITEM_SIZES = {
    **dict.fromkeys(("float64", "complex32", "int64"), 8),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    "complex64": 8,
    "complex128": 16,
}
_REMEDIES = {
    "Sqrt": "the slope of sqrt is infinite at 0: write torch.sqrt(x + eps)",
    "Pow": "x ** p with p < 1 has an infinite slope at 0: write (x + eps) ** p",
    "Log": "log has an infinite slope at 0: write torch.log(x + eps), or use log_softmax",
    "Div": "something is divided by zero: add eps to the denominator",
    "Reciprocal": "something is divided by zero: add eps to the denominator",
    "Rsqrt": "the slope of rsqrt is infinite at 0: write torch.rsqrt(x + eps)",
    "LinalgVectorNorm": "the norm has no slope at zero vectors: add eps under the root",
    "Norm": "the norm has no slope at zero vectors: add eps under the root",
    "Acos": "the slope of acos is infinite at -1 and 1: clamp its input to inside of them",
    "Asin": "the slope of asin is infinite at -1 and 1: clamp its input to inside of them",
    "Atan2": "atan2 has no slope where both inputs are 0: move one of them away from it",
    "Mul": "0 * inf is NaN: an infinite factor was saved in forward; look for it there",
    "Exp": "exp overflowed in forward; bound its input",
}


def modified_since_saved(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Report the tensors that torch will refuse to use, as one finding."""
    modified = [(node, saved) for node in nodes for saved in node.saved if saved.modified]
    if not modified:
        return
    node, saved = modified[0]
    more = len(modified) - 1
    others = f" (and {plural(more, 'more saved tensor')} of other ops)" if more else ""
    yield Finding.of(
        catalogue.SAVED_TENSOR_MODIFIED,
        f"{visible(saved.name)}{_typed(saved.type)}, which {called(node)} saved for backward, was "
        f"overwritten in place since{others}: a backward through it raises",
        detector="graph",
        location=node.source,
        hint=(
            "write into a new tensor instead (x = x + y, not x += y), or clone what is written to "
            "before it is used; gs.audit() names the line that wrote"
        ),
        evidence={
            "node": node.id,
            "op": node.op,
            "saved": saved.name,
            "count": len(modified),
            "nodes": tuple(dict.fromkeys(other.id for other, _ in modified)),
        },
    )


def slice_write_chains(nodes: Sequence[Node], edges: Sequence[Edge]) -> Iterator[Finding]:
    """Report in-place writes into slices of one tensor that follow one another."""
    written = {node.id for node in nodes if node.op == _COPY_SLICES}
    base = {
        edge.source: edge.target
        for edge in edges
        if edge.input_index == 0 and edge.source in written and edge.target in written
    }
    for start in sorted(written - set(base.values())):
        chain = [start]
        while chain[-1] in base:
            chain.append(base[chain[-1]])
        if len(chain) < _CHAIN:
            continue
        node = nodes[start - 1]
        known = node.outputs[0] if node.outputs else None
        size = None if known is None else bytes_of(known)
        cost = "" if size is None else f", {byte_count(size * len(chain))} in all"
        yield Finding.of(
            catalogue.SLICE_WRITE_IN_LOOP,
            f"{plural(len(chain), 'in-place write')} into slices of one tensor{_typed(known)} "
            f"follow one another ({called(node)} is the last): backward copies the gradient of "
            f"the whole tensor for each{cost}",
            detector="graph",
            severity=Severity.WARNING if len(chain) >= _LONG_CHAIN else Severity.NOTE,
            location=node.source,
            hint="collect the parts in a list and join them with torch.stack or torch.cat",
            evidence={"count": len(chain), "nodes": tuple(chain), "bytes": size},
        )


def dtype_changes(
    nodes: Sequence[Node], edges: Sequence[Edge], roots: Sequence[Root]
) -> Iterator[Finding]:
    """Report the nodes that are given gradients of one precision and return another, as one note.

    Real and complex numbers of the same precision are not told apart, nor are dtypes whose
    precision is not known.
    """
    if len({known.dtype for node in nodes for known in node.outputs if known is not None}) < 2:  # noqa: PLR2004 - nothing to change between
        return
    used: dict[int, set[int]] = defaultdict(set)
    for edge in edges:
        used[edge.target].add(edge.output_index)
    for root in roots:
        used[root.node].add(root.output_index)
    changes: dict[int, tuple[str, str]] = {}
    for edge in edges:
        given = {_dtype(nodes[edge.source - 1], index) for index in used[edge.source]}
        returned = _dtype(nodes[edge.target - 1], edge.output_index)
        bits = {_SIGNIFICANT_BITS.get(dtype) for dtype in given}
        becomes = _SIGNIFICANT_BITS.get(returned)
        if becomes is not None and None not in bits and becomes not in bits:
            changes.setdefault(edge.source, (min(given), returned))
    if not changes:
        return
    first = nodes[min(changes) - 1]
    kinds = Counter(changes[node] for node in sorted(changes))
    words = ", ".join(f"{count} x {a} to {b}" for (a, b), count in kinds.most_common(_LISTED))
    yield Finding.of(
        catalogue.DTYPE_CHANGED,
        f"gradients change their dtype at {plural(len(changes), 'node')} of backward ({words}); "
        f"{called(first)} is the first",
        detector="graph",
        location=first.source or first.location,
        hint=(
            "as it should be under autocast and round a loss in float32; else look for a constant "
            "or NumPy array of another dtype, and convert it before it is used"
        ),
        evidence={
            "count": len(changes),
            "nodes": tuple(sorted(changes)),
            "changes": {f"{a} to {b}": count for (a, b), count in kinds.items()},
        },
    )


def _dtype(node: Node, index: int) -> str:
    known = node.outputs[index] if index < len(node.outputs) else None
    return "" if known is None else known.dtype


def born_non_finite(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    *,
    incoming: Mapping[tuple[int, int], EdgeGradient],
    calls: Sequence[ModuleCall],
) -> Iterator[Finding]:
    """Report the first op whose gradient was finite coming in and is not going out."""
    out: dict[int, list[Edge]] = defaultdict(list)
    spoilt: set[int] = set()
    for edge in edges:
        if edge.gradient is not None and edge.gradient.non_finite:
            out[edge.source].append(edge)
            spoilt.add(edge.target)
    started_with = {number for (number, _), known in incoming.items() if known.non_finite}
    first = next(
        (
            node
            for node in nodes
            if node.id in out and node.id not in spoilt and node.sequence_number not in started_with
        ),
        None,
    )
    if first is None:
        return
    bad = out[first.id][0]
    assert bad.gradient is not None
    given = [
        edge.gradient.norm
        for edge in edges
        if edge.target == first.id and edge.gradient is not None and edge.gradient.norm is not None
    ]
    given += [
        known.norm
        for (number, _), known in incoming.items()
        if number == first.sequence_number and known.norm is not None
    ]
    came_in = f"finite (norm {sum(norm**2 for norm in given) ** 0.5:.3g})" if given else "finite"
    what = "NaN" if bad.gradient.non_finite == "nan" else "infinity"
    name = first.op.partition("Backward")[0]
    module = ""
    if first.call is not None:
        module = f" in module {visible(calls[first.call - 1].label)}"
    yield Finding.of(
        catalogue.NON_FINITE_GRADIENT,
        f"backward makes {what} in {called(first)}{module}: the gradient that came in was "
        f"{came_in}, the one for its input {bad.input_index} is not; "
        f"{plural(len(spoilt), 'node')} after it got NaN or infinity",
        detector="graph",
        location=first.source or first.location,
        hint=_REMEDIES.get(name, "look at the values that this op had in forward"),
        evidence={
            "node": first.id,
            "op": first.op,
            "input": bad.input_index,
            "non_finite": bad.gradient.non_finite,
            "spoilt": len(spoilt),
        },
    )


def never_given(
    nodes: Sequence[Node], edges: Sequence[Edge], roots: Sequence[Root]
) -> Iterator[Finding]:
    """Report the leaves that a recorded backward reached and sent no gradient to."""
    ways: dict[int, list[Edge]] = defaultdict(list)
    given: set[int] = set()
    outputs_given: dict[int, set[int]] = defaultdict(set)
    ran = False
    for root in roots:
        outputs_given[root.node].add(root.output_index)
    for edge in edges:
        ways[edge.target].append(edge)
        if edge.gradient is not None:
            ran = True
            if not edge.gradient.is_missing:
                given.add(edge.target)
                outputs_given[edge.target].add(edge.output_index)
    if not ran:
        return
    # Where backward starts, the gradient comes from outside.
    given.update(node.id for node in nodes if node.id not in ways)
    by_culprit: dict[int, list[tuple[Node, Edge]]] = defaultdict(list)
    for node in nodes:
        if node.leaf is None or node.id in given:
            continue
        for edge in ways[node.id]:
            # Only where the op itself was given a gradient is it the one that dropped it.
            if edge.gradient is not None and edge.source in given:
                by_culprit[edge.source].append((node, edge))
                break
    for culprit_id, leaves in by_culprit.items():
        culprit = nodes[culprit_id - 1]
        unused = [
            index
            for index, known in enumerate(culprit.outputs)
            if known is not None and index not in outputs_given[culprit_id]
        ]
        yield _dropped(culprit, leaves, unused)


def _dropped(culprit: Node, leaves: list[tuple[Node, Edge]], unused: list[int]) -> Finding:
    """Say which op returned no gradient; a note if one of its outputs got none either."""
    names = ", ".join(_leaf(node) for node, _ in leaves[:_LISTED])
    custom = culprit.kind == "custom function"
    which = _numbered("input", [edge.input_index for _, edge in leaves[:_LISTED]])
    excuse = f" ({_numbered('output', unused)} of it got none either)" if unused else ""
    hint = (
        "return the gradient of this input from backward"
        if custom
        else "use the output that depends on it, or freeze it with requires_grad_(False)"
    )
    if unused:
        hint = f"use {_numbered('output', unused)} in the loss if this input is for it; else {hint}"
    return Finding.of(
        catalogue.NONE_GRADIENT if custom else catalogue.PARAMETER_WITHOUT_GRADIENT,
        f"{called(culprit)} returned no gradient for its {which}{excuse}, and no other path leads "
        f"to {names}: .grad stays as it is",
        detector="graph",
        severity=Severity.NOTE if unused else Severity.WARNING,
        location=culprit.location or culprit.source,
        hint=hint,
        evidence={
            "node": culprit.id,
            "op": culprit.op,
            "leaves": tuple(_leaf(node) for node, _ in leaves),
            "unused_outputs": tuple(unused),
        },
    )


def _numbered(what: str, numbers: Sequence[int]) -> str:
    several = "s" if len(set(numbers)) > 1 else ""
    return f"{what}{several} {', '.join(str(number) for number in dict.fromkeys(numbers))}"


def called(node: Node) -> str:
    """Name a node for people, with its line where it is known."""
    where = f", line {node.source.line}" if node.source is not None else ""
    return f"{visible(node.op)} (#{node.id}{where})"


def bytes_of(known: TensorType) -> int:
    """Return what a dense tensor of this type takes."""
    count = _ITEM_SIZES.get(known.dtype, 4 if "32" in known.dtype else 1)
    for size in known.shape:
        count *= size
    return count


def _leaf(node: Node) -> str:
    assert node.leaf is not None
    return visible(node.leaf.name) if node.leaf.names else f"leaf #{node.id}"


def _typed(known: TensorType | None) -> str:
    return "" if known is None else f" {known.shape} {known.dtype}"
