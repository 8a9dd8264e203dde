"""Find parameters that have an optimizer of their own, and are in that of the whole model too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Call, Step
from gradcheck_lint.model.function_class import elements_of, returns
from gradcheck_lint.model.knowledge import PARAMETER_CLASSES
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, keyword, positional
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = ["SetApart", "set_apart"]


class SetApart(NamedTuple):
    """An optimizer of a whole model, and one of some parameters of it that have attributes.

    Attributes:
        whole: where the optimizer of the whole model is made.
        part: where the other one is made.
        attributes: what that one has.
    """

    whole: cst.CSTNode
    part: cst.CSTNode
    attributes: tuple[str, ...]


class _Made(NamedTuple):
    node: cst.Call
    path: str
    function: FunctionModel
    owner: ClassScope
    attributes: tuple[str, ...]


def set_apart(function: FunctionModel) -> Iterator[SetApart]:
    """Yield optimizers that a function makes of a model whose parameters another steps as well.

    Both step in one loop, on losses of their own or not, and the file makes one such model.
    """
    module = function.module
    for whole in _made_in(function):
        if whole.attributes or _count_made(whole.owner, module) != 1:
            continue
        for other in list(module.functions()):
            for part in _made_in(other):
                is_same = part.attributes and part.owner is whole.owner
                if is_same and _step_in_one_loop(whole, part, module):
                    yield SetApart(whole.node, part.node, part.attributes)


def _made_in(function: FunctionModel) -> Iterator[_Made]:
    """Yield the optimizers of ``model.parameters()`` and of attributes that are parameters."""
    for target, value in function.scope.assignments:
        path = dotted_name(target)
        if path is None or not function.module.makes_optimizer(value):
            continue
        assert type(value) is cst.Call
        given = [*positional(value), keyword(value, "params")][0]
        for owner, attributes in _given(given, function):
            yield _Made(value, path, function, owner, attributes)


def _given(
    node: cst.BaseExpression | None, function: FunctionModel
) -> Iterator[tuple[ClassScope, tuple[str, ...]]]:
    """Yield the class of a model and which of its parameters are given, none for all."""
    if type(node) is cst.Call and type(node.func) is cst.Attribute and not node.args:
        owner = _class_of(node.func.value, function)
        method = None if owner is None else owner.methods.get(node.func.attr.value)
        if owner is not None and method is None and node.func.attr.value == "parameters":
            yield owner, ()
        elif owner is not None and method is not None:
            attributes = [
                (dotted_name(each) or "").removeprefix(f"{method.first_parameter}.")
                for known in returns(method)
                for each in _displayed(known.value)
            ]
            if attributes and set(attributes) <= _parameters_of(owner, function.module):
                yield owner, tuple(attributes)
    elif isinstance(node, (cst.List, cst.Tuple)):
        shown = [each.value for each in node.elements if type(each.value) is cst.Attribute]
        owners = {id(_class_of(each.value, function)) for each in shown}
        owner = _class_of(shown[0].value, function) if len(owners) == 1 else None
        names = tuple(each.attr.value for each in shown)
        if owner is not None and set(names) <= _parameters_of(owner, function.module):
            yield owner, names


def _displayed(node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    if isinstance(node, (cst.List, cst.Tuple)):
        return [each.value for each in node.elements]
    return elements_of(node)


def _class_of(node: cst.BaseExpression, function: FunctionModel) -> ClassScope | None:
    values = function.reading.look_up(dotted_name(node) or "")
    names = {value.name if value.kind is Kind.INSTANCE else None for value in values}
    only = names.pop() if len(names) == 1 else None
    return None if only is None else function.module.scopes.classes.get(only)


def _parameters_of(owner: ClassScope, module: ModuleModel) -> set[str]:
    """Return the attributes that a constructor gives a new parameter."""
    maker = owner.methods.get("__init__")
    found: set[str] = set()
    for node in () if maker is None else maker.nodes:
        for target, value in assigned_pairs(node):
            made = dotted_name(value.func) if type(value) is cst.Call else None
            if module.scopes.resolve_import(made or "") in PARAMETER_CLASSES:
                found.add((dotted_name(target) or "").partition(".")[2])
    return found


def _count_made(owner: ClassScope, module: ModuleModel) -> int:
    name = owner.name.rpartition(".")[2]
    return sum(
        type(node) is cst.Call and dotted_name(node.func) == name
        for scope in module.scopes.functions
        for node in scope.nodes
    )


def _step_in_one_loop(whole: _Made, part: _Made, module: ModuleModel) -> bool:
    for function in list(module.functions()):
        events = [each for each in function.events() if isinstance(each, (Step, Call))]
        loops = [
            {event.loops[-1] for event in events if event.loops and _steps(event, made, function)}
            for made in (whole, part)
        ]
        if loops[0] & loops[1]:
            return True
    return False


def _steps(event: Step | Call, made: _Made, function: FunctionModel, depth: int = 0) -> bool:
    """Return whether an event, or a function that it calls, steps with an optimizer."""
    if isinstance(event, Step):
        is_own = made.path.startswith("self.")
        same = function.scope.owner is made.function.scope.owner
        return event.receiver == made.path and (same if is_own else True)
    if event.function is None or depth:
        return False
    called = function.module.function(event.function)
    return any(
        isinstance(inner, Step) and _steps(inner, made, called, depth + 1)
        for inner in called.events()
    )
