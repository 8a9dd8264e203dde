"""Find the one literal that a setting has in the file: ``cfg.lr`` of a class with ``lr = 1e-4``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    dotted_name,
    keyword,
    last_word,
    plain_string,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["constant_of", "number"]


def number(node: cst.CSTNode | None) -> float | None:
    """Return the value of a number that stands in the source."""
    if isinstance(node, (cst.Float, cst.Integer)):
        return float(node.evaluated_value)
    return None


def constant_of(
    node: cst.BaseExpression | None, function: FunctionModel
) -> cst.BaseExpression | None:
    """Return what a name or an attribute is given in the file, where that is one expression."""
    if type(node) is cst.Name:
        known = sources_of(function.scope).get(node.value, [])
        if known:
            return known[0] if len(known) == 1 else None
        if node.value in function.scope.parameters:
            return _settings(function.module).get(node.value)
        top = function.module.scopes.top
        return _at_top(top.node).get(node.value) if isinstance(top.node, cst.Module) else node
    if (
        type(node) is cst.Attribute
        and function.module.scopes.resolve_import(dotted_name(node) or "") is None
    ):
        return _settings(function.module).get(node.attr.value)
    return node


def _at_top(tree: cst.Module) -> dict[str, cst.BaseExpression]:
    found: dict[str, cst.BaseExpression] = {}
    for line in tree.body:
        if type(line) is cst.SimpleStatementLine:
            for statement in line.body:
                if type(statement) is cst.Assign and type(statement.targets[0].target) is cst.Name:
                    found[statement.targets[0].target.value] = statement.value
    return found


def _settings(module: ModuleModel) -> dict[str, cst.BaseExpression]:
    """Return the defaults of the fields of classes, of options and of parameters, by name.

    A name that has two different ones has none.
    """
    known: dict[str, cst.BaseExpression] | None = module.memo.get("defaults of settings")
    if known is None:
        known = module.memo["defaults of settings"] = _read(module)
    return known


def _read(module: ModuleModel) -> dict[str, cst.BaseExpression]:
    found: dict[str, cst.BaseExpression] = {}
    texts: dict[str, set[str]] = {}
    for node in walk(module.tree):
        for name, value in _defaults(node):
            found[name] = value
            texts.setdefault(name, set()).add(module.text(value))
    return {name: node for name, node in found.items() if len(texts[name]) == 1}


def _defaults(node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what a field, a parameter, an argument or an option of a command line is by default."""
    if type(node) is cst.AnnAssign:
        if node.value is not None and type(node.target) is cst.Name:
            yield node.target.value, node.value
    elif type(node) is cst.Param:
        if node.default is not None:
            yield node.name.value, node.default
    elif type(node) is cst.Arg:
        if node.keyword is not None and number(node.value) is not None:
            yield node.keyword.value, node.value
    elif type(node) is cst.Call and last_word(dotted_name(node.func)) == "add_argument":
        default = keyword(node, "default")
        for option in positional(node):
            if type(option) is cst.SimpleString and default is not None:
                name = plain_string(option) or ""
                yield name.lstrip("-").replace("-", "_"), default
