"""Describe what a name may hold, as far as the source proves it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import libcst as cst

from gradcheck_lint.model.scopes import FunctionScope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Kind(Enum):
    """What sort of thing a value is."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and asked for all the time

    UNKNOWN = "unknown"
    LEAF = "leaf that requires grad"
    LEAF_VIEW = "view of a leaf that requires grad"
    PLAIN = "tensor without a graph"
    HISTORY = "tensor with a graph"
    GRADIENT = "gradient"
    NUMBER = "number"
    CONTAINER = "container"
    TUPLE = "tuple"
    OPTIMIZER = "optimizer"
    SCALER = "gradient scaler"
    SCHEDULER = "learning rate scheduler"
    MODULE = "torch module"
    INSTANCE = "instance of a class of this file"
    PARAMETERS = "parameters of a module"
    FUNCTION = "function of this file"


class Origin(Enum):
    """How an unknown value came into the function."""

    __hash__ = object.__hash__  # as in ``Kind``

    ARGUMENT = "argument"
    ATTRIBUTE = "attribute"
    CALL = "call"
    ELEMENT = "element"
    BOUNDED = "bounded container"
    OTHER = "other"


@dataclass(slots=True)
class Value:
    """One thing that a name may hold; nobody changes one, ``replace`` makes another.

    It isn't frozen because Python then takes five times as long to make one, and a large file has
    tens of thousands.

    ``site`` identifies where it was made: two names with the same site are aliases. ``loops`` are
    the loops it was made in, outermost first. ``carries`` are the sites whose graph this value
    holds on to if they have one; ``implies`` are the sites that must have a graph if this value has
    one; ``mentions`` are all sites that flowed into it; ``holds`` are the objects that somebody who
    is handed this value can reach. ``parts`` are the elements of a tuple, or the one set of
    possible elements of a container; ``entries`` what a dictionary has under known keys.
    ``certain`` is False where frozen parameters are possible. ``through`` are the sites of the
    models that its graph may go through; ``cut`` is the call that took the graph away, if one did;
    ``result_of`` is the call of a model that returned it, alone or with others. ``aliases`` are the
    sites of tensors whose memory it has, or may have. ``spent`` is the ``backward()`` in a called
    function that has used up its graph, if one has.
    """

    kind: Kind
    site: int
    node: cst.CSTNode | None = field(default=None, compare=False, repr=False)
    loops: tuple[int, ...] = field(default=(), compare=False)
    origin: Origin = Origin.OTHER
    name: str = ""
    carries: frozenset[int] = frozenset()
    implies: frozenset[int] = frozenset()
    mentions: frozenset[int] = frozenset()
    holds: frozenset[int] = frozenset()
    parts: tuple[frozenset[Value], ...] = ()
    entries: tuple[tuple[str, frozenset[Value]], ...] = ()
    certain: bool = True
    through: frozenset[int] = field(default=frozenset(), compare=False)
    cut: cst.CSTNode | None = field(default=None, compare=False, repr=False)
    result_of: int = field(default=0, compare=False)
    function: FunctionScope | None = field(default=None, compare=False, repr=False)
    aliases: frozenset[int] = field(default=frozenset(), compare=False)
    spent: cst.CSTNode | None = field(default=None, repr=False)

    def __hash__(self) -> int:
        """Hash the site alone: nearly all that differ have different ones."""
        return self.site


_FIELDS: Final = tuple(known.name for known in fields(Value))
_PLACES: Final = {name: place for place, name in enumerate(_FIELDS)}
_contents: Final = attrgetter(*_FIELDS)


def replace(value: Value, **details: Any) -> Value:
    """Return a value with some fields changed, in a third of the time of ``dataclasses``."""
    contents = list(_contents(value))
    for name, content in details.items():
        contents[_PLACES[name]] = content
    return Value(*contents)


Values: TypeAlias = frozenset[Value]
NOTHING: Values = frozenset()
NO_SITES: frozenset[int] = frozenset()


def join(left: Values, right: Values) -> Values:
    """Return what may be held after either of two paths; a site appears once per kind."""
    if left is right or not right:
        return left
    if not left:
        return right
    if len(left) == 1 and len(right) == 1:
        (one,), (other,) = left, right
        if one.site != other.site or one.kind is not other.kind:
            return left | right
    if left == right:
        return left
    merged: dict[tuple[Kind, int], Value] = {}
    for value in (*left, *right):
        key = (value.kind, value.site)
        known = merged.get(key)
        merged[key] = value if known is None else _merge(known, value)
    return frozenset(merged.values())


def _merge(left: Value, right: Value) -> Value:
    if left == right:
        return left
    parts = left.parts
    if left.parts != right.parts:
        same_length = len(left.parts) == len(right.parts)
        parts = tuple(map(_shallow, left.parts, right.parts)) if same_length else ()
    return replace(
        left,
        carries=left.carries & right.carries,
        implies=left.implies & right.implies,
        mentions=left.mentions | right.mentions,
        holds=left.holds | right.holds,
        parts=parts,
        entries=_common_entries(left, right),
        certain=left.certain and right.certain,
        through=left.through | right.through,
        cut=left.cut or right.cut,
        result_of=left.result_of or right.result_of,
        aliases=left.aliases | right.aliases,
        spent=left.spent if right.spent is not None else None,
    )


