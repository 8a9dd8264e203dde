"""Tell by the text of a constructor whether it may put a plain container on an attribute."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from gradcheck_lint.rules._container_signs import RETURNED_LIST

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

_RETURNED_LIST = re.compile(RETURNED_LIST)
_LIST_END = re.compile(r"=[\s\\]*\[")
LIST_BOUND = re.compile(r"(\w+)[\s\\]*(?::[^\n=]+)?=[\s\\]*\[")


def puts_container_on_attribute(function: FunctionModel) -> bool:
    """Tell whether something plain, or the name of a list, is put on an attribute."""
    scope = function.scope
    sources = [
        paired
        for target, source in scope.attribute_bindings
        for part, paired in _paired(target, source)
        if type(part) is ast.Attribute
    ]
    if any(map(_may_be_container, sources)):
        return True
    if any(_may_return_list(source, function) for source in sources):
        return True
    names = {source.id for source in sources if isinstance(source, ast.Name)}
    text = scope.text or ""
    has_lists = bool(names) and _LIST_END.search(text) is not None
    return has_lists and not names.isdisjoint(LIST_BOUND.findall(text))


def _paired(target: ast.expr, source: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return a target and what it is given, those of ``a, b = c, d`` one by one."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(source, (ast.Tuple, ast.List)):
        return list(zip(target.elts, source.elts, strict=False))
    return [(target, source)]


def _may_return_list(node: ast.expr, function: FunctionModel) -> bool:
    """Tell by its text whether a function of the file that is called may return a list."""
    if not isinstance(node, ast.Call):
        return False
    scopes, called = function.module.scopes, None
    if isinstance(node.func, ast.Name):
        called = function.scope.nested.get(node.func.id) or scopes.top.nested.get(node.func.id)
    elif isinstance(node.func, ast.Attribute) and (
        isinstance(node.func.value, ast.Name)
        and node.func.value.id == function.scope.first_parameter
    ):
        called = scopes.method(function.scope.owner, node.func.attr)
    return called is not None and _RETURNED_LIST.search(called.text or "") is not None


def _may_be_container(node: ast.expr) -> bool:
    """Tell whether this is of a form that is taken for a plain container."""
    if isinstance(node, ast.BinOp):
        return type(node.op) is ast.Mult and type(node.left) is ast.List
    if isinstance(node, ast.Call):
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)
        return name in {"list", "tuple", "dict", "OrderedDict", "defaultdict"}
    return type(node) in _DISPLAYS


_DISPLAYS: Final = frozenset({ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp})
