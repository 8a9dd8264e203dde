"""Know what the callers in a file hand to a function: the list or the meter that it fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.container_clearing import (
    empties,
    is_emptied_anywhere,
    is_named_for_emptying,
)
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Call, StoreKind
from gradcheck_lint.model.paths import values_of_parameters
from gradcheck_lint.model.returning import is_called_as_written
from gradcheck_lint.model.syntax import walk
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Values,
    all_are,
    held_by,
    sites,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Step, Store
    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = [
    "class_handed_in",
    "expressions_given",
    "given_by_callers",
    "is_parameter",
    "kept_by_caller",
    "lasts_at_callers",
    "models_of_step",
]


class _Use(NamedTuple):
    """A call of a function of the file."""

    caller: FunctionModel
    call: Call


def kept_by_caller(function: FunctionModel, store: Store) -> bool:
    """Tell whether a function puts something into what a caller keeps from loop to loop."""
    if "." in store.target:
        return _kept_in_object(function, store)
    if store.how is not StoreKind.APPEND or not store.target.isidentifier():
        return False
    if any(
        value.kind not in {Kind.UNKNOWN, Kind.CONTAINER} or value.origin is Origin.BOUNDED
        for value in store.target_values
    ):
        return False
    if empties(function.scope.nodes_with_lambdas, store.target):
        return False
    return lasts_at_callers(function, store.target, Kind.CONTAINER)


def _kept_in_object(function: FunctionModel, store: Store) -> bool:
    """Tell whether it is an attribute of an object that the callers of the file hand in."""
    root, _, attribute = store.target.partition(".")
    owner = class_handed_in(function, root)
    if owner is None or not attribute.isidentifier():
        return False
    kinds = {Kind.CONTAINER}
    if store.how is StoreKind.ACCUMULATE:
        kinds.add(Kind.NUMBER)
    held = function.module.class_attribute(owner.name, attribute)
    if not held or any(value.kind not in kinds or value.origin is Origin.BOUNDED for value in held):
        return False
    is_emptied = is_emptied_anywhere(function.module, store.target, None)
    return not is_emptied and lasts_at_callers(function, root, Kind.INSTANCE)


def class_handed_in(function: FunctionModel, name: str) -> ClassScope | None:
    """Return the class of which every caller in the file hands an object as a parameter."""
    if not function.module.scopes.classes or not is_parameter(function, name):
        return None
    given = [_given(function, use, name) for use in _uses_of(function)]
    found = {
        value.name if value.kind is Kind.INSTANCE else None for values in given for value in values
    }
    if not all(given):
        return None
    only = found.pop() if len(found) == 1 else None
    return None if only is None else function.module.scopes.classes.get(only)


def given_by_callers(function: FunctionModel, name: str) -> list[tuple[FunctionModel, Values]]:
    """Return what each call in the file gives a parameter, nothing for what can't be told."""
    if not is_parameter(function, name):
        return []
    return [(use.caller, _given(function, use, name)) for use in _uses_of(function)]


def expressions_given(
    function: FunctionModel, name: str
) -> Iterator[tuple[FunctionModel, cst.BaseExpression]]:
    """Yield what stands for a parameter in each call of a function in the file, with the caller."""
    for use in _uses_of(function):
        if type(use.call.node) is cst.Call:
            value = argument_for(name, use.call.node, function.scope)
            if value is not None:
                yield use.caller, value


def models_of_optimizer(function: FunctionModel, name: str) -> frozenset[int]:
    """Return the parameters that hold a model whose optimizer is another parameter.

    Every caller in the file has to make the optimizer of the parameters of that model.
    """
    if not is_parameter(function, name):
        return NO_SITES
    found: list[frozenset[int]] = []
    for use in _uses_of(function):
        optimizers = _given(function, use, name)
        if not all_are(optimizers, Kind.OPTIMIZER):
            return NO_SITES
        owned = held_by(optimizers) - sites(optimizers)
        given = values_of_parameters(use.call, function)
        found.append(
            frozenset(site for site, values in given.items() if values and sites(values) <= owned)
        )
    return frozenset.intersection(*found) if found else NO_SITES


def models_of_step(function: FunctionModel, step: Step) -> frozenset[int]:
    """Return the models whose parameters a step changes, none where that is not known."""
    if all_are(step.values, Kind.OPTIMIZER):
        return held_by(step.values) - sites(step.values)
    return models_of_optimizer(function, step.receiver or "")


def lasts_at_callers(function: FunctionModel, name: str, kind: Kind) -> bool:
    """Tell whether a caller's loop hands the same object each time, and doesn't empty it.

    What other callers do is their own affair, as long as it is an object of this kind.
    """
    if not is_parameter(function, name):
        return False
    uses = _uses_of(function)
    given = [_given(function, use, name) for use in uses]
    if any(value.kind is not kind for values in given for value in values):
        return False
    return any(
        bool(values)
        and all(
            value.origin is not Origin.BOUNDED and use.call.loops[-1] not in value.loops
            for value in values
        )
        and not _is_renewed(use, values)
        for use, values in zip(uses, given, strict=True)
        if use.call.loops
    )


def is_parameter(function: FunctionModel, name: str) -> bool:
    """Tell whether a name holds what a caller gives, and nothing else at any time."""
    held = function.bindings.get(name, frozenset())
    return len(held) == 1 and all(value.origin is Origin.ARGUMENT for value in held)


def _uses_of(function: FunctionModel) -> list[_Use]:
    key = "uses of functions"
    memo = function.module.memo
    if key not in memo:
        memo[key] = _all_uses(function.module)
    known: dict[int, list[_Use]] = memo[key]
    return known.get(id(function.scope), [])


def _all_uses(module: ModuleModel) -> dict[int, list[_Use]]:
    found: dict[int, list[_Use]] = {}
    for caller in list(module.functions()):
        for event in caller.events():
            if isinstance(event, Call) and event.function is not None and not event.referenced:
                found.setdefault(id(event.function), []).append(_Use(caller, event))
    return found


def _given(function: FunctionModel, use: _Use, name: str) -> Values:
    """Return what a call gives a parameter, nothing where that can't be told."""
    node = function.scope.node
    (held,) = function.bindings[name]
    if type(node) is not cst.FunctionDef or not is_called_as_written(function.scope):
        return NOTHING
    return values_of_parameters(use.call, function).get(held.site, NOTHING)


def _is_renewed(use: _Use, values: Values) -> bool:
    """Tell whether the loop around a call may empty what it hands over."""
    loop = use.call.loops[-1]
    handed = frozenset(value.site for value in values)
    names = {
        name
        for name, held in use.caller.bindings.items()
        if any(value.site in handed for value in held)
    }
    for known in use.caller.loops():
        if known.identity == loop and any(empties(walk(known.node), name) for name in names):
            return True
    return any(
        isinstance(event, Call)
        and loop in event.loops
        and bool(event.on & handed)
        and is_named_for_emptying(event.method or "")
        for event in use.caller.events()
    )
