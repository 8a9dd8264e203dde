"""Tell whether what a loop fills is emptied or cut short again, so that nothing piles up in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.beginnings import first_time
from gradcheck_lint.model.flow import Call, StoreKind
from gradcheck_lint.model.growing import grows
from gradcheck_lint.model.syntax import dotted_name, integer, last_word, walk
from gradcheck_lint.model.values import sites

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_lint.model.flow import Store
    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

_EMPTIES = re.compile(r"reset|clear|flush|pop|drain|empty|finish|close", re.IGNORECASE)
_MOST_CALLS: Final = 3
"""How deep functions that a loop calls are looked into."""


def is_emptied(function: FunctionModel, store: Store) -> bool:
    """Tell whether something may take out again what is stored, as often as it is stored.

    In a loop that is anything which the loop does or calls; what a method stores in its object may
    be taken out by any other method.
    """
    inside = _inside(function.scope, function.module)
    if any(_empties_in(scope, store.target) for scope in inside):
        return True
    _, lambdas = function.scope.nodes_and_lambdas
    if any(_any_empties(walk(known), store.target) for known in lambdas):
        return True
    if not store.loops:
        return any(_empties_in(scope, store.target) for scope in _relatives(function))
    for loop in function.loops():
        if loop.identity == store.loop and _any_empties(walk(loop.node), store.target, store):
            return True
    calls = [
        event
        for event in function.events()
        if isinstance(event, Call) and store.loop in event.loops
    ]
    return (
        any(_may_empty(call, store) for call in calls)
        or any(_empties_argument(call, store) for call in calls)
        or is_emptied_by(calls, function, store.target)
    )


def empties(nodes: Iterable[cst.CSTNode], target: str) -> bool:
    """Tell whether some nodes empty, replace or cut short what has a dotted name."""
    return _any_empties(nodes, target)


def _may_empty(call: Call, store: Store) -> bool:
    """Tell whether a function that can't be looked into is handed the container, for a purpose."""
    if call.function is not None or call.harmless or call.is_used:
        return False
    return store.how is StoreKind.APPEND and _is_handed(call, store)


def _is_handed(call: Call, store: Store) -> bool:
    return not call.handed.isdisjoint(sites(store.target_values))


def _empties_argument(call: Call, store: Store) -> bool:
    """Tell whether a function of the file is handed the container and empties an argument."""
    scope = call.function
    if scope is None or isinstance(scope.node, cst.Module) or not _is_handed(call, store):
        return False
    parameters = {known.name.value for known in scope.node.params.params}
    return any(not parameters.isdisjoint(_emptied_by(node, in_place=True)) for node in scope.nodes)


def _inside(scope: FunctionScope, module: ModuleModel) -> Iterator[FunctionScope]:
    """Yield the functions that a function defines, those of its classes too."""
    return filter(scope.encloses, module.scopes.functions)


def _relatives(function: FunctionModel) -> Iterator[FunctionScope]:
    """Yield the other methods of a method's class, and what lies beside a nested function."""
    scope = function.scope
    for owner in function.module.scopes.lineage(scope.owner):
        for name, method in owner.methods.items():
            if name != "__init__":
                yield method
    if scope.owner is None and scope.parent is not None:
        yield from _inside(scope.parent, function.module)


def is_emptied_by(calls: Iterable[Call], function: FunctionModel, target: str) -> bool:
    """Tell whether functions of the file empty an attribute, or a name of the top level.

    Attributes count by their last word, whatever object has them.
    """
    is_attribute = "." in target
    if not is_attribute and function.scope is not function.module.scopes.top:
        return False
    seen: set[int] = set()
    waiting = [(call.function, _MOST_CALLS) for call in calls]
    while waiting:
        scope, left = waiting.pop()
        if scope is None or id(scope) in seen:
            continue
        seen.add(id(scope))
        begins = set(_beginnings(scope, target))
        emptied = {
            name
            for node in scope.nodes
            if id(node) not in begins
            for name in _emptied_by(node, in_place=not is_attribute)
        }
        if is_attribute:
            words = {last_word(name) for name in emptied if "." in name}
            if last_word(target) in words:
                return True
        elif target in emptied:
            return True
        if left:
            events = function.module.function(scope).events()
            added = _made_as_entries(scope)
            waiting.extend(
                (event.function, left - 1)
                for event in events
                if isinstance(event, Call) and id(event.node) not in added
            )
    return False


def _beginnings(scope: FunctionScope, target: str) -> Iterator[int]:
    """Yield what is done the first time, as ``if self.mean is None: self.mean = value``."""
    for node in scope.nodes:
        first = first_time(node.test, None) if type(node) is cst.If else None
        if type(node) is cst.If and first is not None and first.path == target:
            arm = node.orelse if first.arm else node.body
            yield from map(id, walk(arm) if arm is not None else ())


