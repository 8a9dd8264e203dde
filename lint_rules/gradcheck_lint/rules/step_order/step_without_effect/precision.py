"""Tell whether the weights that an optimizer is given were made 16 bits wide."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.settings import constant_of
from gradcheck_lint.model.function_class import returns
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    dotted_name,
    keyword,
    plain_string,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Bits", "bits_of"]


class Bits(Enum):
    """A type of floating point numbers that has 16 bits."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_TYPES: Final = {"bfloat16": Bits.BFLOAT16, "float16": Bits.FLOAT16, "half": Bits.FLOAT16}
_MOST_STEPS: Final = 6


def bits_of(
    parameters: cst.BaseExpression | None, function: FunctionModel, depth: int = 0
) -> Bits | None:
    """Return the type of the weights behind ``model.parameters()``, if that has 16 bits."""
    for node in walk(parameters) if parameters is not None else ():
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            if node.func.attr.value in {"parameters", "named_parameters"}:
                return _of_model(node.func.value, function, depth)
        elif type(node) is cst.Name and depth < _MOST_STEPS:
            for source in sources_of(function.scope).get(node.value) or ():
                found = bits_of(source, function, depth + 1)
                if found is not None:
                    return found
    return None


def _of_model(node: cst.BaseExpression, function: FunctionModel, depth: int) -> Bits | None:
    """Return the 16-bit type that a model was given last, None where it may have another."""
    if depth > _MOST_STEPS:
        return None
    if type(node) is cst.Call:
        return _of_call(node, function, depth)
    path = dotted_name(node)
    if path is None:
        return None
    found = [each for each in _given(path, function, depth) if each != "unknown"]
    changed = list(_converted(path, function))
    if changed:
        return changed[-1]
    kinds = set(found)
    only = kinds.pop() if len(kinds) == 1 else None
    return only if isinstance(only, Bits) else None


def _of_call(node: cst.Call, function: FunctionModel, depth: int) -> Bits | None:
    called = called_function(node, function)
    if called is not None:
        inside = function.module.function(called)
        kinds = {_of_model(each.value, inside, depth + 1) for each in returns(called) if each.value}
        return kinds.pop() if len(kinds) == 1 else None
    if type(node.func) is cst.Attribute:
        if (made := _conversion(node, function)) is not None:
            return made
        if node.func.attr.value == "from_pretrained":
            asked = keyword(node, "torch_dtype") or keyword(node, "dtype")
            return _type_of(asked, function)
        if node.func.attr.value in SAME_MODULE_METHODS | {"to"} and not _is_wider(node):
            return _of_model(node.func.value, function, depth + 1)
    handed = positional(node)
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
    if handed and name in {"copy.deepcopy", "copy.copy", "torch.compile"}:
        return _of_model(handed[0], function, depth + 1)
    return None


def _conversion(node: cst.Call, function: FunctionModel) -> Bits | None:
    """Return the type of ``x.half()``, ``x.bfloat16()``, ``x.to(torch.bfloat16)``."""
    assert type(node.func) is cst.Attribute
    method = node.func.attr.value
    if method in {"half", "bfloat16"} and not node.args:
        return _TYPES[method]
    if method != "to":
        return None
    asked = [*positional(node), keyword(node, "dtype")]
    kinds = [_type_of(each, function) for each in asked if each is not None]
    return next((kind for kind in kinds if kind is not None), None)


def _is_wider(node: cst.Call) -> bool:
    assert type(node.func) is cst.Attribute
    names = {each.value for each in walk(node) if type(each) is cst.Name}
    return node.func.attr.value in {"float", "double"} or not names.isdisjoint(
        {"float32", "float64", "dtype"}
    )


def _type_of(node: cst.BaseExpression | None, function: FunctionModel) -> Bits | None:
    """Return the type of ``torch.bfloat16``, or of a setting whose default that is."""
    given = positional(node) if type(node) is cst.Call else []
    if type(node) is cst.Call and dotted_name(node.func) == "getattr" and len(given) > 1:
        text = constant_of(given[1], function)
        is_text = type(text) is cst.SimpleString
        return _TYPES.get(plain_string(text) or "") if is_text else None  # type: ignore[arg-type]
    for each in (node, constant_of(node, function)):
        name = function.module.scopes.resolve_import(dotted_name(each) or "") or ""
        if name.startswith("torch.") and name.removeprefix("torch.") in _TYPES:
            return _TYPES[name.removeprefix("torch.")]
    return None


def _given(path: str, function: FunctionModel, depth: int) -> Iterator[Bits | str | None]:
    """Yield what a name or an attribute of self is given, by whoever gives it."""
    scope = function.scope
    root, _, attribute = path.partition(".")
    if attribute and scope.owner is not None and root == scope.first_parameter:
        for method in scope.owner.methods.values():
            inside = function.module.function(method)
            own = f"{method.first_parameter}.{attribute}"
            for value in _assigned(own, method):
                yield _itself(value, own) or _of_model(value, inside, depth + 1)
        return
    for value in _assigned(path, scope):
        yield _itself(value, path) or _of_model(value, function, depth + 1)
    if path in scope.parameters:
        for caller, value in expressions_given(function, path):
            yield _of_model(value, caller, depth + 1)


def _itself(value: cst.BaseExpression, path: str) -> str | None:
    """Return "unknown" for ``model = model.to(device)``, which says nothing new."""
    node = value
    while type(node) is cst.Call and type(node.func) is cst.Attribute:
        node = node.func.value
    return "unknown" if dotted_name(node) == path else None


def _assigned(path: str, scope: FunctionScope) -> Iterator[cst.BaseExpression]:
    nodes = scope.nodes
    for node in nodes:
        for target, value in assigned_pairs(node):
            if dotted_name(target) == path:
                yield value


def _converted(path: str, function: FunctionModel) -> Iterator[Bits | None]:
    """Yield what ``model.half()`` and ``model = model.half()`` in the same function make of it."""
    nodes = function.scope.nodes
    for node in nodes:
        if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
            continue
        made = _conversion(node, function)
        if dotted_name(node.func.value) == path and (made is not None or _is_wider(node)):
            yield made
