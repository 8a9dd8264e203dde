"""Say what operations on tensors make of their operands: with a graph, without, or cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.knowledge import SCALED
from gradcheck_lint.model.values import (
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    carried_by_all,
    cut_of,
    flowing_from,
    implied_by_all,
    join_all,
    mentioned_by,
    replace,
    spent_by,
    through_all,
)

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading

_LEAVES = (Kind.LEAF, Kind.LEAF_VIEW)


def combine(
    reading: Reading, node: cst.CSTNode, operator: cst.CSTNode, left: Values, right: Values
) -> Values:
    """Return what an arithmetic operation makes of two operands."""
    make = reading.recorder.value
    # Each set of kinds is looked at several times, and nothing is there for no kind at all.
    one, other = _kinds_of(left), _kinds_of(right)
    if one == other == _NUMBERS:
        return reading.recorder.number(node, cut_of(left, right))
    mentions, held, through, cut_left = flowing_from(left)
    more, also_held, also_through, cut_right = flowing_from(right)
    mentions |= more
    known = bool(one and other)
    if known and one <= _DISPLAYS and other <= _DISPLAYS:
        parts = join_all(part for value in (*left, *right) for part in value.parts)
        return frozenset(
            {make(Kind.CONTAINER, node, mentions=mentions, parts=(parts,) if parts else ())}
        )
    if reading.state.mode is GradMode.DISABLED or (known and one <= _PLAIN and other <= _PLAIN):
        cut = _cut_by_mode(reading, node, left | right) or cut_of(left, right)
        sure = all(value.certain for value in (*left, *right))
        return frozenset({make(Kind.PLAIN, node, mentions=mentions, cut=cut, certain=sure)})
    cut = cut_with_batch(reading, left, right)
    if cut is not None:
        return frozenset({make(Kind.PLAIN, node, mentions=mentions, cut=cut, certain=False)})
    has_graph = (one and one <= _GROWN) or (other and other <= _GROWN)
    kind = Kind.HISTORY if has_graph else Kind.UNKNOWN
    own = frozenset({id(node)})
    implies = own
    if other == _NUMBERS or (type(operator) in _DIVISIONS and _is_setting(right)):
        implies = own | implied_by_all(left)
    elif one == _NUMBERS:
        implies = own | implied_by_all(right)
    made = Value(
        kind,
        id(node),
        node,
        reading.recorder.loops,
        Origin.OTHER,
        SCALED if any(value.name == SCALED for value in (*left, *right)) else "",
        own | carried_by_all(left) | carried_by_all(right),
        implies,
        mentions,
        own | held | also_held,
        through=through | also_through,
        cut=cut_left or cut_right,
        spent=spent_by(left, right),
    )
    return frozenset((made,))


def cut_with_batch(reading: Reading, *operands: Values) -> cst.CSTNode | None:
    """Return what cut the graph of some operands if the others come out of a data loader."""
    plain: list[Values] = []
    for known in operands:
        if all_are(known, Kind.PLAIN, Kind.NUMBER):
            plain.append(known)
        elif not reading.recorder.are_batches(known):
            return None
    return cut_of(*plain)


def _cut_by_mode(reading: Reading, node: cst.CSTNode, operands: Values) -> cst.CSTNode | None:
    """Return the operation if it would have grown a graph, had it been recorded."""
    plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
    if reading.state.mode is not GradMode.DISABLED or all_are(operands, *plain):
        return None
    return reading.recorder.cut_by_mode(node)


_DIVISIONS = frozenset({cst.Divide, cst.FloorDivide, cst.DivideAssign, cst.FloorDivideAssign})
_NUMBERS = frozenset({Kind.NUMBER})
_DISPLAYS = frozenset({Kind.CONTAINER, Kind.TUPLE})
_PLAIN = frozenset({Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT})
_GROWN = frozenset({Kind.LEAF, Kind.LEAF_VIEW, Kind.HISTORY})


def _kinds_of(values: Values) -> frozenset[Kind]:
    return frozenset([value.kind for value in values])


def _is_setting(values: Values) -> bool:
    """Tell whether this is a number, or an argument or attribute as numbers of steps are."""
    settings = {Origin.ARGUMENT, Origin.ATTRIBUTE, Origin.ELEMENT}
    return bool(values) and all(
        value.kind is Kind.NUMBER or (value.kind is Kind.UNKNOWN and value.origin in settings)
        for value in values
    )


def same_graph(reading: Reading, node: cst.CSTNode, operand: Values) -> Values:
    """Return the result of an operation on one tensor alone."""
    make = reading.recorder.value
    mentions = mentioned_by(operand)
    plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
    if reading.state.mode is GradMode.DISABLED or all_are(operand, *plain):
        cut = _cut_by_mode(reading, node, operand) or cut_of(operand)
        sure = all(value.certain for value in operand)
        return frozenset({make(Kind.PLAIN, node, mentions=mentions, cut=cut, certain=sure)})
    kind = Kind.HISTORY if all_are(operand, *_LEAVES, Kind.HISTORY) else Kind.UNKNOWN
    own = frozenset({id(node)})
    made = make(
        kind,
        node,
        origin=Origin.CALL,
        mentions=mentions,
        implies=own | implied_by_all(operand),
        carries=own | carried_by_all(operand),
        through=through_all(operand),
        cut=cut_of(operand),
        name=SCALED if any(value.name == SCALED for value in operand) else "",
        spent=spent_by(operand),
    )
    return frozenset({made})


def cut_by_data(node: cst.Attribute, base: Values, values: Values) -> Values:
    """Note that ``x.data`` ends the graph of ``x``, if that is what is read and it has one."""
    has_graph = any(value.kind is Kind.HISTORY or value.through for value in base)
    if node.attr.value != "data" or not has_graph or not all_are(values, Kind.PLAIN):
        return values
    return frozenset(replace(value, cut=node) for value in values)
