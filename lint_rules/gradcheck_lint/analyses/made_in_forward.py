"""Find parameters and layers that a module makes while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.model.flow import Forward
from gradcheck_lint.model.knowledge import PARAMETER_CLASSES
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    dotted_name,
    is_none,
    keyword,
    plain_string,
    positional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["Renewed", "late_parameters", "renewed_parameters"]


class Renewed(NamedTuple):
    """Where a parameter is made, its name, what there was at first, and an optimizer."""

    node: cst.CSTNode
    name: str
    first: cst.CSTNode | None
    optimizer: cst.CSTNode


def renewed_parameters(function: FunctionModel) -> Iterator[Renewed]:
    """Yield each parameter of the constructor that forward, or what it calls, makes anew."""
    scope, module = function.scope, function.module
    owner = scope.owner
    if owner is None or "Parameter" not in scope.words or scope.name.endswith("__init__"):
        return
    maker = module.scopes.method(owner, "__init__")
    if maker is None or not module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    if not _is_run_by_forward(scope, owner):
        return
    first = dict(_parameters_made(maker, module))
    renewed = [(name, node) for name, node in _parameters_made(scope, module) if name in first]
    optimizer = _optimizer_before_any_run(module) if renewed else None
    for name, node in renewed:
        if optimizer is not None:
            yield Renewed(node, name, first[name], optimizer)


def late_parameters(function: FunctionModel) -> Iterator[Renewed]:
    """Yield the parameters and layers that forward makes, where there was nothing or None."""
    scope, module = function.scope, function.module
    owner = scope.owner
    if owner is None or scope.name.endswith("__init__"):
        return
    maker = module.scopes.method(owner, "__init__")
    if maker is None or not module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    if not _is_run_by_forward(scope, owner):
        return
    first = {attribute: (value, node) for attribute, value, node in _set(maker)}
    made = [
        (attribute, node)
        for attribute, value, node in _set(scope)
        if (attribute not in first or is_none(first[attribute][0]))
        and "." not in attribute
        and _is_trained(value, function)
    ]
    optimizer = _optimizer_before_any_run(module) if made else None
    for attribute, node in made:
        if optimizer is not None:
            known = first.get(attribute)
            yield Renewed(node, attribute, None if known is None else known[1], optimizer)


def _is_trained(value: cst.BaseExpression, function: FunctionModel) -> bool:
    is_frozen = type(value) is cst.Call and boolean(keyword(value, "requires_grad")) is False
    return not is_frozen and kind_of(value, function) in {"module", "parameter"}


def _set(scope: FunctionScope) -> Iterator[tuple[str, cst.BaseExpression, cst.CSTNode]]:
    """Yield the attributes of self that a method sets or registers, with what to."""
    for call in scope.nodes_of(cst.Call):
        base, _, method = (dotted_name(call.func) or "").rpartition(".")
        given = positional(call)
        if method == "setattr" and not base and given:
            base, given = dotted_name(given[0]) or "", given[1:]
        elif method not in _REGISTERING:
            continue
        if base == scope.first_parameter and len(given) == 2:  # noqa: PLR2004 - name and value
            name = given[0]
            yield (
                (plain_string(name) or "") if type(name) is cst.SimpleString else "",
                given[1],
                call,
            )
    for node in scope.nodes_of(cst.Assign, cst.AnnAssign):
        for target, value in assigned_pairs(node):
            root, _, attribute = (dotted_name(target) or "").partition(".")
            if root == scope.first_parameter and attribute:
                yield attribute, value, node


_REGISTERING: Final = frozenset({"register_parameter", "add_module", "register_module"})


def _parameters_made(
    scope: FunctionScope, module: ModuleModel
) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield the attributes of self that a method sets to a new parameter."""
    for attribute, value, node in _set(scope):
        called = dotted_name(value.func) if type(value) is cst.Call else None
        if module.scopes.resolve_import(called or "") in PARAMETER_CLASSES:
            yield attribute, node


def _is_run_by_forward(scope: FunctionScope, owner: ClassScope) -> bool:
    """Return whether a method is forward, or one that it calls, itself or through another."""
    waiting, seen = ["forward"], set[str]()
    while waiting:
        name = waiting.pop()
        method = owner.methods.get(name)
        if method is scope:
            return True
        if method is not None and name not in seen:
            seen.add(name)
            waiting += [
                dotted_name(node.func).partition(".")[2]  # type: ignore[union-attr]
                for node in method.nodes_of(cst.Call)
                if (dotted_name(node.func) or "").startswith(f"{method.first_parameter}.")
            ]
    return False


def _optimizer_before_any_run(module: ModuleModel) -> cst.CSTNode | None:
    """Return an optimizer of the file, unless a model runs before it in the same function."""
    for function in module.functions():
        nodes = function.scope.nodes
        made = [index for index, node in enumerate(nodes) if module.makes_optimizer(node)]
        if not made:
            continue
        runs = {id(event.node) for event in function.events() if isinstance(event, Forward)}
        if not any(id(node) in runs for node in nodes[: made[0]]):
            return nodes[made[0]]
    return None
