"""Tell what is taken out of a value: its elements, its parts, and what a target binds of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, dotted_name
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Value, Values, join, join_all

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading


def element_of(reading: Reading, values: Values, node: cst.CSTNode) -> Values:
    """Return what iterating over ``values`` yields; ``node`` is what it's bound to."""
    found = NOTHING
    for value in values:
        found = join(found, _element(reading, value, node))
    return found or reading.recorder.unknown(node, origin=Origin.ELEMENT)


def _element(reading: Reading, value: Value, node: cst.CSTNode) -> Values:
    make = reading.recorder.value
    if value.kind in {Kind.CONTAINER, Kind.TUPLE, Kind.MODULE} and value.parts:
        return join_all(value.parts)
    if value.kind is Kind.PARAMETERS:
        leaf = make(Kind.LEAF, node, certain=value.certain, holds=value.holds, name=value.name)
        if value.name != "named":
            return frozenset({leaf})
        name = make(Kind.NUMBER, node)
        return frozenset({make(Kind.TUPLE, node, parts=(frozenset({name}), frozenset({leaf})))})
    kind = _OF_TENSOR.get(value.kind)
    if kind is not None:
        return frozenset({make(kind, node, cut=value.cut)})
    if value.kind is Kind.MODULE and value.name in {"torch.nn.ModuleList", "torch.nn.Sequential"}:
        # A layer whose kind is not known.
        return frozenset({make(Kind.MODULE, node, name="torch.nn.Module", holds=value.holds)})
    mentions = value.mentions | {value.site}
    return (
        one_of_rest(reading, value, node)
        if is_rest(value, "*")
        else reading.recorder.unknown(node, origin=Origin.ELEMENT, mentions=mentions, part_of=value)
    )


_OF_TENSOR = {
    Kind.LEAF: Kind.LEAF_VIEW,
    Kind.LEAF_VIEW: Kind.LEAF_VIEW,
    Kind.PLAIN: Kind.PLAIN,
    Kind.NUMBER: Kind.NUMBER,
}


def is_rest(value: Value, star: str) -> bool:
    """Tell whether this is ``*args`` or ``**kwargs`` of the function itself."""
    return (
        value.origin is Origin.ARGUMENT
        and type(value.node) is cst.Param
        and value.node.star == star
    )


def one_of_rest(reading: Reading, rest: Value, node: cst.CSTNode) -> Values:
    """Return one of ``*args`` or ``**kwargs``, which has its graph from what a caller gave."""
    made = reading.recorder.value(
        Kind.UNKNOWN,
        node,
        origin=Origin.ELEMENT,
        carries=frozenset((id(node), rest.site)),
        mentions=frozenset((rest.site,)),
    )
    return frozenset({made})


def bind_target(reading: Reading, target: cst.CSTNode, values: Values) -> None:
    """Bind the names of a target, pattern by pattern; writes to objects are not its concern."""
    kind = type(target)
    if kind is cst.Name:
        reading.bind(target.value, values)  # type: ignore[attr-defined]
        return
    if kind is cst.Tuple or kind is cst.List:
        for index, element in enumerate(target.elements):  # type: ignore[attr-defined]
            bind_target(reading, element.value, unpacked(reading, element, values, index))
        return
    for name in bound_names(target):
        reading.bind(name, values)


def unpacked(reading: Reading, element: cst.BaseElement, values: Values, index: int) -> Values:
    """Return what position ``index`` of an unpacked value holds."""
    found = NOTHING
    starred = type(element) is cst.StarredElement
    for value in values:
        if value.kind is Kind.TUPLE and not starred and index < len(value.parts):
            part = value.parts[index]
        elif index == 1 and is_extremum(value.node):
            part = indices(reading, value, element)
        elif value.kind in {Kind.CONTAINER, Kind.LEAF, Kind.PLAIN} and not starred:
            part = _element(reading, value, element)
        else:
            mentions = value.mentions | {value.site}
            part = reading.recorder.unknown(
                element, origin=Origin.CALL, mentions=mentions, part_of=value
            )
            if value.site in reading.recorder.batches:
                reading.recorder.batches.update(made.site for made in part)
        found = join(found, part)
    return found or reading.recorder.unknown(element, origin=Origin.CALL)


def indices(reading: Reading, value: Value, node: cst.CSTNode) -> Values:
    """Return the integers of an extremum, which have no graph."""
    cut = value.node if value.through or value.kind is Kind.HISTORY else value.cut
    return reading.recorder.number(node, cut)


def is_extremum(node: cst.CSTNode | None) -> bool:
    """Tell whether this is ``x.max(dim)`` or ``torch.max(x, dim)``, of values and indices."""
    if type(node) is not cst.Call:
        return False
    func = node.func
    last = func.attr.value if type(func) is cst.Attribute else (dotted_name(func) or "")
    return last in {"max", "min", "topk", "sort", "kthvalue", "median", "cummax", "cummin"}
