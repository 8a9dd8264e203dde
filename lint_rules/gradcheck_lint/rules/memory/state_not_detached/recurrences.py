"""Find attributes that a model computes from their own last value, with its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.flow import Call, Forward, GradMode
from gradcheck_lint.model.values import Kind, Value, all_are, parts_of, sites
from gradcheck_lint.rules.memory.state_not_detached.states_on_self import state_kept_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["Recurrence", "recurrences"]


class Recurrence(NamedTuple):
    """An attribute of a model; ``is_renewed`` tells that another method may begin anew."""

    attribute: str
    node: cst.CSTNode
    is_renewed: bool


def recurrences(function: FunctionModel) -> Iterator[Recurrence]:
    """Yield what the ``forward`` of a module of the file adds to from call to call."""
    scope, module = function.scope, function.module
    owner = scope.owner
    if owner is None or scope.first_parameter is None or scope.name.endswith("__init__"):
        return
    if function.mode is GradMode.DISABLED:
        return
    is_forward = scope.name.endswith(".forward") and module.scopes.derives_from(owner, "torch.nn.")
    if not is_forward and not _is_called_again(function):
        return
    prefix = scope.first_parameter + "."
    for path, values in function.bindings.items():
        attribute = path.removeprefix(prefix)
        if not path.startswith(prefix) or "." in attribute:
            continue
        begun = sites(module.class_attribute(owner.name, attribute))
        kept = [
            value
            for value in values
            if _goes_on(value, attribute, begun, function)
            and not _is_made_of_cuts(value, attribute, begun, function)
        ]
        if not is_forward and not _is_given_to_model(attribute, function):
            continue
        if not kept or kept[0].node is None or _never_records(owner.name, module):
            continue
        if any(_is_told(attribute, other) for other in list(module.functions())):
            continue
        is_renewed = any(
            other.scope is not scope
            and not other.scope.name.endswith("__init__")
            and (assigns_attribute(other.scope, attribute) or "detach_" in other.scope.words)
            for other in list(module.functions())
        )
        trains = any("backward" in other.scope.words for other in list(module.functions()))
        if is_renewed and trains:
            continue  # whether each iteration begins anew is asked of the loop that trains
        yield Recurrence(attribute, kept[0].node, is_renewed)


def _goes_on(value: Value, attribute: str, begun: frozenset[int], function: FunctionModel) -> bool:
    """Tell whether a value has a graph and is made of the attribute's last value."""
    has_graph = value.kind is Kind.HISTORY or (value.kind is Kind.UNKNOWN and bool(value.through))
    if not has_graph or (value.cut is not None and not value.certain):
        return False
    return _goes_back_to(value, attribute, begun, function)


def _is_made_of_cuts(
    value: Value, attribute: str, begun: frozenset[int], function: FunctionModel
) -> bool:
    """Return whether the model that made a value was given the attribute without its graph."""
    for event in function.events():
        if isinstance(event, Forward) and id(event.node) == value.result_of:
            given = [
                part
                for passed in event.passed
                for values in parts_of(passed)
                for part in values
                if part.kind is not Kind.TUPLE and _goes_back_to(part, attribute, begun, function)
            ]
            return bool(given) and all(part.cut is not None for part in given)
    return False


def _goes_back_to(
    value: Value, attribute: str, begun: frozenset[int], function: FunctionModel
) -> bool:
    own = map(function.module.on_self, value.mentions)
    return bool(value.mentions & begun) or any(
        known is not None and known[1] == attribute for known in own
    )


def _never_records(name: str, module: ModuleModel) -> bool:
    """Tell whether each call of the model that the file shows is one without recording."""
    calls = [
        event
        for function in list(module.functions())
        for event in function.events()
        if isinstance(event, Forward)
        and all_are(event.values, Kind.INSTANCE)
        and any(value.name == name for value in event.values)
    ]
    return bool(calls) and all(call.mode is GradMode.DISABLED for call in calls)


def _is_told(attribute: str, function: FunctionModel) -> bool:
    """Tell whether a loop that differentiates is told of this state itself."""
    for event in function.events():
        if isinstance(event, Forward) and event.loops:
            kept = state_kept_by(function, event)
            if kept is not None and kept.attribute == attribute:
                return "backward" in function.scope.words
    return False


def _is_called_again(function: FunctionModel) -> bool:
    """Return whether a method of no model is called in a loop of the file, with recording."""
    method = function.scope.name.rpartition(".")[2]
    return any(
        isinstance(event, Call)
        and event.method == method
        and event.loops
        and event.mode is not GradMode.DISABLED
        for other in list(function.module.functions())
        if method in other.scope.words
        for event in other.events()
    )


def _is_given_to_model(attribute: str, function: FunctionModel) -> bool:
    """Return whether a model is given an attribute of the object, with recording."""
    return any(
        isinstance(event, Forward)
        and event.mode is not GradMode.DISABLED
        and any(
            known is not None and known[1] == attribute
            for values in event.passed
            for known in map(function.module.on_self, sites(values))
        )
        for event in function.events()
    )
