"""Say what an item of a container, a tensor or an unknown object may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.syntax import integer, is_basic_index, string_index
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    replace,
)

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading

_LEAVES = (Kind.LEAF, Kind.LEAF_VIEW)
_GROUP_OPTIONS = frozenset({"lr", "weight_decay", "momentum", "betas", "eps", "name", "initial_lr"})


def item_of(reading: Reading, value: Value, node: cst.Subscript) -> Values:
    """Return what ``value[...]`` may be."""
    recorder = reading.recorder
    key = string_index(node)
    held = _entry_of(reading, value, key, node)
    if held:
        return held
    index = only_integer(node)
    if (
        (value.kind is Kind.TUPLE or value.name == "torch.nn.Sequential")
        and index is not None
        and -len(value.parts) <= index < len(value.parts)
    ):
        return value.parts[index]
    is_missing = key is not None and bool(value.entries)
    if value.kind is Kind.CONTAINER and value.parts and not _has_slice(node) and not is_missing:
        return _known_element(reading, value, key if key is not None else index)
    if value.kind in _LEAVES and is_basic_index(node):
        return frozenset({recorder.value(Kind.LEAF_VIEW, node)})
    if value.kind in {Kind.PLAIN, Kind.GRADIENT, Kind.NUMBER}:
        return frozenset({recorder.value(value.kind, node, cut=value.cut)})
    literal = key if key is not None else index
    site = id(node) if literal is None else recorder.intern(("item", value.site, literal))
    own = frozenset((site,))
    made = Value(
        # An item of what has a graph has one, whether it is a view or a copy.
        Kind.HISTORY if value.kind in _LEAVES or value.kind is Kind.HISTORY else Kind.UNKNOWN,
        site,
        node,
        value.loops if literal is not None else recorder.loops,
        Origin.ELEMENT,
        "",
        own,
        own,
        value.mentions | {value.site},
        value.holds | own,
        through=value.through,
        cut=value.cut,
        result_of=value.result_of,
        aliases=value.aliases | {value.site} if is_basic_index(node) else NO_SITES,
    )
    if value.site in recorder.batches:
        recorder.batches.add(made.site)
    return frozenset((made,))


def _known_element(reading: Reading, value: Value, literal: str | int | None) -> Values:
    """Return an element of a container, of which it's only known what all may be.

    Things under different keys are different things, even where one expression makes all.
    """
    if literal is None:
        return value.parts[0]
    recorder = reading.recorder
    return frozenset(
        replace(
            part,
            site=(site := recorder.intern(("item", value.site, literal, part.site))),
            holds=part.holds | {site},
        )
        if part.kind in _THINGS
        else part
        for part in value.parts[0]
    )


_THINGS = frozenset({Kind.OPTIMIZER, Kind.SCALER, Kind.SCHEDULER, Kind.MODULE, Kind.INSTANCE})


def _entry_of(reading: Reading, value: Value, key: str | None, node: cst.Subscript) -> Values:
    """Return what is known under a key, nothing if the key says nothing."""
    if key is None:
        return NOTHING
    held = dict(value.entries).get(key, NOTHING)
    if not held and key in _GROUP_OPTIONS:
        held = reading.recorder.number(node)
    return held


def only_integer(node: cst.Subscript) -> int | None:
    """Return the index where it is one integer literal."""
    if len(node.slice) != 1 or type(node.slice[0].slice) is not cst.Index:
        return None
    return integer(node.slice[0].slice.value)


def _has_slice(node: cst.Subscript) -> bool:
    return any(type(element.slice) is cst.Slice for element in node.slice)
