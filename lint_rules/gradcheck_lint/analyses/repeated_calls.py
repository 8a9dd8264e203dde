"""Tell which functions run again and again, and what their object keeps in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, GradMode, Return, Step, StoreKind
from gradcheck_lint.model.function_class import elements_of, returns
from gradcheck_lint.model.growing import grows
from gradcheck_lint.model.syntax import bound_names, dotted_name, is_none
from gradcheck_lint.model.values import Kind, Origin, Value, Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Store
    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope


def repeats(function: FunctionModel) -> bool:
    """Tell whether a loop of the file, or Lightning's own, runs a function again and again.

    A method counts that is called on one object, not on one that the loop makes each time.
    """
    module = function.module
    if is_training_step(function):
        return True
    key = "functions that repeat"
    if key not in module.memo:
        module.memo[key] = frozenset(_repeating(module))
    return id(function.scope) in module.memo[key]


def steps_for_others(function: FunctionModel) -> bool:
    """Tell whether a function makes one step of training each time that somebody calls it.

    It is a method, or made and returned by another function. It calls backward() and step() once,
    and nothing in this file is seen to call it.
    """
    if function.scope.owner is None and not _is_handed_out(function):
        return False
    ends = {type(event) for event in function.events() if isinstance(event, (Backward, Step))}
    if len(ends) < 2 or function.scope.name.endswith("__init__"):  # noqa: PLR2004 - one of each
        return False
    if any(isinstance(event, (Backward, Step)) and event.loops for event in function.events()):
        return False
    return id(function.scope) not in _called(function.module)


def _is_handed_out(function: FunctionModel) -> bool:
    """Tell whether the function that this one is defined in returns it, alone or with others."""
    around = function.scope.parent
    if around is None or isinstance(around.node, cst.Module):
        return False
    own = function.scope.name.rpartition(".")[2]
    return any(
        dotted_name(part) == own for each in returns(around) for part in elements_of(each.value)
    )


def _called(module: ModuleModel) -> frozenset[int]:
    """Return the functions of the file that are called in it."""
    key = "functions that are called"
    if key not in module.memo:
        module.memo[key] = frozenset(
            id(event.function)
            for caller in list(module.functions())
            for event in caller.events()
            if isinstance(event, Call) and event.function is not None
        )
    known: frozenset[int] = module.memo[key]
    return known


def is_training_step(function: FunctionModel) -> bool:
    """Tell whether this is what an engine calls for each batch, and differentiates.

    Lightning does it with ``training_step``, the Trainer of transformers with ``compute_loss``.
    """
    scope = function.scope
    base = _ENGINES.get(scope.name.rpartition(".")[2])
    return (
        base is not None
        and scope.owner is not None
        and any(
            name.rpartition(".")[2].endswith(base)
            for known in function.module.scopes.lineage(scope.owner)
            for name in known.bases
        )
    )


_ENGINES = {"training_step": "LightningModule", "compute_loss": "Trainer"}


def _repeating(module: ModuleModel) -> Iterator[int]:
    called: dict[int, list[FunctionScope]] = {}
    waiting: list[FunctionScope] = []
    for caller in list(module.functions()):
        if is_training_step(caller):
            waiting.append(caller.scope)
        for event in caller.events():
            if isinstance(event, Call) and event.function is not None and not event.is_constructor:
                if event.loops and not _is_on_what_is_made_anew(event, caller):
                    waiting.append(event.function)
                else:
                    called.setdefault(id(caller.scope), []).append(event.function)
    seen: set[int] = set()
    while waiting:
        scope = waiting.pop()
        if id(scope) not in seen:
            seen.add(id(scope))
            yield id(scope)
            waiting.extend(called.get(id(scope), ()))


def _is_on_what_is_made_anew(call: Call, caller: FunctionModel) -> bool:
    """Tell whether the loop makes the object whose method it calls."""
    return bool(call.on) and any(
        isinstance(event, Call)
        and event.is_constructor
        and id(event.node) in call.on
        and call.loops[-1] in event.loops
        for event in caller.events()
    )


def differentiated_later(function: FunctionModel) -> Iterator[Backward]:
    """Yield what an engine calls backward() on: what its step returns."""
    if not is_training_step(function) or "manual_backward" in function.scope.words:
        return
    for event in function.events():
        if isinstance(event, Return):
            loss = _loss_in(event.values)
            if loss:
                yield Backward(
                    event.node,
                    GradMode.ENABLED,
                    event.loops,
                    event.arms,
                    event.expects_error,
                    values=loss,
                    by_engine=True,
                )


def _loss_in(values: Values) -> Values:
    """Return the loss itself, of a dictionary or of a tuple that begins with it."""
    found: set[Value] = set()
    for value in values:
        if value.kind is Kind.TUPLE and value.parts:
            found |= value.parts[0]
        elif not is_none(value.node):
            found |= dict(value.entries).get("loss", frozenset({value}))
    return frozenset(found)


def kept_by_object(function: FunctionModel, store: Store) -> bool:
    """Tell whether a method that repeats stores something in its object, and never takes it out."""
    kinds = {Kind.CONTAINER}
    if store.how is StoreKind.ACCUMULATE:
        kinds.add(Kind.NUMBER)
    if not store.target_values or any(
        value.kind not in kinds or value.origin is Origin.BOUNDED for value in store.target_values
    ):
        return False
    return lasts_between_calls(function, store.target)


def lasts_between_calls(function: FunctionModel, path: str) -> bool:
    """Tell whether a method repeats, and ``self.<attribute>`` is the same in every call of it."""
    root, _, attribute = path.partition(".")
    scope = function.scope
    if scope.owner is None or root != scope.first_parameter or not attribute.isidentifier():
        return False
    if any(_replaces(node, path) for node in scope.nodes):
        return False
    if not repeats(function) and not steps_for_others(function):
        return False
    return not any(
        loop in value.loops
        for caller in function.module.functions()
        for event in caller.events()
        if isinstance(event, Call) and event.function is scope
        for loop in event.loops[-1:]
        for value in caller.bindings.get(path, ())
    )


def kept_by_closure(function: FunctionModel, store: Store) -> bool:
    """Tell whether a function that a loop runs stores something in a list made outside of it."""
    scope = function.scope
    around = scope.parent
    if around is None or store.how is not StoreKind.APPEND or not store.target.isidentifier():
        return False
    if store.target in function.bindings or any(
        value.kind is not Kind.CONTAINER or value.origin is Origin.BOUNDED
        for value in store.target_values
    ):
        return False
    if store.target_values and steps_for_others(function):
        return True
    calls = [
        event
        for event in function.module.function(around).events()
        if isinstance(event, Call) and event.function is scope and event.loops
    ]
    return bool(store.target_values) and any(
        all(call.loops[-1] not in value.loops for value in store.target_values) for call in calls
    )


def _replaces(node: cst.CSTNode, target: str) -> bool:
    """Tell whether this gives an attribute another value, or empties what it holds."""
    if type(node) is cst.Assign:
        if grows(target, node.value):
            return False
        return any(target in bound_names(known.target) for known in node.targets)
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        is_own = dotted_name(node.func.value) == target
        return is_own and node.func.attr.value in {"clear", "pop", "popleft", "popitem"}
    return type(node) is cst.Del
