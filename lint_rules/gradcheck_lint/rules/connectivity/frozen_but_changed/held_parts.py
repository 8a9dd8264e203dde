"""Find frozen parts that a class puts in evaluation mode as it is made, and train() puts back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    dotted_name,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = ["held_parts", "switches", "undone_for"]


def switches(node: cst.CSTNode) -> bool | None:
    """Return True for ``x.train()``, False for ``x.eval()``, None for anything else."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    if node.func.attr.value == "eval" and not node.args:
        return False
    if node.func.attr.value == "train":
        is_on = not node.args or boolean(node.args[0].value) is True
        return True if is_on else None
    return None


def held_parts(function: FunctionModel) -> Iterator[tuple[cst.Call, str]]:
    """Yield each eval() of a frozen part of the module that is made here, with its name."""
    owner, own = function.scope.owner, f"{function.scope.first_parameter}."
    if owner is None or not function.module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    frozen = set(_frozen(function))
    for node in function.scope.nodes:
        for name, value in _named_values(node):
            chain = list(_chain(value))
            call = next((each for each in chain if switches(each) is False), None)
            is_frozen = name in frozen or any(map(_freezes, chain))
            if call is not None and is_frozen and name.startswith(own):
                yield call, name


def _named_values(node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what is called on a thing or given a name, with the thing's name."""
    for target, value in assigned_pairs(node):
        yield dotted_name(target) or "", value
    if type(node) is cst.Expr and (chain := [*_chain(node.value)]):
        assert type(chain[-1].func) is cst.Attribute
        yield dotted_name(chain[-1].func.value) or "", node.value


def _chain(value: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls of ``teacher.eval().requires_grad_(False)``, the last one first."""
    while type(value) is cst.Call and type(value.func) is cst.Attribute:
        yield value
        value = value.func.value


def _freezes(call: cst.Call) -> bool:
    assert type(call.func) is cst.Attribute
    given = positional(call) or [argument.value for argument in call.args]
    is_off = bool(given) and boolean(given[0]) is False
    return call.func.attr.value == "requires_grad_" and is_off


def _frozen(function: FunctionModel) -> Iterator[str]:
    """Yield what a function freezes, by a call or by a loop over its parameters."""
    for node in function.scope.nodes_of(cst.Call, cst.For):
        if type(node) is cst.Call and type(node.func) is cst.Attribute and _freezes(node):
            root = [*_chain(node)][-1].func
            yield dotted_name(root.value) or ""  # type: ignore[attr-defined]
        elif type(node) is cst.For and type(node.iter) is cst.Call:
            over = node.iter.func
            is_over = type(over) is cst.Attribute and over.attr.value == "parameters"
            if is_over and "requires_grad" in function.module.code(node.body):
                yield dotted_name(over.value) or ""  # type: ignore[attr-defined]


def undone_for(function: FunctionModel, part: str) -> cst.Call | None:
    """Return the ``train()`` of an object of the class, in a function that trains it."""
    owner = function.scope.owner
    assert owner is not None
    module, name = function.module, last_word(part)
    names = _names_of(owner, module)
    found: cst.Call | None = None
    for other in module.functions():
        for node in other.scope.nodes:
            if switches(node) is None:
                continue
            assert type(node) is cst.Call
            assert type(node.func) is cst.Attribute
            switched = last_word(dotted_name(node.func.value))
            if switches(node) is False and other.scope is not function.scope and switched == name:
                return None
            if (
                switches(node) is True
                and switched in names
                and found is None
                and module.near.has(other.scope, BACKWARD)
            ):
                found = node
    return found


def _names_of(owner: ClassScope, module: ModuleModel) -> set[str]:
    """Return the last words of what the file calls the objects of a class.

    Also what a function or class that is handed one calls it.
    """
    made: set[str] = set()
    for function in module.functions():
        for target, value in function.scope.assignments:
            if any(_makes(each, owner) for each in [value, *_chain(value)]):
                made.add(last_word(dotted_name(target)))
    handed: set[str] = set()
    for function in module.functions():
        for node in function.scope.nodes_of(cst.Call):
            handed.update(_parameters_given(node, made, owner, function))
    return (made | handed) - {""}


def _makes(node: cst.BaseExpression, owner: ClassScope) -> bool:
    while type(node) is cst.Call and type(node.func) is cst.Attribute:
        node = node.func.value
    return type(node) is cst.Call and dotted_name(node.func) == owner.node.name.value


def _parameters_given(
    call: cst.Call, made: set[str], owner: ClassScope, function: FunctionModel
) -> Iterator[str]:
    scope = called_function(call, function)
    classes = function.module.scopes.classes
    if scope is None and (known := classes.get(dotted_name(call.func) or "")) is not None:
        scope = function.module.scopes.method(known, "__init__")
    if scope is None or isinstance(scope.node, cst.Module):
        return
    params = [each.name.value for each in scope.node.params.params]
    shift = 1 if scope.owner is not None and params[:1] == [scope.first_parameter] else 0
    for place, value in enumerate(positional(call)):
        is_it = last_word(dotted_name(value)) in made or _makes(value, owner)
        if is_it and place + shift < len(params):
            yield params[place + shift]
            yield from _attributes_given(scope.node, params[place + shift])
    for argument in call.args:
        if argument.keyword is not None and last_word(dotted_name(argument.value)) in made:
            yield argument.keyword.value
            yield from _attributes_given(scope.node, argument.keyword.value)


def _attributes_given(node: cst.CSTNode, parameter: str) -> Iterator[str]:
    for each in walk(node):
        for target, value in assigned_pairs(each):
            if dotted_name(value) == parameter:
                yield last_word(dotted_name(target))
