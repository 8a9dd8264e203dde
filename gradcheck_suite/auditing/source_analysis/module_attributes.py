"""What the class of a module does with one of its attributes when it is called."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.call_sites import kind_of_file
from gradcheck_suite.auditing.source_analysis.source import functions_by_name, only_line, tree_of
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from gradcheck_suite.auditing.source_analysis.source import Function

__all__ = ["AttributeUses", "line_that_sets", "uses_of"]

_MOST_METHODS = 64
"""Methods of a class that are read. A bound on cost."""


@dataclass(frozen=True, slots=True)
class AttributeUses:
    """What happens to ``self.name`` in a forward and the methods that it calls.

    Attributes:
        is_read: whether a call in training mode reads it, other than to give it its next value.
        assigned: the lines that assign it.
        is_carried: whether what each of these assigns is computed from what was there before.
        values: the numbers that stand in what is assigned.
        loads: the lines of the statements that read it, also to give it its next value.
    """

    is_read: bool
    assigned: tuple[Location, ...]
    is_carried: bool
    values: frozenset[float]
    loads: tuple[Location, ...] = ()

    def are_before(self, place: Location) -> bool:
        """Return whether what is written there in the forward may be computed from what was."""
        return any(
            each.path == place.path
            and each.function == (place.function or "").rpartition(".")[2]
            and each.line <= place.line
            for each in self.loads
        )


def uses_of(kind: type[nn.Module], name: str) -> AttributeUses | None:
    """Return what a class does with an attribute; None where its source is not the user's own."""
    functions = list(_methods_called(kind))
    if not functions:
        return None
    assigned: list[Location] = []
    expressions: list[ast.expr] = []
    loads: list[Location] = []
    is_read = False
    for path, function in functions:
        for node in ast.walk(function):
            value = _assigned_value(node, name)
            if value is not None and isinstance(node, ast.stmt):
                assigned.append(Location(path, node.lineno, function=function.name))
                expressions.append(value)
            if isinstance(node, ast.stmt) and not hasattr(node, "body") and _loads(node, name):
                loads.append(Location(path, node.lineno, function=function.name))
        is_read = is_read or any(
            _loads(node, name) and not _writes(node, name) for node in _in_training(function.body)
        )
    return AttributeUses(
        is_read,
        tuple(assigned),
        all(any(_is_own(each, name) for each in ast.walk(value)) for value in expressions),
        frozenset(
            float(each.value)
            for value in expressions
            for each in ast.walk(value)
            if isinstance(each, ast.Constant) and isinstance(each.value, (int, float))
        ),
        tuple(loads),
    )


def line_that_sets(name: str) -> Location | None:
    """Return the one line of the program that sets an attribute of this name, not in a constructor.

    >>> line_that_sets("an_attribute_that_nobody_sets")
    """

    def lines_in(tree: ast.Module) -> Iterator[int]:
        made = {
            id(node)
            for function in functions_by_name(tree).get("__init__", ())
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == name and id(node) not in made:
                yield from (node.lineno,) if isinstance(node.ctx, ast.Store) else ()

    return only_line(name, lines_in)


def _methods_called(kind: type[nn.Module]) -> Iterator[tuple[str, Function]]:
    """Yield the source of ``forward`` and of each method and property of the class it leads to."""
    waiting, known = ["forward"], {"forward"}
    for name in waiting:
        found = inspect.getattr_static(kind, name, None)
        found = found.fget if isinstance(found, property) else found
        found = inspect.unwrap(found) if callable(found) else None
        if not isinstance(found, FunctionType) or kind_of_file[found.__code__.co_filename]:
            continue
        path, first = found.__code__.co_filename, found.__code__.co_firstlineno
        tree = tree_of(path)
        functions = [] if tree is None else functions_by_name(tree).get(found.__name__, [])
        for function in functions:
            if first not in _first_lines(function):
                continue
            yield path, function
            called = {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and _is_self(node.value)
            }
            waiting += sorted(called - known)[: _MOST_METHODS - len(known)]
            known |= called


def _first_lines(function: Function) -> set[int]:
    return {function.lineno, *(each.lineno for each in function.decorator_list[:1])}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_own(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and _is_self(node.value)


def _assigned_value(node: ast.AST, name: str) -> ast.expr | None:
    """Return what a statement assigns to the attribute, if it does."""
    if isinstance(node, ast.Assign) and any(_is_own(each, name) for each in node.targets):
        return node.value
    if isinstance(node, ast.AugAssign) and _is_own(node.target, name):
        return ast.BinOp(node.target, node.op, node.value)  # it reads what it writes
    if isinstance(node, ast.AnnAssign) and _is_own(node.target, name):
        return node.value
    return None


def _in_training(body: list[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    """Yield the statements, and tests, of a body that may run in training mode.

    Compound statements are taken apart; of ``if self.training`` only what stands under it counts.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            mode = _mode_asked(statement.test)
            is_alone = mode is not None and not isinstance(statement.test, ast.BoolOp)
            if not is_alone:
                yield statement.test
            if mode is not False:
                yield from _in_training(statement.body)
            if not (is_alone and mode):
                yield from _in_training(statement.orelse)
            if is_alone and mode and isinstance(statement.body[-1], ast.Return):
                return  # what follows runs in evaluation mode
            continue
        inner = [
            each
            for field in ("body", "orelse", "finalbody")
            for each in getattr(statement, field, ())
        ]
        if not inner:
            yield statement
            continue
        yield from (each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.expr))
        for item in getattr(statement, "items", ()):
            yield item.context_expr
        yield from _in_training(inner)


def _mode_asked(test: ast.expr) -> bool | None:
    """Return the mode that a condition wants; None where it does not ask for one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return False if _is_own(test.operand, "training") else None
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return next((mode for each in test.values if (mode := _mode_asked(each)) is not None), None)
    return True if _is_own(test, "training") else None


def _written_root(statement: ast.AST, name: str) -> ast.expr | None:
    """Return the attribute in ``self.name.lerp_(...)`` or ``self.name[...] = ...``."""
    root: ast.expr | None = None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        root = statement.value
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        root = statement.targets[0]
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)) and not _is_own(root, name):
        root = root.func if isinstance(root, ast.Call) else root.value
    return root if root is not None and _is_own(root, name) else None


def _writes(statement: ast.AST, name: str) -> bool:
    is_assigned = _assigned_value(statement, name) is not None
    return is_assigned or _written_root(statement, name) is not None


def _loads(statement: ast.AST, name: str) -> bool:
    """Return whether a statement reads the attribute, other than to write into it."""
    root = _written_root(statement, name)
    return any(
        _is_own(node, name) and isinstance(getattr(node, "ctx", None), ast.Load)
        for node in ast.walk(statement)
        if node is not root
    )
