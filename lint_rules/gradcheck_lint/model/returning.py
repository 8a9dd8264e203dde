"""Say what a call of a function of the same file returns, as its caller sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, GradMode, Return
from gradcheck_lint.model.syntax import decorator_name, is_none
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Value,
    Values,
    carried_by_all,
    held_by,
    implied_by_all,
    join,
    join_all,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_lint.model.flow import Block
    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope

_THEMSELVES = frozenset(
    {Kind.UNKNOWN, Kind.MODULE, Kind.INSTANCE, Kind.OPTIMIZER, Kind.SCALER, Kind.SCHEDULER}
)
_THINGS = frozenset(
    {
        Kind.LEAF,
        Kind.MODULE,
        Kind.INSTANCE,
        Kind.OPTIMIZER,
        Kind.SCALER,
        Kind.SCHEDULER,
        Kind.PARAMETERS,
    }
)
_ELEMENTS = frozenset({Kind.TUPLE, Kind.CONTAINER})
_MOST_LEVELS = 2


def returned_by(block: Block) -> Values:
    """Return what a function may return; what its own backward() has used up is marked as spent."""
    backwards = [
        event
        for event in block.events()
        if isinstance(event, Backward) and not event.retains_graph and not event.partial
    ]
    found = NOTHING
    for event in block.events():
        if isinstance(event, Return):
            values = frozenset(value for value in event.values if not is_none(value.node))
            found = join(found, _marked(values, event, backwards))
    return found


def without_forwards(values: Values, forwards: frozenset[int]) -> Values:
    """Return values that went through none of some forwards, which each caller has its own of."""
    if not forwards:
        return values
    return frozenset(
        replace(
            value,
            through=value.through - forwards,
            parts=tuple(without_forwards(part, forwards) for part in value.parts),
            entries=tuple((key, without_forwards(held, forwards)) for key, held in value.entries),
        )
        for value in values
    )


def returns_plainly(scope: FunctionScope) -> bool:
    """Tell whether a call of a function runs its body and returns what that returns."""
    if not is_called_as_written(scope):
        return False
    kinds = {type(inner) for inner in scope.nodes}
    return cst.Return in kinds and cst.Yield not in kinds


def is_called_as_written(scope: FunctionScope) -> bool:
    """Return whether no decorator hands a function other arguments, or returns something else."""
    node = scope.node
    return not isinstance(node, cst.Module) and all(
        decorator_name(known) in _PLAIN_DECORATORS for known in node.decorators
    )


_PLAIN_DECORATORS = frozenset(
    {"staticmethod", "no_grad", "enable_grad", "inference_mode", "record", "compile", "override"}
)


def _marked(values: Values, at: Return, backwards: list[Backward]) -> Values:
    marked = values
    for backward in backwards:
        if backward.arms == at.arms[: len(backward.arms)] and not (
            set(backward.loops) - set(at.loops)
        ):
            freed = implied_by_all(backward.values)
            marked = frozenset(_spent(value, freed, backward.node) for value in marked)
    return marked


def _spent(value: Value, freed: frozenset[int], backward: cst.CSTNode) -> Value:
    if value.kind in _ELEMENTS:
        return replace(
            value,
            parts=tuple(
                frozenset(_spent(part, freed, backward) for part in values)
                for values in value.parts
            ),
            entries=tuple(
                (key, frozenset(_spent(part, freed, backward) for part in values))
                for key, values in value.entries
            ),
        )
    if value.kind in {Kind.UNKNOWN, Kind.HISTORY} and value.carries & freed:
        return replace(value, kind=Kind.HISTORY, spent=backward)
    return value


def as_seen_by_caller(
    reading: Reading,
    node: cst.Call,
    made: Value,
    returned: Values,
    given: Mapping[int, Values],
    *,
    may_record: bool,
) -> Values:
    """Return what a call at ``node`` evaluates to.

    ``made`` is what is said of a call of which no more is known; ``given`` what each parameter of
    the function is there; ``may_record`` tells that the function may turn recording on itself.
    """
    is_off = reading.state.mode is GradMode.DISABLED and not may_record
    seen = _Caller(reading, node, made, given, is_off=is_off)
    found = join_all(seen.translated(value, _MOST_LEVELS) for value in returned)
    return found or frozenset({made})


class _Caller:
    def __init__(
        self,
        reading: Reading,
        node: cst.Call,
        made: Value,
        given: Mapping[int, Values],
        *,
        is_off: bool,
    ) -> None:
        self._reading = reading
        self._node = node
        self._made = made
        self._given = given
        self._is_off = is_off

    def translated(self, value: Value, levels: int, *, is_part: bool = False) -> Values:
        """Return what a value of the function is to the caller, alone or as a part of another."""
        given = self._given.get(value.site, NOTHING)
        if given and all(known.kind in _THEMSELVES for known in given):
            return given
        if value.kind in _THINGS:
            return frozenset({self._made_there(value, levels)})
        if value.kind in _ELEMENTS and levels:
            return self._translated_elements(value, levels)
        if value.kind in {Kind.NUMBER, Kind.PLAIN}:
            seen = self._without_graph(value)
        elif value.kind is not Kind.HISTORY:
            seen = self._unknown(value, is_part=is_part)
        elif self._is_off and value.spent is None:
            seen = self._unrecorded(value)
        else:
            seen = self._with_graph(value)
        return frozenset({seen})

    def _site(self, value: Value) -> int:
        """Return the site that a value has here, the same wherever it is returned."""
        recorder = self._reading.recorder
        return recorder.intern(("returned", id(self._node), value.site, value.kind))

    def _made_there(self, value: Value, levels: int) -> Value:
        """Return a model, optimizer or the like that the function has made."""
        recorder = self._reading.recorder

        def here(site: int) -> int:
            return recorder.intern(("made", id(self._node), site))

        return recorder.value(
            value.kind,
            self._node,
            site=here(value.site),
            name=value.name,
            certain=value.certain,
            mentions=self._made.mentions,
            holds=frozenset(map(here, value.holds | {value.site})),
            entries=self._translated_entries(value, levels),
            parts=self._translated_parts(value, levels),
        )

    def _translated_parts(self, value: Value, levels: int) -> tuple[Values, ...]:
        return tuple(
            join_all(self.translated(part, levels - 1, is_part=True) for part in values)
            for values in (value.parts if levels else ())
        )

    def _translated_entries(self, value: Value, levels: int) -> tuple[tuple[str, Values], ...]:
        return tuple(
            (key, join_all(self.translated(part, levels - 1, is_part=True) for part in values))
            for key, values in (value.entries if levels else ())
        )

    def _without_graph(self, value: Value) -> Value:
        recorder = self._reading.recorder
        return recorder.value(
            value.kind,
            self._node,
            site=self._site(value),
            mentions=self._made.mentions,
            cut=value.cut,
            certain=value.certain,
        )

    def _with_graph(self, value: Value) -> Value:
        recorder, made = self._reading.recorder, self._made
        return recorder.value(
            Kind.HISTORY,
            self._node,
            site=self._site(value),
            origin=made.origin,
            mentions=made.mentions,
            # What was cut has its graph from nothing that the function was given.
            through=value.through if value.cut is not None else made.through | value.through,
            cut=value.cut,
            spent=value.spent,
        )

    def _unknown(self, value: Value, *, is_part: bool) -> Value:
        """Return a value of which is known no more than which forwards it went through."""
        if self._is_off and value.through:
            return self._unrecorded(value)
        made = self._made
        if value.cut is not None:
            made = replace(made, through=value.through, cut=value.cut)
        if not is_part:
            return replace(made, through=made.through | value.through)
        site = self._site(value)
        own = frozenset({site})
        return replace(
            made,
            site=site,
            carries=own,
            implies=own,
            holds=own | made.holds,
            through=made.through | value.through,
        )

    def _unrecorded(self, value: Value) -> Value:
        recorder = self._reading.recorder
        cut = recorder.cut_by_mode(self._node)
        return recorder.value(
            Kind.PLAIN, self._node, site=self._site(value), mentions=self._made.mentions, cut=cut
        )

    def _translated_elements(self, value: Value, levels: int) -> Values:
        recorder = self._reading.recorder
        parts = self._translated_parts(value, levels)
        entries = self._translated_entries(value, levels)
        site = self._site(value)
        own = frozenset({site})
        everything = join_all(parts)
        whole = recorder.value(
            value.kind,
            self._node,
            site=site,
            carries=own.union(
                *map(carried_by_all, parts), *(carried_by_all(held) for _, held in entries)
            ),
            mentions=self._made.mentions,
            holds=own | held_by(everything) | self._made.holds,
            through=self._made.through,
            parts=parts,
            entries=entries,
        )
        return frozenset({whole})
