"""Find what classes give their attributes, in their methods and in their own bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.growing import grows
from gradcheck_lint.model.syntax import (
    bound_names,
    decorator_name,
    dotted_name,
    pairs_of,
    positional,
    small_statements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.scopes import FunctionScope


def collect_attributes(
    method: FunctionScope, found: dict[str, list[cst.BaseExpression | None]]
) -> None:
    """Note what a method assigns to attributes of ``self``; None for what can't be read."""
    first = method.first_parameter
    if first is None or isinstance(method.node, cst.Module):
        return
    prefix = first + "."
    for node in _nodes_with_nested(method):
        if type(node) not in _BINDING:
            continue
        pairs: list[tuple[cst.BaseExpression, cst.BaseExpression | None]] = []
        if type(node) is cst.Assign:
            for each in node.targets:
                pairs += pairs_of(each.target, node.value)
        elif type(node) is cst.AnnAssign or type(node) is cst.AugAssign:
            pairs.append((node.target, node.value))
        elif type(node) is cst.Call and dotted_name(node.func) == f"{first}.register_parameter":
            name, parameter = _registered(node)
            found.setdefault(name, []).append(parameter)
        for target, held in pairs:
            if type(target) is cst.Name:
                continue
            simple = type(target) is cst.Attribute
            for name in bound_names(target):
                if not name.startswith(prefix) or name.count(".") != 1:
                    continue
                if type(node) is cst.AugAssign or (held is not None and grows(name, held)):
                    continue
                attribute = name.removeprefix(prefix)
                found.setdefault(attribute, []).append(held if simple else None)


def assigns_attribute(scope: FunctionScope, attribute: str) -> bool:
    """Tell whether a function assigns to an attribute of this name, of whatever object."""
    if attribute not in scope.words:
        return False
    return any(
        name.endswith(f".{attribute}")
        for node in scope.nodes
        if type(node) is cst.AssignTarget or type(node) is cst.AnnAssign
        for name in bound_names(node.target)
    )


def class_assignments(
    node: cst.ClassDef,
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Yield each target in the body of a class with what it is given."""
    for small in small_statements(node.body):
        if type(small) is cst.Assign:
            for target in small.targets:
                yield target.target, small.value
        elif type(small) is cst.AnnAssign and small.value is not None:
            yield small.target, small.value


def fields_of(node: cst.ClassDef) -> tuple[str, ...]:
    """Return the fields of a class that takes them in order, as a dataclass does; else nothing."""
    decorators = {decorator_name(known) for known in node.decorators}
    bases = {(dotted_name(base.value) or "").rpartition(".")[2] for base in node.bases}
    if not decorators & _FIELD_DECORATORS and "NamedTuple" not in bases:
        return ()
    return tuple(
        small.target.value
        for statement in node.body.body
        for small in (statement.body if type(statement) is cst.SimpleStatementLine else ())
        if type(small) is cst.AnnAssign and type(small.target) is cst.Name
    )


_FIELD_DECORATORS = frozenset({"dataclass", "define", "frozen", "s", "attrs"})
_BINDING = frozenset({cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Call})


def _nodes_with_nested(scope: FunctionScope) -> Iterator[cst.CSTNode]:
    yield from scope.nodes if "register_parameter" in scope.words else scope.small_statements
    for nested in scope.nested.values():
        yield from _nodes_with_nested(nested)


def _registered(node: cst.Call) -> tuple[str, cst.BaseExpression | None]:
    """Return the name and the value of ``self.register_parameter(name, value)``."""
    arguments = positional(node)
    if len(arguments) < 2 or type(arguments[0]) is not cst.SimpleString:  # noqa: PLR2004 - two
        return "", None
    return str(arguments[0].evaluated_value), arguments[1]
