"""Find what a model returned that is stored with its graph where nothing is differentiated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import lasts_at_callers
from gradcheck_lint.analyses.container_clearing import is_emptied_anywhere
from gradcheck_lint.analyses.repeated_calls import kept_by_object, lasts_between_calls
from gradcheck_lint.model.flow import Backward, Call, Forward, GradMode, Store, StoreKind
from gradcheck_lint.model.syntax import dotted_name, string_index
from gradcheck_lint.model.values import Kind, Value, Values, parts_of, sites, through_all
from gradcheck_lint.rules.memory.graph_kept.containers import (
    is_part_of,
    parameter_names,
    parameter_of,
)
from gradcheck_lint.rules.memory.graph_kept.messages import output_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._rule import Violation

__all__ = ["stored_outputs"]

_NOT_RECORDED: Final = frozenset({GradMode.DISABLED, GradMode.UNKNOWN})
_WITHOUT_GRAPH: Final = frozenset(
    {"sample", "multinomial", "argmax", "detach", "no_grad", "inference_mode", "item"}
)
"""Words of a forward that may return something without a graph."""


def stored_outputs(function: FunctionModel) -> Iterator[Violation]:
    """Yield what an object keeps from call to call of what a model has returned, as a replay does.

    Nothing of the file takes it out again. What the function differentiates itself, and what is
    made of an output, is not looked at: a draw or a number has no graph.
    """
    module = function.module
    if not module.mentions(b"backward") or not module.mentions(b"append", b"insert", b"extend"):
        return
    events = list(function.events())
    used = {
        node
        for event in events
        if isinstance(event, Backward)
        for node in through_all(event.values)
    }
    forwards = {
        id(event.node): event
        for event in events
        if isinstance(event, Forward) and event.mode not in _NOT_RECORDED
        if id(event.node) not in used
    }
    if not forwards:
        return
    if not module.modes_of_callers(function.scope).isdisjoint(_NOT_RECORDED):
        return
    for event in events:
        if isinstance(event, Store):
            known = _outputs(event.stored, forwards, function)
            if known and event.how is StoreKind.APPEND and _is_kept_by(function, event):
                yield output_kept(function, event.node, event.stored_node, event, known)
        elif isinstance(event, Call):
            yield from _handed_on(function, event, forwards)


def _is_kept_by(function: FunctionModel, store: Store) -> bool:
    return kept_by_object(function, store) and not is_emptied_anywhere(
        function.module, store.target, None
    )


def _handed_on(
    function: FunctionModel, call: Call, forwards: dict[int, Forward]
) -> Iterator[Violation]:
    """Yield the outputs that a method of a lasting object is given and puts into a container."""
    if call.function is None or call.referenced or call.is_constructor or call.function.linked:
        return
    func = call.node.func if type(call.node) is cst.Call else None
    if type(func) is not cst.Attribute or not _lasts(function, func.value):
        return
    callee = function.module.function(call.function)
    names = parameter_names(callee.scope)
    for place, values in call.arguments:
        known = _outputs(values, forwards, function)
        given = callee.bindings.get(parameter_of(place, names) or "")
        for store in callee.events() if known else ():
            if isinstance(store, Store) and _keeps(store, given, callee):
                yield output_kept(function, call.node, None, store, known)
                break


def _lasts(function: FunctionModel, thing: cst.BaseExpression) -> bool:
    """Return whether an object is the same in all calls: ``buffer``, ``state["buffer"]``."""
    if type(thing) is not cst.Subscript:
        path = dotted_name(thing)
        return path is not None and (
            lasts_at_callers(function, path, Kind.INSTANCE) or lasts_between_calls(function, path)
        )
    holder, key = dotted_name(thing.value), string_index(thing)
    is_replaced = any(
        type(target) is cst.Subscript and string_index(target) == key
        for target, _ in function.scope.assignments
    )
    return (
        holder is not None
        and key is not None
        and not is_replaced
        and lasts_at_callers(function, holder, Kind.CONTAINER)
    )


def _keeps(store: Store, given: Values | None, callee: FunctionModel) -> bool:
    """Return whether a method puts a parameter into a container of its object for good."""
    is_own = store.target.partition(".")[0] == callee.scope.first_parameter
    if not is_own or store.how is not StoreKind.APPEND or store.mode in _NOT_RECORDED:
        return False
    if not store.stored or not is_part_of(given, store.stored):
        return False
    return not is_emptied_anywhere(callee.module, store.target, None)


def _outputs(
    values: Values, forwards: dict[int, Forward], function: FunctionModel
) -> list[cst.CSTNode]:
    """Return the forwards whose result, with its graph, is among some values."""
    found = [
        value
        for part in parts_of(values)
        for value in part
        if value.result_of in forwards
        and value.kind in {Kind.UNKNOWN, Kind.HISTORY}
        and (value.cut is None or value.certain)
    ]
    return [
        forwards[value.result_of].node
        for value in found
        if _is_state(value, forwards[value.result_of])
        or _returns_graph(value, forwards[value.result_of], function)
    ]


def _is_state(value: Value, forward: Forward) -> bool:
    """Return whether a model is given back what it has returned, as recurrent ones are."""
    return any(value.site in sites(part) for passed in forward.passed for part in parts_of(passed))


def _returns_graph(value: Value, forward: Forward, function: FunctionModel) -> bool:
    """Return whether it is all that a model of the file or of torch returns, and draws nothing."""
    if value.site != value.result_of:
        return False
    scopes = function.module.scopes
    methods = [
        scopes.method(scopes.classes.get(model.name), "forward")
        for model in forward.values
        if model.kind is not Kind.MODULE
    ]
    return bool(forward.values) and all(
        method is not None and _WITHOUT_GRAPH.isdisjoint(method.words) for method in methods
    )