def _shallow(left: Values, right: Values) -> Values:
    # Elements of elements are not followed, so that joining always comes to an end.
    return shallow(join(left, right))


def shallow(values: Values) -> Values:
    """Return these values without what is known of their elements."""
    return frozenset(
        replace(value, parts=(), entries=()) if value.parts or value.entries else value
        for value in values
    )


def _common_entries(left: Value, right: Value) -> tuple[tuple[str, frozenset[Value]], ...]:
    if left.entries == right.entries:
        return left.entries
    others = dict(right.entries)
    return tuple(
        (key, values if values == others[key] else _shallow(values, others[key]))
        for key, values in left.entries
        if key in others
    )


def with_entry(value: Value, key: str, held: Values) -> Value:
    """Return a dictionary that has ``held`` under ``key``, and whose other elements may be any."""
    kept = tuple(entry for entry in value.entries if entry[0] != key)
    return replace(value, parts=(), entries=(*kept, (key, shallow(held))))


def join_all(sets: Iterable[Values]) -> Values:
    """Return what may be held after any of several paths."""
    known = [values for values in sets if values]
    if len(known) <= 2:  # noqa: PLR2004 - a pair
        return join(*known) if len(known) > 1 else known[0] if known else NOTHING
    merged: dict[tuple[Kind, int], Value] = {}
    for values in known:
        for value in values:
            key = (value.kind, value.site)
            made = merged.get(key)
            merged[key] = value if made is None else _merge(made, value)
    return frozenset(merged.values())


def all_are(values: Values, *kinds: Kind) -> bool:
    """Tell whether there is at least one value and each is of one of these kinds."""
    if len(values) == 1:
        (only,) = values
        return only.kind in kinds
    return bool(values) and all(value.kind in kinds for value in values)


def sites(values: Values) -> frozenset[int]:
    """Return where these values were made."""
    if len(values) == 1:
        (only,) = values
        return frozenset((only.site,))
    return frozenset([value.site for value in values])


def carried_by_all(values: Values) -> frozenset[int]:
    """Return the sites whose graph is held whichever of these values it is."""
    if not values:
        return NO_SITES
    if len(values) == 1:
        (only,) = values
        return only.carries
    return frozenset.intersection(*(value.carries for value in values))


def carrying(made: Values, *operands: Values) -> Values:
    """Return values that hold on to the graphs of these operands as well."""
    carried = frozenset[int]().union(*map(carried_by_all, operands))
    return frozenset(replace(value, carries=value.carries | carried) for value in made)


def implied_by_all(values: Values) -> frozenset[int]:
    """Return the sites that have a graph if the value has one, whichever of these it is."""
    if not values:
        return NO_SITES
    if len(values) == 1:
        (only,) = values
        return only.implies
    return frozenset.intersection(*(value.implies for value in values))


def mentioned_by(values: Values) -> frozenset[int]:
    """Return every site that may have flowed into these values."""
    if not values:
        return NO_SITES
    if len(values) == 1:
        (only,) = values
        return only.mentions if only.site in only.mentions else only.mentions | {only.site}
    return NO_SITES.union([value.site for value in values], *[value.mentions for value in values])


def aliased_by(values: Values) -> frozenset[int]:
    """Return every tensor whose memory these values have, or may have, themselves included."""
    if not values:
        return NO_SITES
    return NO_SITES.union([value.site for value in values], *[value.aliases for value in values])


def through_all(values: Values) -> frozenset[int]:
    """Return the models that the graph of these values may go through."""
    if not values:
        return NO_SITES
    if len(values) == 1:
        (only,) = values
        return only.through
    return NO_SITES.union(*[value.through for value in values])


def cut_of(*sets: Values) -> cst.CSTNode | None:
    """Return the call that took the graph away from the first of these values that has one."""
    for values in sets:
        known = [value for value in values if value.cut is not None]
        if known:
            return min(known, key=_site).cut
    return None


def _site(value: Value) -> int:
    return value.site


def spent_by(*operands: Values) -> cst.CSTNode | None:
    """Return the backward() that has used up the graph of one operand, whatever that is."""
    for values in operands:
        if values and all(value.spent is not None for value in values):
            return min(values, key=_site).spent
    return None


def held_by(values: Values) -> frozenset[int]:
    """Return the objects that can be reached from these values."""
    if not values:
        return NO_SITES
    if len(values) == 1:
        (only,) = values
        return only.holds
    return NO_SITES.union(*[value.holds for value in values])


def flowing_from(
    values: Values,
) -> tuple[frozenset[int], frozenset[int], frozenset[int], cst.CSTNode | None]:
    """Return what ``mentioned_by``, ``held_by``, ``through_all`` and ``cut_of`` do, at once."""
    if not values:
        return NO_SITES, NO_SITES, NO_SITES, None
    if len(values) == 1:
        (only,) = values
        site, mentions = only.site, only.mentions
        mentions = mentions if site in mentions else mentions | {site}
        return mentions, only.holds, only.through, only.cut
    return mentioned_by(values), held_by(values), through_all(values), cut_of(values)


def parts_of(values: Values) -> Iterator[Values]:
    """Yield what is passed, and each part of a tuple such as ``(h, c)`` by itself."""
    yield values
    for value in values:
        if value.kind is Kind.TUPLE:
            for part in value.parts:
                yield from parts_of(part)
