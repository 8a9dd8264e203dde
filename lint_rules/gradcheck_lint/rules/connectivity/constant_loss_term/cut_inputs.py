"""Find networks in a loss that are given nothing but detached outputs of what the loss trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.cuts import forwards_by_node
from gradcheck_lint.model.flow import Backward, Forward, GradMode, Return
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Origin, Value, Values, sites, through_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["CutInput", "cut_inputs"]


class CutInput(NamedTuple):
    """A call of a network that learns by another loss, the model behind it, and that other call."""

    call: Forward
    behind: Forward
    other: Forward


def cut_inputs(function: FunctionModel) -> Iterator[CutInput]:
    """Yield the calls by which a loss can reach no model that it trains.

    The network itself is run with a graph for another loss: here its parameters are not meant.
    """
    forwards = forwards_by_node(function)
    if len(forwards) < 3 or "detach" not in function.scope.words:  # noqa: PLR2004 - two and behind
        return
    seen: set[int] = set()
    for loss in _losses(function):
        reached = through_all(loss)
        within = [forward for node, forward in forwards.items() if node in reached]
        for call in within:
            same = [other for other in within if sites(other.values) & sites(call.values)]
            if id(call) in seen or not all(map(_is_cut, same)):
                continue
            behind = _behind(call, function, reached, within)
            other = _other_call(call, reached, function)
            if behind is not None and other is not None:
                seen.add(id(call))
                yield CutInput(call, behind, other)


def _losses(function: FunctionModel) -> Iterator[Values]:
    """Yield what is differentiated here, or returned under the name of a loss."""
    for event in function.events():
        if isinstance(event, Backward):
            yield event.values
        elif isinstance(event, Return):
            for value in event.values:
                yield from (held for key, held in value.entries if "loss" in key)
            if "loss" in function.scope.name.lower():
                yield event.values


def _is_cut(call: Forward) -> bool:
    """Return whether a call is given values without a graph alone, and a detached one."""
    given = [value for values in call.passed for value in values]
    return all(map(_has_no_graph, given)) and any(
        value.cut is not None and value.certain for value in given
    )


def _has_no_graph(value: Value) -> bool:
    """Return whether a value has no graph, or comes from outside, as a batch does."""
    is_data = value.kind is Kind.UNKNOWN and value.origin in _OUTSIDE and not value.through
    return is_data or value.kind in {Kind.PLAIN, Kind.NUMBER}


_OUTSIDE: Final = frozenset({Origin.ARGUMENT, Origin.ELEMENT, Origin.ATTRIBUTE})


def _behind(
    call: Forward, function: FunctionModel, reached: frozenset[int], within: list[Forward]
) -> Forward | None:
    """Return the model of the loss whose output the call is given, detached."""
    for values in call.passed:
        for value in values:
            cut = value.cut.func if type(value.cut) is cst.Call else None
            name = dotted_name(cut.value) if type(cut) is cst.Attribute else None
            made = through_all(function.bindings.get(name or "", frozenset())) & reached
            for other in within:
                if id(other.node) in made and not sites(other.values) & sites(call.values):
                    return other
    return None


def _other_call(call: Forward, reached: frozenset[int], function: FunctionModel) -> Forward | None:
    """Return a call of the same network with a graph that this loss does not reach."""
    for event in function.events():
        if (
            isinstance(event, Forward)
            and id(event.node) not in reached
            and event.mode is not GradMode.DISABLED
            and sites(event.values) & sites(call.values)
        ):
            return event
    return None
