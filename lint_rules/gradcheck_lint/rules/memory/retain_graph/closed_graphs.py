"""Tell whether a function makes a whole graph by itself, and lets nothing of it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.callers import given_by_callers
from gradcheck_lint.model.flow import Return, Store
from gradcheck_lint.model.values import Kind, Origin, Values, mentioned_by, sites, through_all

if TYPE_CHECKING:
    from gradcheck_lint.model.flow import Backward
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["is_closed"]


def is_closed(function: FunctionModel, backward: Backward, calls: frozenset[int]) -> bool:
    """Tell whether nobody else can differentiate the graph that a backward goes through.

    ``calls`` are the calls of models in the function: the graph has to be made by them, of what
    the callers in the file have from a data loader or make without a graph.
    """
    made = through_all(backward.values) & calls
    if not made or function.scope.parent is None:
        return False
    flowed = mentioned_by(backward.values)
    if any(function.module.on_self(site) is not None for site in flowed):
        return False
    first = function.scope.first_parameter if function.scope.owner is not None else None
    for name, held in function.bindings.items():
        if name == first:
            continue
        if any(value.origin is Origin.ARGUMENT for value in held) and sites(held) & flowed:
            if not _is_data(function, name):
                return False
        elif "." in name and _is_of_graph(held, made):
            return False
    if _is_of_others(function, flowed):
        return False
    return not any(
        (isinstance(event, Return) and _is_of_graph(event.values, made))
        or (isinstance(event, Store) and _is_of_graph(event.stored, made))
        for event in function.events()
    )


def _is_of_graph(values: Values, made: frozenset[int]) -> bool:
    """Tell whether these values, or their parts, come of a call of a model and have its graph."""
    return any(
        (value.kind not in {Kind.PLAIN, Kind.NUMBER} and bool(value.through & made))
        or any(_is_of_graph(part, made) for part in value.parts)
        or any(_is_of_graph(held, made) for _, held in value.entries)
        for value in values
    )


def _is_data(function: FunctionModel, name: str) -> bool:
    """Tell whether every caller gives a parameter data, of which no model has made anything."""
    given = given_by_callers(function, name)
    return bool(given) and all(
        bool(values)
        and (
            caller.reading.recorder.are_batches(values)
            or all(
                value.kind in {Kind.PLAIN, Kind.NUMBER}
                or (value.kind is Kind.UNKNOWN and value.origin is Origin.ELEMENT)
                for value in values
            )
        )
        and not any(value.through or value.result_of for value in values)
        for caller, values in given
    )


def _is_of_others(function: FunctionModel, flowed: frozenset[int]) -> bool:
    """Tell whether something flows in that the functions around this one have computed."""
    around = function.scope.parent
    while around is not None:
        for values in function.module.function(around).bindings.values():
            if any(value.through and value.site in flowed for value in values):
                return True
        around = around.parent
    return False
