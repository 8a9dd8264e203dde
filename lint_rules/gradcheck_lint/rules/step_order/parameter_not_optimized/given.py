"""Know what the optimizers of a file are given: by name, through lists, groups and helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.analyses.slices import values_of
from gradcheck_lint.model.syntax import dotted_name, last_word, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Given", "given_to_optimizers", "optimizers_of"]

_LISTING: Final = frozenset({"parameters", "named_parameters"})


def optimizers_of(module: ModuleModel) -> list[tuple[cst.Call, FunctionModel]]:
    """Return what makes an optimizer in a file, each with its function."""
    key = "optimizers with their functions"
    if key not in module.memo:
        module.memo[key] = [
            (node, function)
            for function in module.functions()
            for node in function.scope.nodes_with_lambdas
            if type(node) is cst.Call and module.makes_optimizer(node)
        ]
    found: list[tuple[cst.Call, FunctionModel]] = module.memo[key]
    return found


class Given(NamedTuple):
    """What may flow into the optimizers of a file, and more than that.

    ``words`` are all names that stand in it; ``listings`` the calls that list parameters, each with
    its function. ``is_known`` is False where one is given what comes from nowhere in the file.
    """

    words: frozenset[str]
    is_known: bool
    listings: tuple[tuple[cst.Call, FunctionModel], ...]


def given_to_optimizers(module: ModuleModel) -> Given:
    """Return what may flow into the optimizers of a file, through its names and calls."""
    if "given to optimizers" in module.memo:
        known: Given = module.memo["given to optimizers"]
        return known
    found: set[str] = set()
    listings: dict[int, tuple[cst.Call, FunctionModel]] = {}
    waiting: list[tuple[FunctionModel, str]] = []
    bodies: list[FunctionScope] = []
    seen: set[tuple[int, str]] = set()

    def take(node: cst.CSTNode, function: FunctionModel) -> None:
        for each in walk(node):
            path = dotted_name(each)
            if path is not None:
                waiting.append((function, path))
            if type(each) is cst.Name:
                found.add(each.value)
                for called in module.scopes.by_name.get(each.value, ()):
                    # What a class makes is given by its own name.
                    is_it = called.name.rpartition(".")[2] == each.value
                    if is_it and each.value != "__init__" and (id(called), "") not in seen:
                        seen.add((id(called), ""))
                        bodies.append(called)
            elif type(each) is cst.Call and _is_listing(each.func):
                listings[id(each)] = each, function

    for function in list(module.functions()):
        for node in function.scope.nodes_with_lambdas:
            if (type(node) is cst.Call and _takes_parameters(node, module)) or (
                type(node) is cst.Assign
                and "param_groups" in (last_word(dotted_name(each.target)) for each in node.targets)
            ):
                take(node, function)
    while waiting or bodies:
        if bodies:
            called = bodies.pop()
            take(called.node, module.function(called))
            continue
        function, name = waiting.pop()
        if (id(function.scope), name) in seen:
            continue
        seen.add((id(function.scope), name))
        for scope, path in _places(name, function.scope):
            for value in _about(path, scope):
                take(value, module.function(scope))
        if name in function.scope.parameters:
            for caller, value in expressions_given(function, name):
                take(value, caller)
        elif function.scope.parent is not None:
            waiting.append((module.function(function.scope.parent), name))
    is_known = all(_is_known(node, function) for node, function in optimizers_of(module))
    given = Given(frozenset(found), is_known, tuple(listings.values()))
    module.memo["given to optimizers"] = given
    return given


def _is_listing(called: cst.BaseExpression) -> bool:
    return type(called) is cst.Attribute and called.attr.value in _LISTING


def _is_known(optimizer: cst.Call, function: FunctionModel) -> bool:
    """Return whether what an optimizer is given is a name that something in the file binds."""
    value = optimizer.args[0].value if optimizer.args else None
    if type(value) is not cst.Name:
        return True
    scope: FunctionScope | None = function.scope
    while scope is not None:
        if value.value in scope.parameters or next(values_of(value.value, scope), None) is not None:
            return True
        scope = scope.parent
    return function.module.scopes.resolve_import(value.value) is not None


def _takes_parameters(call: cst.Call, module: ModuleModel) -> bool:
    """Return whether a call makes an optimizer, or may, or adds to one."""
    if module.makes_optimizer(call):
        return True
    name = dotted_name(call.func) or (
        call.func.attr.value if type(call.func) is cst.Attribute else ""
    )
    if "clip_grad" in name or last_word(name) in _MEASURING:
        return False
    if last_word(name) == "add_param_group" or "optim" in name.lower():
        return True
    return any(
        type(each) is cst.Attribute and each.attr.value in _LISTING
        for argument in call.args
        for each in walk(argument.value)
    )


_MEASURING: Final = frozenset(
    {"sum", "len", "any", "all", "next", "print", "max", "zip", "norm", "step", "zero_grad"}
    | {"state_dict", "load_state_dict"}
)
"""What is called with parameters, or on an optimizer, and gives it none."""


def _places(path: str, scope: FunctionScope) -> Iterator[tuple[FunctionScope, str]]:
    """Yield the functions that may bind a name or an attribute of self, with its name there."""
    root, _, attribute = path.partition(".")
    if attribute and scope.owner is not None and root == scope.first_parameter:
        for method in scope.owner.methods.values():
            yield method, f"{method.first_parameter}.{attribute}"
    else:
        yield scope, path


def _about(path: str, scope: FunctionScope) -> Iterator[cst.CSTNode]:
    """Yield what a name or an attribute is given in a function, or filled with."""
    if last_word(path) not in scope.words:
        return
    yield from values_of(path, scope)