def _made_as_entries(scope: FunctionScope) -> set[int]:
    """Return the calls that make what is put beside others: ``d.setdefault(key, Meter())``."""
    made: list[cst.CSTNode] = []
    for node in scope.nodes_of(cst.Call, cst.Assign):
        if type(node) is cst.Call and _method(node) == "setdefault":
            made += [each.value for each in node.args]
        elif type(node) is cst.Assign and _is_part_assigned(node):
            made.append(node.value)
    return {id(node) for node in made}


def _method(node: cst.Call) -> str:
    return node.func.attr.value if type(node.func) is cst.Attribute else ""


def is_named_for_emptying(method: str) -> bool:
    """Tell by its name whether a method may empty its object."""
    return _EMPTIES.search(method) is not None


def is_emptied_anywhere(module: ModuleModel, target: str, maker: FunctionScope | None) -> bool:
    """Tell whether anything of the file takes out of a list again what is put into it.

    It is known by its last word; where it is made, assigning to it empties nothing.
    """
    word = last_word(target)
    for scope in module.scopes.functions:
        makes = scope is maker or scope is module.scopes.top or scope.name.endswith("__init__")
        for node in scope.nodes_with_lambdas:
            if makes and type(node) is cst.Assign and not _is_part_assigned(node):
                continue
            if any(last_word(name) == word for name in _emptied_by(node)):
                return True
    return False


def _is_part_assigned(node: cst.Assign) -> bool:
    return any(type(assigned.target) is cst.Subscript for assigned in node.targets)


def _empties_in(scope: FunctionScope, target: str) -> bool:
    return _any_empties(scope.nodes_with_lambdas, target)


def _any_empties(nodes: Iterable[cst.CSTNode], target: str, store: Store | None = None) -> bool:
    return any(
        target in _emptied_by(node)
        for node in nodes
        if store is None or not _is_part_of(node, store)
    )


def _is_part_of(node: cst.CSTNode, store: Store) -> bool:
    """Tell whether this is the store (`total = total + loss`, `losses[i] = loss`) or its start."""
    if id(node) in store.beginning.nodes:
        return True
    if type(node) is cst.Assign:
        return any(target.target is store.node for target in node.targets)
    return node is store.node


def _emptied_by(node: cst.CSTNode, *, in_place: bool = False) -> Sequence[str]:
    """Return the dotted names of what a node empties, cuts short, detaches, or else replaces."""
    found: list[str | None] = []
    if type(node) is cst.Call:
        func = node.func
        if type(func) is cst.Attribute and func.attr.value in _EMPTYING:
            found.append(dotted_name(func.value))
    elif type(node) is cst.Del:
        target: cst.CSTNode = node.target
        if type(target) is cst.Subscript:
            found.append(dotted_name(target.value))
        elif not in_place:
            found.append(dotted_name(target))
    elif type(node) is cst.Assign:
        for assigned in node.targets:
            found += _replaced_by(node, assigned.target, in_place=in_place)
    return [name for name in found if name is not None]


def _replaced_by(
    node: cst.Assign, target: cst.BaseExpression, *, in_place: bool
) -> Sequence[str | None]:
    if type(target) is cst.Subscript:
        return [dotted_name(target.value)] if _is_of_sequence(target) else []
    if in_place:
        return []
    if type(target) is cst.Tuple:
        # `losses, self.losses = self.losses, []`
        paths = [dotted_name(element.value) for element in target.elements]
        return [path for path in paths if path is not None and "." in path]
    return [] if _adds_to(node.value, dotted_name(target)) else [dotted_name(target)]


_EMPTYING: Final = frozenset(
    {"clear", "pop", "popleft", "popitem", "remove", "reset", "flush", "detach_", "zero_"}
)


def _is_of_sequence(target: cst.Subscript) -> bool:
    """Tell whether this is a slice or a place in a list: no key, by which more comes in."""
    return any(
        type(element.slice) is cst.Slice
        or (type(element.slice) is cst.Index and integer(element.slice.value) is not None)
        for element in target.slice
    )


def _adds_to(value: cst.BaseExpression, name: str | None) -> bool:
    """Tell whether this is what was there with something added."""
    if type(value) is cst.List:
        return name is not None and grows(name, value)
    if type(value) is cst.IfExp:
        return any(_adds_to(choice, name) for choice in (value.body, value.orelse))
    return type(value) is cst.BinaryOperation and any(
        isinstance(node, (cst.Name, cst.Attribute)) and dotted_name(node) == name
        for node in walk(value)
    )
