"""GCS406: of several networks that are frozen for a while, one is never thawed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.syntax import (
    assigned_once,
    boolean,
    dotted_name,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["left_frozen"]


class _Toggle(NamedTuple):
    """Networks that are frozen or thawed together; ``networks`` is None where they aren't known."""

    node: cst.CSTNode
    trains: bool | None
    networks: frozenset[str] | None


def left_frozen(function: FunctionModel) -> Iterator[Violation]:
    """Yield every thawing of fewer networks than were frozen, if an optimizer has the others."""
    toggles = list(_toggles(function))
    freezes = [toggle for toggle in toggles if toggle.trains is False and toggle.networks]
    thaws = [toggle for toggle in toggles if toggle.trains and toggle.networks]
    if not freezes or not thaws:
        return
    everywhere = [each for scope in _around(function) for each in _toggles(scope)]
    if any(each.trains is not False and each.networks is None for each in everywhere):
        return
    thawed = frozenset[str]().union(*(each.networks or () for each in everywhere if each.trains))
    order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
    for freeze in freezes:
        assert freeze.networks is not None
        left = sorted(freeze.networks - thawed)
        after = [
            thaw
            for thaw in thaws
            if thaw.networks & freeze.networks  # type: ignore[operator]
            and order[id(thaw.node)] > order[id(freeze.node)]
        ]
        if left and after and all(_is_optimized(function, network) for network in left):
            yield Violation(
                after[0].node,
                f"`{'`, `'.join(left)}` was frozen together with what is thawed here, and is never "
                "thawed: its optimizer changes nothing from the first time on",
                Severity.WARNING,
                "thaw all that was frozen",
                ((freeze.node, "frozen here"),),
            )


def _around(function: FunctionModel) -> list[FunctionModel]:
    """Return a function, or all methods of its class, as far as they may thaw something."""
    owner = function.scope.owner
    scopes = [function.scope] if owner is None else list(owner.methods.values())
    return [function.module.function(scope) for scope in scopes]


def _toggles(function: FunctionModel) -> Iterator[_Toggle]:
    own = {parameter for parameter in function.scope.parameters if parameter != "self"}
    for node in function.scope.nodes:
        if type(node) is cst.For:
            yield from _by_loop(node, function)
        if type(node) is not cst.Call:
            continue
        if type(node.func) is cst.Attribute and node.func.attr.value == "requires_grad_":
            path = dotted_name(node.func.value)
            given = positional(node)
            trains = boolean(given[0]) if given else True
            if path is not None and path not in own:
                yield _Toggle(node, trains, frozenset({path}))
            continue
        called = called_function(node, function)
        flags = [boolean(argument.value) for argument in node.args]
        known = [flag for flag in flags if flag is not None]
        if called is not None and _sets_from_parameter(called):
            given = [
                argument.value
                for argument, flag in zip(node.args, flags, strict=True)
                if flag is None
            ]
            networks = _networks(given[0], function) if len(given) == 1 else None
            yield _Toggle(node, known[0] if len(known) == 1 else None, networks)


def _by_loop(node: cst.For, function: FunctionModel) -> Iterator[_Toggle]:
    """Yield what ``for p in network.parameters(): p.requires_grad = False`` does."""
    over = node.iter
    if type(over) is not cst.Call or type(over.func) is not cst.Attribute:
        return
    if over.func.attr.value != "parameters":
        return
    path = dotted_name(over.func.value)
    if path is None or path.partition(".")[0] in function.scope.parameters - {"self"}:
        return
    for inner in walk(node.body):
        target, value = assigned_once(inner)
        if type(target) is cst.Attribute and target.attr.value == "requires_grad":
            yield _Toggle(node, boolean(value), frozenset({path}))


def _sets_from_parameter(scope: FunctionScope) -> bool:
    """Tell whether a function sets ``requires_grad`` to one of its parameters."""
    if scope.words.isdisjoint(_FLAGS):
        return False
    for node in scope.nodes:
        target, value = assigned_once(node)
        if type(target) is cst.Attribute and target.attr.value == "requires_grad":
            return dotted_name(value) in scope.parameters
        given = _flag_given(node)
        if given is not None:
            return dotted_name(given) in scope.parameters
    return False


def _flag_given(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what ``requires_grad_`` is called with."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    if node.func.attr.value != "requires_grad_" or not node.args:
        return None
    return node.args[0].value


_FLAGS: Final = frozenset({"requires_grad", "requires_grad_"})


def _networks(node: cst.BaseExpression, function: FunctionModel) -> frozenset[str] | None:
    """Return the names of the networks in a list, also in one that is kept under a name."""
    if isinstance(node, (cst.List, cst.Tuple)):
        names = [dotted_name(element.value) for element in node.elements]
        return frozenset(name for name in names if name) if all(names) else None
    name = dotted_name(node)
    if name is None:
        return None
    made = _assigned(function, name)
    lists = [value for value in made if isinstance(value, (cst.List, cst.Tuple))]
    if not lists:
        return frozenset({name})
    return _networks(lists[0], function) if len(made) == 1 else None


def _assigned(function: FunctionModel, name: str) -> Sequence[cst.BaseExpression]:
    return [
        value
        for known in _around(function)
        for node in known.scope.nodes
        for target, value in [assigned_once(node)]
        if value is not None and dotted_name(target) == name
    ]


def _is_optimized(function: FunctionModel, network: str) -> bool:
    """Tell whether an optimizer is made of a network, or of a list that has it."""
    for known in _around(function):
        for node in known.scope.nodes_of(cst.Call):
            if function.module.makes_optimizer(node):
                named = {dotted_name(inner) for inner in walk(node)}
                lists = (_networks(value, function) for value in _lists_in(node, function))
                if network in named or any(each and network in each for each in lists):
                    return True
    return False


def _lists_in(node: cst.CSTNode, function: FunctionModel) -> Iterator[cst.BaseExpression]:
    """Yield the lists whose names stand in an expression."""
    for inner in walk(node):
        name = dotted_name(inner) if isinstance(inner, (cst.Name, cst.Attribute)) else None
        if name is not None:
            yield from (
                value
                for value in _assigned(function, name)
                if isinstance(value, (cst.List, cst.Tuple))
            )
