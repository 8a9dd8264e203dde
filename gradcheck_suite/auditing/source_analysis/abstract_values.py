"""What an expression of the user's stands for, as far as gradients go.

An abstract value says whether there is a graph to something that is trained (``LIVE``), whether
there was one and it was cut (``CUT``), or whether it depends on nothing that is trained
(``PLAIN``). A sum also keeps its terms, and a container its items.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from gradcheck_suite.auditing.user_modes import without_user_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradcheck_suite.auditing.source_analysis.flow_cut import Cut  # noqa: TC004 - text alone

__all__ = [
    "NOTHING",
    "Bound",
    "Kind",
    "Part",
    "Value",
    "Written",
    "attribute_of",
    "combined",
    "container",
    "entries_of",
    "item_of",
    "iterated",
    "joined",
    "merged",
    "negated",
    "parts_of",
    "reduced",
    "scaled",
    "summed",
    "value_of_object",
    "written",
]

Written: TypeAlias = "str | ast.expr"
"""How the user wrote something; text is made of it where it is told."""

NOTHING: Any = object()
"""Stands where no object of the running program is known."""

_MOST_ITEMS = 24
"""Items of a container that are told apart. A bound on cost."""


class Kind(IntEnum):
    """What is known of the graph of a value; of several parts, the greatest counts."""

    PLAIN = 0
    CUT = 1
    UNKNOWN = 2
    LIVE = 3


_LONGEST = 60
"""Characters of the user's source that are shown of a term. Chosen, for length."""


