"""Functions of the same file that keep what they are handed: ``meter.update(loss)``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import class_handed_in, lasts_at_callers
from gradcheck_lint.analyses.container_clearing import (
    empties,
    is_emptied_by,
    is_named_for_emptying,
)
from gradcheck_lint.analyses.repeated_calls import lasts_between_calls, steps_for_others
from gradcheck_lint.model.flow import Call, GradMode, Store, StoreKind
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import dotted_name, first_word, last_word, walk
from gradcheck_lint.model.values import Kind, Origin, Value, Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Keeper", "is_part_of", "keepers", "parameter_names", "parameter_of"]


class Keeper(NamedTuple):
    """A call that stores an argument in something that outlives the iteration.

    Attributes:
        call: the call.
        handed: what is stored.
        argument: which argument that is, by position or by name.
        store: where the function stores it.
        is_sure: whether it is known for every caller in what the function stores it.
    """

    call: Call
    handed: Values
    argument: int | str
    store: Store
    is_sure: bool = True


def keepers(function: FunctionModel) -> Iterator[Keeper]:
    """Yield the calls that repeat and whose callee, on every path, keeps what it is handed.

    They repeat in a loop, or in a method that a loop runs, on what its object keeps in between.
    """
    calls = [event for event in function.events() if isinstance(event, Call)]
    over_items = _loops_over_items(function)
    for each in calls:
        call = _without(over_items, each)
        if call.function is None:
            yield from _on_what_is_handed_in(function, call, calls)
            yield from _on_an_element(function, call, calls)
            continue
        if call.referenced or call.is_constructor:
            continue
        if not call.loops and not _is_on_what_the_object_keeps(function, call):
            continue
        for store, index, values in _stored_by(
            function.module.function(call.function), call, calls
        ):
            if not call.loops and _is_emptied_beside(function, store):
                continue
            if _is_reset_by_caller(function, call, store):
                continue
            is_sure = bool(call.loops) or not steps_for_others(function)
            yield Keeper(call, values, index, store, is_sure)


def _stored_by(
    callee: FunctionModel, call: Call, calls: list[Call], depth: int = 0
) -> Iterator[tuple[Store, int | str, Values]]:
    """Yield the stores of a function that outlive a call of it, and which argument they keep."""
    names = parameter_names(callee.scope)
    if depth < _MOST_METERS and callee.scope.owner is not None:
        yield from _stored_within(callee, call, calls, depth)
    for store in callee.events():
        if not isinstance(store, Store) or store.mode is GradMode.DISABLED or not store.stored:
            continue
        for index, values in call.arguments:
            name = parameter_of(index, names)
            if (
                name is None
                or not values
                or not is_part_of(callee.bindings.get(name), store.stored)
            ):
                continue
            begins = _begins_with(name, store, callee)
            known = replace(store, target_values=_NUMBERS) if begins else store
            if (begins or not store.arms) and _outlives(known, call, calls, callee, names):
                yield store, index, values


def _begins_with(name: str, store: Store, callee: FunctionModel) -> bool:
    """Return whether a sum is what a function is given, the first time that it is called.

    ``self.mean = x if self.mean is None else 0.9 * self.mean + 0.1 * x``
    """
    return store.how is StoreKind.ACCUMULATE and any(
        dotted_name(target) == store.target
        and name in {dotted_name(each) for each in (value, *_choices(value))}
        for target, value in callee.scope.assignments
    )


def _choices(value: cst.BaseExpression) -> tuple[cst.BaseExpression, ...]:
    return (value.body, value.orelse) if type(value) is cst.IfExp else ()


_NUMBERS = frozenset({Value(Kind.NUMBER, 0)})


_MOST_METERS = 2
"""How many meters within meters are looked into."""


def _stored_within(
    callee: FunctionModel, call: Call, calls: list[Call], depth: int
) -> Iterator[tuple[Store, int | str, Values]]:
    """Yield what a method hands on to an object that its own object keeps, and what that stores."""
    names = parameter_names(callee.scope)
    inside = [event for event in callee.events() if isinstance(event, Call)]
    for inner in inside:
        method = inner.function or _method_of_element(callee, inner)
        if method is None or method is callee.scope or inner.arms:
            continue
        if inner.referenced or inner.is_constructor or not _is_on_own(inner, callee):
            continue
        inner_callee = callee.module.function(method)
        for store, _, handed in _stored_by(inner_callee, inner, inside, depth + 1):
            if not call.on or _lets_go(callee, store, call, calls):
                continue
            for index, values in call.arguments:
                name = parameter_of(index, names)
                if name is not None and values and is_part_of(callee.bindings.get(name), handed):
                    yield store, index, values


def _is_on_own(call: Call, function: FunctionModel) -> bool:
    """Tell whether a method is called on what the object keeps: ``self.losses[name].add(x)``."""
    owner = _container_of(call, function) or _object_of(call)
    return first_word(owner) == function.scope.first_parameter


def _loops_over_items(function: FunctionModel) -> set[int]:
    return {
        loop.identity
        for loop in function.loops()
        if type(loop.node) is cst.For
        and type(loop.node.iter) is cst.Call
        and type(loop.node.iter.func) is cst.Attribute
        and loop.node.iter.func.attr.value in {"items", "values"}
    }


def _without(over_items: set[int], call: Call) -> Call:
    """Return a call as it repeats: not for each entry of a dictionary, but each time it is filled.

    ``for name, value in losses.items(): meters[name].update(value)``
    """
    loops = call.loops
    while len(loops) > 1 and loops[-1] in over_items:
        loops = loops[:-1]
    return call if loops == call.loops else replace(call, loops=loops)


def _on_an_element(function: FunctionModel, call: Call, calls: list[Call]) -> Iterator[Keeper]:
    """Yield what ``meters.setdefault(name, Meter()).update(loss)`` keeps, in a lasting dictionary.

    What class an element has, the classes tell that the function or its object makes.
    """
    scope = _method_of_element(function, call) if call.loops else None
    path = None if scope is None else _container_of(call, function)
    if path is None or scope is None:
        return
    held = function.bindings.get(path) or function.bindings.get(first_word(path), frozenset())
    if any(call.loops[-1] in value.loops for value in held):
        return
    for store, index, values in _stored_by(function.module.function(scope), call, calls):
        yield Keeper(call, values, index, store, is_sure=False)


def _container_of(call: Call, function: FunctionModel) -> str | None:
    """Return the name of the container that a method's object is taken from, None for no element.

    That is ``self.stats`` of ``self.stats[name].setdefault(key, Meter()).update(value)``, also
    where the object has a name of its own in between.
    """
    node: cst.CSTNode | None = call.node.func if type(call.node) is cst.Call else None
    node = node.value if type(node) is cst.Attribute else None
    if type(node) is cst.Name:
        sources = sources_of(function.scope).get(node.value) or ()
        node = sources[0] if len(sources) == 1 else None
    is_element = False
    while node is not None and dotted_name(node) is None:
        if type(node) is cst.Subscript:
            node = node.value
        elif type(node) is cst.Call and type(node.func) is cst.Attribute:
            if node.func.attr.value not in {"setdefault", "get"}:
                return None
            node = node.func.value
        else:
            return None
        is_element = True
    return dotted_name(node) if is_element else None


def _method_of_element(function: FunctionModel, call: Call) -> FunctionScope | None:
    """Return the method that is called on an element, by the one class that has it."""
    scopes, scope = function.module.scopes, function.scope
    if call.method is None or call.method not in scopes.by_name:
        return None
    if _container_of(call, function) is None:
        return None
    around = [scope] if scope.owner is None else [scope, *scope.owner.methods.values()]
    made = {name for each in around for name in scopes.classes.keys() & each.words}
    found = {scopes.method(scopes.classes[name], call.method) for name in made} - {None}
    return found.pop() if len(found) == 1 else None


def _on_what_is_handed_in(
    function: FunctionModel, call: Call, calls: list[Call]
) -> Iterator[Keeper]:
    """Yield what a method of an object keeps that the callers of a function hand to it."""
    scopes = function.module.scopes
    if call.method is None or call.method not in scopes.by_name or not call.arguments:
        return
    called = call.node.func if type(call.node) is cst.Call else None
    name = dotted_name(called.value) if type(called) is cst.Attribute else None
    if name is None:
        return
    scope = scopes.method(class_handed_in(function, name), call.method)
    if scope is None or not (call.loops or lasts_at_callers(function, name, Kind.INSTANCE)):
        return
    for store, index, values in _stored_by(function.module.function(scope), call, calls):
        yield Keeper(call, values, index, store, is_sure=False)


def is_part_of(parameter: Values | None, kept: Values) -> bool:
    """Tell whether the parameter, which nothing else is bound to, is part of all that is kept.

    So it is where what is kept are its elements.
    """
    if parameter is None or len(parameter) != 1:
        return False
    (value,) = parameter
    if value.origin is not Origin.ARGUMENT:
        return False
    return all(
        value.site in stored.carries
        or (
            stored.origin is Origin.ELEMENT
            and stored.kind in {Kind.UNKNOWN, Kind.HISTORY}
            and value.site in stored.mentions
        )
        for stored in kept
    )


def _outlives(
    store: Store, call: Call, calls: list[Call], callee: FunctionModel, names: dict[int | str, str]
) -> bool:
    root, _, attribute = store.target.partition(".")
    if any(value.origin is Origin.BOUNDED for value in store.target_values):
        return False
    if attribute and root == callee.scope.first_parameter and callee.scope.owner is not None:
        kinds = {Kind.CONTAINER} if store.how is StoreKind.APPEND else {Kind.NUMBER, Kind.CONTAINER}
        if not store.target_values or any(value.kind not in kinds for value in store.target_values):
            return False
        return bool(call.on) and not _lets_go(callee, store, call, calls)
    for index, values in call.arguments:
        if call.loops and names.get(index) == store.target:
            return bool(values) and all(
                value.kind is Kind.CONTAINER
                and value.origin is not Origin.BOUNDED
                and call.loops[-1] not in value.loops
                for value in values
            )
    return False


def _lets_go(function: FunctionModel, store: Store, call: Call, calls: list[Call]) -> bool:
    """Tell whether a loop makes the object of a call anew, or calls what may empty it."""
    if any(_renews(other, call) for other in calls):
        return True
    beside = [
        other
        for other in calls
        if not other.is_constructor
        and (not call.loops or call.loops[-1] in other.loops)
        and ((other.on | other.handed) & call.on or _object_of(other) == _object_of(call))
    ]
    return is_emptied_by(beside, function, store.target)


def _is_reset_by_caller(function: FunctionModel, call: Call, store: Store) -> bool:
    """Tell whether the caller itself empties or replaces the attribute in the loop of the call."""
    called = call.node.func if type(call.node) is cst.Call else None
    owner = dotted_name(called.value) if type(called) is cst.Attribute else None
    target = f"{owner}.{store.target.partition('.')[2]}"
    return any(
        loop.identity in call.loops[-1:] and empties(walk(loop.node), target)
        for loop in function.loops()
    )


def _object_of(call: Call) -> str:
    """Return the name of what a method is called on, or of what that is a part of."""
    called = call.node.func if type(call.node) is cst.Call else None
    base = called.value if type(called) is cst.Attribute else None
    while type(base) is cst.Subscript:
        base = base.value
    return first_word(dotted_name(base))


def _is_emptied_beside(function: FunctionModel, store: Store) -> bool:
    """Tell whether something that runs as often as a method empties what another one fills."""
    beside = (call for call in _beside_calls_of(function) if not call.is_constructor)
    return "." in store.target and is_emptied_by(beside, function, store.target)


def _is_on_what_the_object_keeps(function: FunctionModel, call: Call) -> bool:
    """Tell whether a method that repeats calls a method of an attribute, which lasts."""
    called = call.node.func if type(call.node) is cst.Call else None
    path = dotted_name(called.value) if type(called) is cst.Attribute else None
    if path is None:
        return False
    if lasts_at_callers(function, path, Kind.INSTANCE):
        return True
    return lasts_between_calls(function, path) and not any(
        last_word(dotted_name(other.node.func.value) or "") == last_word(path)
        for other in _beside_calls_of(function)
        if type(other.node) is cst.Call and type(other.node.func) is cst.Attribute
        if is_named_for_emptying(other.method or "")
    )


def _beside_calls_of(function: FunctionModel) -> Iterator[Call]:
    """Yield the calls that run as often as a function does, and those that these make."""
    module = function.module
    beside = [event for event in function.events() if isinstance(event, Call)]
    for caller in module.functions():
        calls = [event for event in caller.events() if isinstance(event, Call)]
        around = {
            loop for call in calls if call.function is function.scope for loop in call.loops[-1:]
        }
        beside.extend(call for call in calls if around.intersection(call.loops))
    for call in beside:
        yield call
        if call.function is not None and call.function is not function.scope:
            called = module.function(call.function).events()
            yield from (event for event in called if isinstance(event, Call))


def _renews(other: Call, call: Call) -> bool:
    """Tell whether the loop makes the object anew, or may empty it."""
    if call.loops and call.loops[-1] not in other.loops:
        return False
    if other.is_constructor:
        return id(other.node) in call.on
    return bool(other.on & call.on) and is_named_for_emptying(other.method or "")


def parameter_names(scope: FunctionScope) -> dict[int | str, str]:
    """Return the parameters by position and by name, without the object of a method."""
    node = scope.node
    if isinstance(node, (cst.Module, cst.Lambda)) or node.decorators:
        return {}
    positional = [each.name.value for each in (*node.params.posonly_params, *node.params.params)]
    if scope.owner is not None:
        positional = positional[1:]
    names: dict[int | str, str] = dict(enumerate(positional))
    names.update((each, each) for each in positional)
    names.update((each.name.value, each.name.value) for each in node.params.kwonly_params)
    rest, keywords = node.params.star_arg, node.params.star_kwarg
    if type(rest) is cst.Param:
        names[_REST] = rest.name.value
    if keywords is not None:
        names[_KEYWORDS] = keywords.name.value
    return names


_REST, _KEYWORDS = -1, "**"


def parameter_of(index: int | str, names: dict[int | str, str]) -> str | None:
    """Return the parameter that takes an argument, ``args`` where it is one of ``*args``."""
    return names.get(index) or names.get(_REST if isinstance(index, int) else _KEYWORDS)
