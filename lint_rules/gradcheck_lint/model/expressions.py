"""Read expressions: what they may evaluate to, and what happens on the way."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.arithmetic import combine, cut_by_data, same_graph
from gradcheck_lint.model.comprehensions import note_kept, repeating, running
from gradcheck_lint.model.elements import bind_target, element_of, indices, is_extremum
from gradcheck_lint.model.flow import Block, Call, GradMode, InPlace, ZeroGrad
from gradcheck_lint.model.items import item_of, only_integer
from gradcheck_lint.model.knowledge import (
    SCALAR_ATTRIBUTES,
    SETTINGS,
    TORCH_MODULES_WITH_WEIGHTS,
    VIEW_ATTRIBUTES,
    names_holder,
)
from gradcheck_lint.model.saving import note_arithmetic
from gradcheck_lint.model.syntax import (
    child_list,
    dotted_name,
    plain_string,
)
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    carried_by_all,
    cut_of,
    flowing_from,
    held_by,
    join,
    join_all,
    mentioned_by,
    through_all,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.state import State

_LEAVES = (Kind.LEAF, Kind.LEAF_VIEW)


def read(reading: Reading, node: cst.CSTNode) -> Values:
    """Return what an expression may hold; its events are recorded."""
    reader = _READERS.get(type(node))
    if reader is None:
        return _read_children(reading, node)
    return reader(reading, node)


def look_up(reading: Reading, state: State, path: str) -> Values:
    """Return what a dotted name may hold, without events."""
    known = state.names.get(path)
    if known is not None:
        return known
    base, _, attribute = path.rpartition(".")
    if base and path not in reading.scopes.dotted:
        return _attribute_values(reading, state, look_up(reading, state, base), attribute, path)
    return reading.free_name(path)


def _read_name(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Name
    name = node.value
    if name in _CONSTANTS:
        return reading.recorder.number(node)
    values = reading.state.names.get(name) or look_up(reading, reading.state, name)
    if names_holder(name):
        _note_holder(reading, values)
    return values


_CONSTANTS = frozenset({"True", "False", "None"})


def _note_holder(reading: Reading, values: Values) -> None:
    reading.recorder.holders.update(
        value.site for value in values if value.kind is not Kind.FUNCTION and value.name != SETTINGS
    )


def _read_attribute(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Attribute
    path, last = dotted_name(node), node.attr.value
    # A method that is named in a statement of its own, and not called, does nothing.
    if "zero_grad" in last and reading.statement_value is not node:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if path is None:
        base = read(reading, node.value)
        values = _attribute_values(reading, reading.state, base, last, f"@{id(node)}")
        return cut_by_data(node, base, values)
    values = look_up(reading, reading.state, path)
    if names_holder(last):
        _note_holder(reading, values)
    if last == "data":
        base = look_up(reading, reading.state, path.removesuffix(".data"))
        return cut_by_data(node, base, values)
    return values


def _attribute_values(
    reading: Reading, state: State, base: Values, attribute: str, path: str
) -> Values:
    found = NOTHING
    epoch, loops = _epoch(state, path), reading.recorder.loops
    for value in base:
        if attribute == "indices" and value.node is not None and is_extremum(value.node):
            found = join(found, indices(reading, value, value.node))
            continue
        # A value that is kept here keeps its id.
        key = (id(value), attribute, epoch, loops)
        known = reading.attributes.get(key)
        if known is None:
            made = _make_attribute(reading, value, attribute, epoch)
            known = reading.attributes[key] = (value, made)
        found = join(found, known[1])
    return found


def _make_attribute(
    reading: Reading, value: Value, attribute: str, epoch: frozenset[int]
) -> Values:
    recorder = reading.recorder
    node = value.node or reading.scope.node
    root = reading.family if value.site == reading.own_site else value.site
    site = recorder.intern(("attribute", root, attribute, epoch))
    kind = _ATTRIBUTE_KINDS.get(attribute)
    if kind is None and attribute in VIEW_ATTRIBUTES and value.kind in _LEAVES:
        kind = Kind.LEAF_VIEW
    if kind is not None:
        from_it = frozenset({value.site})
        shared = value.aliases | from_it if attribute == "data" else NO_SITES
        made = recorder.value(kind, node, site=site, mentions=from_it, aliases=shared)
        return frozenset({made})
    if value.kind is Kind.PLAIN and value.cut is not None:
        return frozenset({recorder.value(Kind.PLAIN, node, site=site, cut=value.cut)})
    if value.name == SETTINGS:
        setting = recorder.value(
            Kind.UNKNOWN,
            node,
            site=site,
            origin=Origin.ATTRIBUTE,
            loops=value.loops,
            name=SETTINGS,
            holds=frozenset(),
        )
        return frozenset({setting})
    if value.kind is Kind.MODULE and attribute in {"weight", "bias"}:
        if value.name in TORCH_MODULES_WITH_WEIGHTS and not reading.may_freeze:
            return frozenset({recorder.value(Kind.LEAF, node, site=site, loops=value.loops)})
    elif value.kind is Kind.INSTANCE:
        known = _of_instance(reading, value, attribute, site)
        if known:
            return known
    own = frozenset({site})
    is_object = value.origin is Origin.ARGUMENT and value.kind is Kind.INSTANCE
    holds = own if is_object or _is_number(attribute) else None
    made = Value(
        Kind.UNKNOWN,
        site,
        node,
        value.loops,
        Origin.ATTRIBUTE,
        "",
        own,
        own,
        value.mentions | {value.site},
        holds or own | value.holds,
        through=value.through,
        cut=value.cut,
        result_of=value.result_of,
    )
    return frozenset((made,))


def _of_instance(reading: Reading, value: Value, attribute: str, site: int) -> Values:
    """Return what an attribute of an object is: what it was given, what is assigned, a method."""
    for key, held in value.entries:
        if key == attribute:
            return held
    known = reading.class_attribute(value.name, attribute)
    if known:
        return known
    owner = reading.scopes.classes.get(value.name)
    method = reading.scopes.method(owner, attribute)
    if method is None and attribute == "weight" and not reading.may_freeze:
        bases = (base for known in reading.scopes.lineage(owner) for base in known.bases)
        if any(reading.qualified(base) in TORCH_MODULES_WITH_WEIGHTS for base in bases):
            return frozenset(
                {reading.recorder.value(Kind.LEAF, value.node or reading.scope.node, site=site)}
            )
    if method is None or type(method.node) is not cst.FunctionDef or method.node.decorators:
        return NOTHING
    made = reading.recorder.value(Kind.FUNCTION, method.node, site=site, function=method)
    return frozenset({made})


@cache
def _is_number(attribute: str) -> bool:
    """Tell by its name whether an attribute is a number or text, from which nothing is reached."""
    return _NUMBER_NAME.search(attribute.lower()) is not None


_NUMBER_NAME = re.compile(
    r"(?:^|_)(?:steps?|epochs?|iter|iters|iterations?|lr|seed|rank|device|path|dir|name|count|size"
    r"|every|interval|num|len|freq|dim|loss|acc|time)$|^(?:num|n|max|min)_"
)

_ATTRIBUTE_KINDS = {
    "data": Kind.PLAIN,
    "grad": Kind.GRADIENT,
    **dict.fromkeys(SCALAR_ATTRIBUTES, Kind.NUMBER),
}


def _epoch(state: State, path: str) -> frozenset[int]:
    held = state.names.get(path.partition(".")[0] + ".*")
    return NO_SITES if held is None else frozenset(value.site for value in held)


def _read_subscript(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Subscript
    base = read(reading, node.value)
    for element in node.slice:
        index = element.slice
        if type(index) is cst.Index:
            read(reading, index.value)
        else:
            _read_below(reading, index)
    found = NOTHING
    is_second = only_integer(node) == 1
    for value in base:
        if is_second and is_extremum(value.node):
            found = join(found, indices(reading, value, node))
        else:
            found = join(found, item_of(reading, value, node))
    return found


def _read_number(reading: Reading, node: cst.CSTNode) -> Values:
    return reading.recorder.number(node)


def _read_to_number(reading: Reading, node: cst.CSTNode) -> Values:
    return reading.recorder.number(node, cut_of(_read_below(reading, node)))


def _read_comparison(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Comparison
    compared = [read(reading, node.left)]
    compared += [read(reading, target.comparator) for target in node.comparisons]
    has_graph = any(map(through_all, compared))
    return reading.recorder.number(node, node if has_graph else cut_of(*compared))


def _read_arithmetic(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.BinaryOperation
    left = read(reading, node.left)
    right = read(reading, node.right)
    if reading.notes_saves:
        note_arithmetic(reading, node, left, right)
    return combine(reading, node, node.operator, left, right)


def _read_unary(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.UnaryOperation
    inner = read(reading, node.expression)
    if type(node.operator) is cst.Not or all_are(inner, Kind.NUMBER):
        return reading.recorder.number(node)
    return same_graph(reading, node, inner)


def _read_conditional(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.IfExp
    read(reading, node.test)
    return _read_either(reading, node, (node.body, node.orelse))


def _read_logical(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.BooleanOperation
    first = read(reading, node.left)
    return join(first, _read_either(reading, node, (node.right,)))


def _read_either(
    reading: Reading, node: cst.CSTNode, choices: tuple[cst.BaseExpression, ...]
) -> Values:
    found = NOTHING
    arms: list[Block] = []
    for index, choice in enumerate(choices):
        with reading.arm(node, index) as block:
            found = join(found, read(reading, choice))
        arms.append(block)
    if len(choices) == 1:
        arms.append(Block())
    reading.recorder.branch(node, arms)
    return found


def _read_sequence(reading: Reading, node: cst.CSTNode) -> Values:
    elements: Sequence[cst.BaseElement] = node.elements  # type: ignore[attr-defined]
    parts: list[Values] = []
    starred = False
    for element in elements:
        values = read(reading, element.value)
        if type(element) is cst.StarredElement:
            starred = True
            values = element_of(reading, values, element)
        parts.append(values)
    return container(reading, node, parts, is_tuple=type(node) is cst.Tuple and not starred)


def container(
    reading: Reading,
    node: cst.CSTNode,
    parts: list[Values],
    *,
    is_tuple: bool = False,
    entries: Mapping[str, Values] | None = None,
) -> Values:
    """Make a container of these elements."""
    everything = join_all(parts)
    own = frozenset({id(node)})
    if not is_tuple and any(not part for part in parts):
        parts = []
    mentions, held, through, _ = flowing_from(everything)
    value = Value(
        Kind.TUPLE if is_tuple else Kind.CONTAINER,
        id(node),
        node,
        reading.recorder.loops,
        Origin.OTHER,
        "",
        own.union(*[carried_by_all(part) for part in parts]),
        own,
        mentions,
        own | held,
        tuple(parts) if is_tuple else (everything,) if parts else (),
        tuple(entries.items()) if entries else (),
        through=through,
    )
    return frozenset((value,))


def _read_dictionary(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Dict
    parts: list[Values] = []
    entries: dict[str, Values] = {}
    for element in node.elements:
        values = NOTHING
        if type(element) is cst.DictElement:
            read(reading, element.key)
            values = read(reading, element.value)
            key = plain_string(element.key) if type(element.key) is cst.SimpleString else None
            if key is not None:
                entries[key] = values
        else:
            values = read(reading, element.value)
        parts.append(values)
    if len(entries) < len(parts) or len(parts) > _MOST_ENTRIES:
        entries = {}
    return container(reading, node, parts, entries=entries)


_MOST_ENTRIES = 24
"""Dictionaries with more entries are tables, of which one is like the other."""


def _read_comprehension(reading: Reading, node: cst.CSTNode) -> Values:
    assert isinstance(node, cst.BaseComp)
    kept = dict(reading.state.names)
    how = running(reading, node)
    iterated = read(reading, node.for_in.iter)
    if how is not None:
        with repeating(reading, node):
            values = _read_elements(reading, node, iterated)
            note_kept(reading, node, values, how)
    else:
        values = _read_elements(reading, node, iterated)
    reading.state.names = kept
    return container(reading, node, [values])


def _read_elements(reading: Reading, node: cst.BaseComp, iterated: Values) -> Values:
    loop = node.for_in
    while True:
        bind_target(reading, loop.target, element_of(reading, iterated, loop))
        for condition in loop.ifs:
            read(reading, condition.test)
        if loop.inner_for_in is None:
            break
        loop = loop.inner_for_in
        iterated = read(reading, loop.iter)
    if type(node) is cst.DictComp:
        read(reading, node.key)
        return read(reading, node.value)
    assert isinstance(node, cst.BaseSimpleComp)
    return read(reading, node.elt)


def _read_lambda(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Lambda
    kept = dict(reading.state.names)
    for parameter in node.params.params:
        reading.bind(parameter.name.value, reading.recorder.unknown(parameter))
    # Whoever calls it, under no_grad or where an error is expected, is not known.
    mode = reading.state.mode
    reading.state.mode = GradMode.UNKNOWN
    with reading.arm(node, 0) as block:
        read(reading, node.body)
    # It writes when it's called, which comes later.
    block.items = [item for item in block.items if not isinstance(item, InPlace)]
    reading.recorder.branch(node, [block, Block()])
    reading.state.names = kept
    reading.state.mode = mode
    return reading.recorder.unknown(node)


def _read_walrus(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.NamedExpr
    values = read(reading, node.value)
    bind_target(reading, node.target, values)
    return values


def _read_awaited(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Await
    return read(reading, node.expression)


def _read_yield(reading: Reading, node: cst.CSTNode) -> Values:
    values = _read_children(reading, node)
    reading.recorder.event(
        Call,
        node,
        reading.state.mode,
        handed=held_by(values),
        mentions=mentioned_by(values),
        suspends=_is_decorated(reading.scope.node),
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _is_decorated(node: cst.CSTNode) -> bool:
    """Tell whether a generator may be a context manager or a fixture, round other code."""
    return type(node) is cst.FunctionDef and bool(node.decorators)


def _read_below(reading: Reading, node: cst.CSTNode) -> Values:
    """Read the expressions below a node, and return what they may hold together."""
    found = NOTHING
    for child in child_list(node):
        if _is_read(type(child)):
            found = join(found, read(reading, child))
    return found


def _read_children(reading: Reading, node: cst.CSTNode) -> Values:
    found = _read_below(reading, node)
    value = reading.recorder.value(
        Kind.UNKNOWN,
        node,
        mentions=mentioned_by(found),
        holds=held_by(found),
        through=through_all(found),
        cut=cut_of(found),
    )
    return frozenset({value})


_TRANSPARENT = (
    cst.Index,
    cst.Slice,
    cst.SubscriptElement,
    cst.ComparisonTarget,
    cst.FormattedStringExpression,
    cst.From,
)


@cache
def _is_read(kind: type[cst.CSTNode]) -> bool:
    return issubclass(kind, (cst.BaseExpression, *_TRANSPARENT))


def _read_call(reading: Reading, node: cst.CSTNode) -> Values:
    assert type(node) is cst.Call
    return reading.read_call(node)


_READERS = {
    cst.Call: _read_call,
    cst.Name: _read_name,
    cst.Attribute: _read_attribute,
    cst.Subscript: _read_subscript,
    cst.Integer: _read_number,
    cst.Float: _read_number,
    cst.Imaginary: _read_number,
    cst.SimpleString: _read_number,
    cst.ConcatenatedString: _read_to_number,
    cst.FormattedString: _read_to_number,
    cst.Comparison: _read_comparison,
    cst.BinaryOperation: _read_arithmetic,
    cst.UnaryOperation: _read_unary,
    cst.BooleanOperation: _read_logical,
    cst.IfExp: _read_conditional,
    cst.List: _read_sequence,
    cst.Tuple: _read_sequence,
    cst.Set: _read_sequence,
    cst.Dict: _read_dictionary,
    cst.ListComp: _read_comprehension,
    cst.SetComp: _read_comprehension,
    cst.GeneratorExp: _read_comprehension,
    cst.DictComp: _read_comprehension,
    cst.Lambda: _read_lambda,
    cst.NamedExpr: _read_walrus,
    cst.Yield: _read_yield,
    cst.Await: _read_awaited,
    **dict.fromkeys(_TRANSPARENT, _read_below),
}