def written(text: Written) -> str:
    """Return how the user wrote it, in one line of a bounded length."""
    text = " ".join((text if isinstance(text, str) else ast.unparse(text)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@dataclass(frozen=True, slots=True)
class Part:
    """A term of a sum: its value, how the user wrote it and where, its sign and its factor.

    ``factor`` is the product of the numbers that it is multiplied by, None where one is not known.
    """

    value: Value
    text: Written
    path: str
    line: int
    minus: bool = False
    factor: float | None = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An abstract value.

    Attributes:
        kind: what is known of its graph.
        cut: what has cut it, if it is cut.
        text: how it was written where it was made; with ``path`` and ``line``.
        parts: its terms, if it is a sum.
        items: what it holds by key or index, if it is a container; of an object, by attribute.
        thing: the object of the running program that it is, where that is known.
        callee: the last name of what was called to make it.
        factor: the product of the numbers that it was multiplied by last; None if not known.
        cuts: every cut on the way to it, those of constants that a live value is made with too.
        sources: the parameters that it depends on, by identity.
        unrecorded: the lines that recording was switched off by, with the sources of what was
            computed there, of which it depends smoothly: on a mask or an index nothing does.
        ancestors: the values that it was made of, by identity.
    """

    kind: Kind = Kind.PLAIN
    cut: Cut | None = None
    text: Written = ""
    path: str = ""
    line: int = 0
    parts: tuple[Part, ...] = ()
    items: dict[Any, Value] | None = None
    thing: Any = NOTHING
    callee: str | None = None
    factor: float | None = 1.0
    cuts: frozenset[Cut] = frozenset()
    sources: frozenset[int] = frozenset()
    unrecorded: frozenset[tuple[Cut, int]] = frozenset()
    ancestors: frozenset[Value] = field(default=frozenset(), repr=False)

    def cut_by(self, cut: Cut) -> Value:
        """Return what is left of it behind a cut; what has no graph is as it was."""
        if self.items is not None:
            return replace(self, kind=Kind.PLAIN, items=_each(self.items, lambda v: v.cut_by(cut)))
        if self.kind is not Kind.LIVE:
            return self
        return Value(
            Kind.CUT,
            cut,
            callee=self.callee,
            factor=self.factor,
            cuts=self.cuts | {cut},
            sources=self.sources,
            unrecorded=self.unrecorded | {(cut, each) for each in self.sources if cut.under},
            ancestors=_with(self),
        )

    def stepped(self) -> Value:
        """Return it as what has no slope, such as a mask or indices."""
        return replace(self.whole(), unrecorded=frozenset()) if self.unrecorded else self

    def number(self) -> float | None:
        """Return the number that it is, if that is known."""
        return float(self.thing) if type(self.thing) in (int, float) else None

    def whole(self) -> Value:
        """Return a container as one value, made of all its items."""
        return self if self.items is None else combined(list(self.items.values()))


def _each(items: dict[Any, Value], change: Callable[[Value], Value]) -> dict[Any, Value]:
    return {key: change(value) for key, value in items.items()}


def _with(value: Value) -> frozenset[Value]:
    return value.ancestors | {value} | {part.value for part in value.parts}


def combined(values: Iterable[Value], *, callee: str | None = None) -> Value:
    """Return what a function without a memory makes of these values."""
    values = [value.whole() for value in values]
    kind = max((value.kind for value in values), default=Kind.PLAIN)
    if len(values) == 1 and kind is Kind.PLAIN:
        return Value(callee=callee)
    return Value(
        kind,
        next((v.cut for v in values if v.cut is not None), None) if kind is Kind.CUT else None,
        callee=callee,
        cuts=frozenset().union(*(value.cuts for value in values)),
        sources=frozenset().union(*(value.sources for value in values)),
        unrecorded=frozenset().union(*(value.unrecorded for value in values)),
        ancestors=frozenset().union(*(_with(value) for value in values if value.kind)),
    )


def container(values: Iterable[Value] | dict[Any, Value]) -> Value:
    """Return a list, a tuple or a dict of these values."""
    items = values if isinstance(values, dict) else dict(enumerate(values))
    return Value(items=items) if len(items) <= _MOST_ITEMS else combined(items.values())


def parts_of(value: Value, text: Written, path: str, line: int) -> tuple[Part, ...]:
    """Return the terms of a value: itself, if it is no sum, or one of constants alone."""
    if value.kind in (Kind.LIVE, Kind.UNKNOWN) and value.parts:
        return value.parts
    return (Part(value, text, path, line, factor=value.factor),)


def summed(parts: Iterable[Part]) -> Value:
    """Return the sum of these terms, each counted once."""
    kept: dict[tuple[Any, ...], Part] = {}
    for part in parts:
        # A loop is gone through more than once, and comes by the same term again.
        kept.setdefault((part.path, part.line, part.text, part.value.text), part)
    whole = combined(part.value for part in kept.values())
    return replace(whole, parts=tuple(kept.values()))


def negated(value: Value) -> Value:
    """Return it with the other sign."""
    parts = tuple(replace(part, minus=not part.minus) for part in value.parts)
    return replace(value, parts=parts, thing=NOTHING)


def scaled(value: Value, by: Value, *, over: bool = False) -> Value:
    """Return a value times (or over) another; a sum stays one if that is a constant."""
    result = combined([value, by])
    if by.kind in (Kind.LIVE, Kind.UNKNOWN):
        return result
    number = by.number()
    if over and number:
        number = 1 / number
    # Weighted by what was cut off, such as probabilities, it is one value of an expectation.
    terms = reduced(value).parts if by.kind is Kind.CUT else value.parts
    parts = tuple(replace(part, factor=_product(part.factor, number)) for part in terms)
    factor = _product(value.factor, number)
    return replace(result, parts=parts, callee=value.callee, factor=factor)


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def reduced(value: Value) -> Value:
    """Return the mean or the sum of the elements.

    What is subtracted from a constant of its own kind, element by element, or that from it, is
    compared with it and has it for no term: the mean of ``log_prob - old_log_prob`` is one value.
    """
    cut = [part for part in value.parts if part.value.kind is Kind.CUT]
    live = [part for part in value.parts if part.value.kind is Kind.LIVE]
    is_difference = any(
        one.minus is not other.minus and _are_alike(one.value, other.value)
        for one in cut
        for other in live
    )
    return replace(value, parts=()) if is_difference else value


def _are_alike(one: Value, other: Value) -> bool:
    """Return whether two values may be of one kind: made by the same function, or by none known."""
    return one.callee is None or other.callee is None or one.callee == other.callee


def joined(values: list[Value]) -> Value:
    """Return what one of several values is, whichever comes."""
    first = values[0]
    if all(value is first for value in values):
        return first
    items = [value.items for value in values if value.items is not None]
    if len(items) == len(values):
        keys = dict.fromkeys(key for each in items for key in each)
        return container({key: joined([i[key] for i in items if key in i]) for key in keys})
    if any(value.parts for value in values):
        live = [value for value in values if value.kind is not Kind.PLAIN]
        parts = [p for v in live for p in parts_of(v, v.text, v.path, v.line)]
        if parts and sum(bool(value.parts) for value in live) == len(live):
            return summed(parts)
    whole = combined(values)
    best = max(values, key=lambda value: value.kind)
    return replace(
        best,
        cuts=whole.cuts,
        sources=whole.sources,
        unrecorded=whole.unrecorded,
        ancestors=whole.ancestors,
    )


# Objects of the running program.


def merged(value: Value, seen: Value) -> Value:
    """Return a value with the objects that the running program has for it and for its items."""
    if value.items is not None and seen.items is not None:
        keys = dict.fromkeys([*value.items, *seen.items])
        items = {
            key: merged(value.items[key], seen.items[key])
            if key in value.items and key in seen.items
            else (value.items.get(key) or seen.items[key])
            for key in keys
        }
        return replace(value, items=items)
    if value.items is not None or value.kind in (Kind.LIVE, Kind.CUT):
        return value
    if issubclass(type(seen.thing), Tensor):
        return seen if seen.kind is Kind.LIVE else value
    return value if type(seen.thing) in (int, float) else seen


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A function that is called on an object."""

    function: Any
    receiver: Any


def value_of_object(thing: Any, text: Written, *, depth: int = 2) -> Value:
    """Return what an object of the running program is; nothing of it is computed."""
    if issubclass(type(thing), Tensor):
        asks = without_user_modes(lambda: thing.requires_grad)
        sources = frozenset({id(thing)} if asks and thing.is_leaf else ())
        return Value(Kind.LIVE if asks else Kind.PLAIN, text=text, sources=sources, thing=thing)
    kind = type(thing)
    if depth and kind in (list, tuple, dict) and len(thing) <= _MOST_ITEMS:
        pairs = list(thing.items()) if kind is dict else list(enumerate(thing))
        items = {
            key: value_of_object(item, f"{written(text)}[{key!r}]", depth=depth - 1)
            for key, item in pairs
            if type(key) in (str, int)
        }
        return Value(items=items, text=text, thing=thing)
    return Value(text=text, thing=thing)


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute as the dictionaries of an object or its class have it."""
    own = getattr(owner, "__dict__", {})
    if type(own) is not dict and not isinstance(owner, type):
        return NOTHING
    for place in (own, *_parts_of_module(own, owner)):
        if name in place:
            return _unbound(place[name], owner) if isinstance(owner, type) else place[name]
    if isinstance(owner, ModuleType):
        # Packages load some of their modules when they are first asked for: this stands in.
        return sys.modules.get(f"{owner.__name__}.{name}", ModuleType(owner.__name__))
    found = inspect.getattr_static(type(owner), name, NOTHING)
    if isinstance(found, (staticmethod, classmethod)):
        return Bound(found.__func__, type(owner) if isinstance(found, classmethod) else NOTHING)
    if inspect.isfunction(found) or isinstance(found, property):
        return Bound(found, owner)
    return found


def _parts_of_module(own: Any, owner: Any) -> list[dict[str, Any]]:
    if not isinstance(owner, nn.Module):
        return []
    return [own.get(name, {}) for name in ("_parameters", "_buffers", "_modules")]


def _unbound(found: Any, owner: Any) -> Any:
    if isinstance(found, staticmethod):
        return found.__func__
    return Bound(found.__func__, owner) if isinstance(found, classmethod) else found


def iterated(value: Value) -> Value:
    """Return what a loop goes through: of a list of modules, each of them."""
    if value.items is None and isinstance(value.thing, (nn.ModuleList, nn.Sequential)):
        return container(value_of_object(each, value.text) for each in value.thing)
    return value


def entries_of(modules: nn.ModuleDict) -> Value:
    """Return a dict of modules by their names."""
    return container({key: value_of_object(each, key) for key, each in modules.items()})


def item_of(owner: Any, key: Any) -> Any:
    """Return an item of one of Python's own containers, or of a container of modules."""
    if isinstance(owner, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        return vars(owner).get("_modules", {}).get(str(key), NOTHING)
    if type(owner) is dict:
        return owner.get(key, NOTHING) if type(key) in (str, int) else NOTHING
    if type(owner) in (list, tuple) and type(key) is int and -len(owner) <= key < len(owner):
        return owner[key]
    return NOTHING
