"""GCS209: a hook that each call of a function, or each iteration, registers once more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.paths import values_of_parameters
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    bound_names,
    dotted_name,
    walk,
)
from gradcheck_lint.model.values import NOTHING, Origin, held_by, join_all, mentioned_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Values

_REGISTERS: Final = frozenset(
    {
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_backward_hook",
    }
)
_CLEARED: Final = re.compile(rb"_(?:for|back)ward\w*_hooks(?:\.clear|\.pop|\s*=[^=])")
"""What torch itself keeps the hooks of a module in."""


class HookPilesUp(Rule):
    """A hook of a module is registered again and again, and nothing removes it."""

    entry = catalogue.HOOK_PILES_UP

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every registration that repeats on one module and whose hook stays."""
        if _REGISTERS.isdisjoint(function.scope.words):
            return
        parents = parents_of(function)
        for event in function.events():
            if not isinstance(event, Call) or event.method not in _REGISTERS:
                continue
            if (lost := _lost_handle(event.node, function, parents)) is not None:
                yield Violation(
                    event.node,
                    f"`{lost}` is another handle in each iteration, and only the last is removed "
                    "after the loop: the hooks of the others stay, and pile up with each pass",
                    Severity.WARNING,
                    "keep all handles in a list, and call `remove()` of each",
                )
                continue
            if _is_guarded(event.node, parents) or _is_removed(event, function, parents):
                continue
            hooked = _owners(event, function)
            again = _repeats_here(event, function) or _called_again(function, hooked, set())
            if again is not None:
                yield Violation(
                    event.node,
                    f"`{event.method}` is called again and again on the same module, and nothing "
                    "in this file removes the hook: each pass runs all that were registered",
                    Severity.WARNING,
                    f"keep what `{event.method}` returns, and call its `remove()` when it is done",
                    () if again is event.node else ((again, "it is registered again from here"),),
                )


def _lost_handle(
    node: cst.CSTNode, function: FunctionModel, parents: dict[int, cst.CSTNode]
) -> str | None:
    """Return the name of a loop's handles, of which ``remove()`` after it gets but the last."""
    assigned = parents.get(id(node))
    if type(assigned) is not cst.Assign or len(assigned.targets) != 1:
        return None
    name, around = dotted_name(assigned.targets[0].target), parents.get(id(assigned))
    while around is not None and type(around) is not cst.For:
        # A test for one module, as of its name, lets one be registered at most.
        if type(around) is cst.If:
            return None
        around = parents.get(id(around))
    if around is None or name is None:
        return None
    inside = [*walk(around.body)]
    mentions = sum(dotted_name(each) == name for each in inside if type(each) is cst.Name)
    if mentions > 1 or any(type(each) is cst.Break for each in inside):
        return None
    calls = function.scope.nodes_of(cst.Call)
    removed = any(dotted_name(each.func) == f"{name}.remove" for each in calls)
    return name if removed else None


def _is_guarded(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> bool:
    """Return whether a test lets it be registered the first time alone: ``if handle is None``."""
    parent = parents.get(id(node))
    while parent is not None:
        if type(parent) is cst.If and _asks_for_first(parent.test):
            return True
        parent = parents.get(id(parent))
    return False


def _asks_for_first(test: cst.BaseExpression) -> bool:
    return any(
        isinstance(node, (cst.Not, cst.NotIn))
        or (type(node) is cst.Name and node.value in {"None", "hasattr"})
        or (type(node) is cst.Integer and node.value == "0")
        for node in walk(test)
    )


def _is_removed(event: Call, function: FunctionModel, parents: dict[int, cst.CSTNode]) -> bool:
    """Return whether the handle is kept, and something that is used calls ``remove()``."""
    module = function.module
    if module.matches(_CLEARED):
        return True
    if type(parents.get(id(event.node))) is cst.Expr:
        return False
    named = {word for scope in module.scopes.functions for word in scope.words}
    for scope in module.scopes.functions:
        name = scope.name.rpartition(".")[2]
        is_used = scope.owner is None or name.startswith("__") or name in named
        if "remove" in scope.words and (is_used or scope is function.scope):
            return True
    return False


def _receiver(call: Call, function: FunctionModel) -> Values:
    """Return what the name holds that a method call begins with: ``model`` of ``model[0].hook()``.

    Calls within it are entered as well: ``dict(model.named_modules())[name].hook()``.
    """
    node = call.node.func if type(call.node) is cst.Call else None
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)) and not dotted_name(node):
        node = node.func if isinstance(node, cst.Call) else node.value
    path = dotted_name(node) or ""
    while path:
        if path in function.bindings:
            return function.bindings[path]
        path = path.rpartition(".")[0]
    return NOTHING


def _owners(event: Call, function: FunctionModel) -> frozenset[int]:
    """Return the objects that get a hook, or whose modules a loop goes through that get one."""
    held = _receiver(event, function)
    names = {
        node.value
        for loop in function.loops()
        if isinstance(loop.node, (cst.For, cst.CompFor)) and loop.identity in event.loops
        for node in walk(loop.node.iter)
        if type(node) is cst.Name
    }
    around = join_all([held, *(function.bindings.get(name, NOTHING) for name in names)])
    return mentioned_by(around) | held_by(around)


def _repeats_here(event: Call, function: FunctionModel) -> cst.CSTNode | None:
    """Return the registration where a loop repeats it on what the loop does not bind."""
    held = _receiver(event, function)
    if not event.loops or not held or any(event.loops[-1] in value.loops for value in held):
        return None
    return None if _chosen_by_loop(event, function) else event.node


def _chosen_by_loop(event: Call, function: FunctionModel) -> bool:
    """Return whether the module depends on what a loop binds: ``model.get_submodule(name)``.

    Or the loop goes through hooks, and registers each once.
    """
    called = event.node.func if type(event.node) is cst.Call else None
    if type(called) is not cst.Attribute or type(event.node) is not cst.Call:
        return False
    loop = next(each for each in function.loops() if each.identity == event.loops[-1])
    written = (target for node in walk(loop.node) for target, _ in assigned_pairs(node))
    bound = loop.targets.union(*map(bound_names, written))
    if any(dotted_name(argument.value) in loop.targets for argument in event.node.args):
        return True
    return any(type(node) is cst.Name and node.value in bound for node in walk(called.value))


def _called_again(
    function: FunctionModel, hooked: frozenset[int], seen: set[int]
) -> cst.CSTNode | None:
    """Return the call by which a loop runs a function again with the same ``hooked`` objects."""
    if id(function.scope) in seen:
        return None
    seen.add(id(function.scope))
    for caller in list(function.module.functions()):
        for call in caller.events():
            if not isinstance(call, Call) or call.function is not function.scope:
                continue
            given = _given(call, function, caller, hooked)
            if call.referenced or call.function is caller.scope or _is_new(given, call):
                continue
            objects = mentioned_by(given) | held_by(given)
            if call.loops or _called_again(caller, objects, seen) is not None:
                return call.node
    return None


def _given(
    call: Call, function: FunctionModel, caller: FunctionModel, hooked: frozenset[int]
) -> Values:
    """Return what a caller hands over as the objects that get hooks, its own object included."""
    known = values_of_parameters(call, function)
    given = frozenset(value for site, values in known.items() if site in hooked for value in values)
    return given if given or call.is_constructor else _receiver(call, caller)


def _is_new(values: Values, call: Call) -> bool:
    """Return whether this is made, or chosen, by each iteration or by the calling function."""
    return any(
        call.loops[-1] in value.loops
        if call.loops
        else value.origin in {Origin.OTHER, Origin.CALL} and type(value.node) is cst.Call
        for value in values
    )
