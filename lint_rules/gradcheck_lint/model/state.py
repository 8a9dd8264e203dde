"""Keep what is known at one point of a function, and record what happens there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gradcheck_lint.model.flow import Block, Branch, Event, GradMode
from gradcheck_lint.model.values import NO_SITES, Kind, Origin, Value, Values, join, replace

if TYPE_CHECKING:
    import libcst as cst

E = TypeVar("E", bound=Event)

_WITHOUT_GRAPH = frozenset({Kind.NUMBER, Kind.PLAIN, Kind.GRADIENT, Kind.FUNCTION})


@dataclass(slots=True)
class State:
    """What names hold, and the grad mode; ``dead`` after a jump.

    All states of a function share two more things. ``owners`` are the names that something was
    ever known of the attributes of: few are, and of the others there is nothing to forget.
    ``written`` are the names that were changed in any of the states, one after the other: states
    that come from the same one can differ in no others than those since then.
    """

    names: dict[str, Values]
    mode: GradMode
    dead: bool = False
    owners: set[str] = field(default_factory=set)
    written: list[str] = field(default_factory=list)

    def copy(self) -> State:
        """Return a state that can change on its own."""
        return State(self.names.copy(), self.mode, self.dead, self.owners, self.written)

    def written_since(self, before: int) -> Iterable[str]:
        """Return the names that were changed since ``written`` was so long, each once."""
        return dict.fromkeys(self.written[before:])

    def put(self, path: str, values: Values) -> None:
        """Let a dotted name hold ``values``, with all that is known of its attributes."""
        self.names[path] = values
        self.written.append(path)

    def drop(self, path: str) -> None:
        """Forget what a dotted name holds, if that is known."""
        if self.names.pop(path, None) is not None:
            self.written.append(path)

    def bind(self, path: str, values: Values) -> None:
        """Let a dotted name hold ``values`` and forget what was known of its attributes."""
        if path in self.owners:
            for key in self._below(path):
                self.drop(key)
        if "." in path:
            self._own(path)
        self.names[path] = values
        self.written.append(path)

    def forget_attributes(self, root: str, cause: Value) -> None:
        """Forget every attribute of ``root``, because ``cause`` may have changed them."""
        if root in self.owners:
            for key in self._below(root):
                if key[-1] != "*":
                    self.drop(key)
        self._own(f"{root}.*")
        self.put(f"{root}.*", frozenset({cause}))

    def _below(self, root: str) -> list[str]:
        prefix = root + "."
        return [key for key in self.names if key.startswith(prefix)]

    def _own(self, path: str) -> None:
        """Note that something is known of what each part of a dotted name has."""
        owner = path.rpartition(".")[0]
        while owner and owner not in self.owners:
            self.owners.add(owner)
            owner = owner.rpartition(".")[0]

    def replace_site(self, site: int, change: Callable[[Value], Value]) -> None:
        """Change a value wherever it is held, also under other names."""
        for key, values in self.names.items():
            for value in values:
                if value.site == site:
                    changed = [change(value) if value.site == site else value for value in values]
                    self.put(key, frozenset(changed))
                    break


Lookup = Callable[[State, str], Values]


def join_states(left: State, right: State, lookup: Lookup, since: int) -> State:
    """Return what is known after either of two paths.

    Both come from a state of when ``written`` had ``since`` names. A name that only one path binds
    holds what it holds there: on the other path it's unbound. An attribute may have been set
    elsewhere, so ``lookup`` says what it holds on the other path.
    """
    if left.dead:
        return right.copy()
    if right.dead:
        return left.copy()
    joined = left.copy()
    names, on_left, on_right = joined.names, left.names.get, right.names.get
    for path in left.written_since(since):
        one, other = on_left(path), on_right(path)
        if one is other:
            continue
        if one is None:
            one = lookup(left, path) if "." in path else other
        elif other is None:
            other = lookup(right, path) if "." in path else one
        names[path] = join(one, other)  # type: ignore[arg-type]
    if left.mode is not right.mode:
        joined.mode = GradMode.UNKNOWN
    return joined


@dataclass(slots=True)
class Recorder:
    """Where reading has got to: the block that events go to, and what surrounds it."""

    block: Block = field(default_factory=Block)
    loops: tuple[int, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    expects_error: bool = False
    holders: set[int] = field(default_factory=set)
    models: set[int] = field(default_factory=set)
    """The sites of what has given its ``parameters()``."""
    interned: dict[Hashable, int] = field(default_factory=dict)
    unrecorded: set[int] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    """The sites of what a data loader yields, or targets are, which have no graph as a rule."""
    over_data: set[int] = field(default_factory=set)
    """The loops over data loaders."""

    def intern(self, key: Hashable) -> int:
        """Return the site that stands for ``key``, the same one each time (never an ``id``)."""
        return self.interned.setdefault(key, -1 - len(self.interned))

    def cut_by_mode(self, node: cst.CSTNode) -> cst.CSTNode:
        """Note that the result of ``node`` has no graph because nothing is recorded."""
        self.unrecorded.add(id(node))
        return node

    def hold(self, values: Values) -> None:
        """Note that these own parameters, and so does whatever they were taken from."""
        for value in values:
            self.holders.add(value.site)
            if value.origin in {Origin.ATTRIBUTE, Origin.ELEMENT}:
                self.holders.update(value.holds)

    def number(self, node: cst.CSTNode, cut: cst.CSTNode | None = None) -> Values:
        """Make a number at ``node``, as ``value`` does, in half the time: most values are some."""
        return frozenset((Value(Kind.NUMBER, id(node), node, self.loops, cut=cut),))

    def event(self, kind: type[E], node: cst.CSTNode, mode: GradMode, **details: Any) -> E:
        """Record that something happens at ``node``."""
        made = kind(node, mode, self.loops, self.arms, self.expects_error, **details)
        self.block.items.append(made)
        return made

    def are_batches(self, values: Values) -> bool:
        """Tell whether all this comes out of a data loader."""
        if not self.batches or not values:
            return False
        return all(value.site in self.batches for value in values)

    def branch(
        self, node: cst.CSTNode, arms: list[Block], test: cst.BaseExpression | None = None
    ) -> None:
        """Record that exactly one of ``arms`` happens, the first if ``test`` holds."""
        self.block.items.append(Branch(id(node), arms, test))

    def value(
        self,
        kind: Kind,
        node: cst.CSTNode,
        *,
        site: int | None = None,
        loops: tuple[int, ...] | None = None,
        origin: Origin = Origin.OTHER,
        name: str = "",
        carries: frozenset[int] | None = None,
        implies: frozenset[int] | None = None,
        mentions: frozenset[int] = NO_SITES,
        holds: frozenset[int] | None = None,
        **details: Any,
    ) -> Value:
        """Make a value at ``node``; unless told otherwise it carries and holds itself alone."""
        if site is None:
            site = id(node)
        own = NO_SITES if kind in _WITHOUT_GRAPH else frozenset((site,))
        return Value(
            kind,
            site,
            node,
            self.loops if loops is None else loops,
            origin,
            name,
            own if carries is None else carries,
            own if implies is None else implies,
            mentions,
            own if holds is None else holds,
            **details,
        )

    def unknown(
        self,
        node: cst.CSTNode,
        *,
        origin: Origin = Origin.OTHER,
        mentions: frozenset[int] = NO_SITES,
        part_of: Value | None = None,
    ) -> Values:
        """Make a value of which only its place is known; ``part_of`` is what it was taken from."""
        site = id(node)
        own = frozenset((site,))
        through, cut, result_of, aliases = NO_SITES, None, 0, NO_SITES
        if part_of is not None:
            through, cut, result_of = part_of.through, part_of.cut, part_of.result_of
            aliases = part_of.aliases
        value = Value(
            Kind.UNKNOWN,
            site,
            node,
            self.loops,
            origin,
            "",
            own,
            own,
            mentions,
            own,
            through=through,
            cut=cut,
            result_of=result_of,
            aliases=aliases,
        )
        return frozenset((value,))


def as_kind(kind: Kind, **details: Any) -> Callable[[Value], Value]:
    """Return the change that makes a value one of ``kind``, keeping its identity."""
    return lambda value: replace(value, kind=kind, **details)
