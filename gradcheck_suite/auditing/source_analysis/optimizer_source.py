"""Where an optimizer's own source keeps its state, and where parameters are put into its groups."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.call_sites import kind_of_file, user_files_with
from gradcheck_suite.auditing.source_analysis.source import function_at, root_key, tree_of
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Replacement", "StateUses", "replacement_of_parameters", "state_uses"]


@dataclass(frozen=True, slots=True)
class StateUses:
    """What the classes of an optimizer do with one entry of its states.

    Attributes:
        made: where it is set.
        read: where it is read, in code that runs with the options of a parameter group.
        written: where a part of it is set, or what was read is written in place by its name.
    """

    made: tuple[Location, ...]
    read: tuple[Location, ...]
    written: tuple[Location, ...]


def state_uses(kind: type, key: str, group: Mapping[str, Any]) -> StateUses:
    """Return what the classes of an optimizer, its bases too, do with ``state[key]``."""
    made: list[Location] = []
    read: list[Location] = []
    written: list[Location] = []
    for path, scope in _own_classes(kind):
        parents = {child: node for node in ast.walk(scope) for child in ast.iter_child_nodes(node)}
        names: set[str] = set()
        for node in ast.walk(scope):
            made += [_location(path, line) for line in _keys_set(node, key)]
            if not isinstance(node, ast.Subscript) or not _is_entry(node, key):
                continue
            whole = parents.get(node)
            if isinstance(whole, ast.Subscript) and isinstance(whole.ctx, ast.Store):
                written.append(_location(path, node.lineno))
            elif isinstance(node.ctx, ast.Load) and _may_run(node, parents, group):
                read.append(_location(path, node.lineno))
                names |= _names_bound(node, parents)
        written += [
            _location(path, node.lineno)
            for node in ast.walk(scope)
            if isinstance(node, ast.Expr) and _writes_any(node, names)
        ]
    return StateUses(*(tuple(sorted(set(each), key=_line)) for each in (made, read, written)))


@dataclass(frozen=True, slots=True)
class Replacement:
    """Where another parameter is put into a group, and where the states are asked for there."""

    place: Location
    states: Location | None


def replacement_of_parameters() -> Replacement | None:
    """Return the one place of the program that sets what is in a group's ``"params"``."""
    found: dict[tuple[str, int], Replacement] = {}
    for path in user_files_with("params"):
        tree = tree_of(path)
        for function in () if tree is None else ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            lines = [
                node.lineno
                for node in ast.walk(function)
                if isinstance(node, ast.Subscript) and _puts_parameters(node)
            ]
            if lines:
                states = [
                    node.lineno
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute) and node.attr == "state"
                ]
                asked = _location(path, min(states)) if states else None
                found[path, function.lineno] = Replacement(_location(path, max(lines)), asked)
    return next(iter(found.values())) if len(found) == 1 else None


def _own_classes(kind: type) -> Iterator[tuple[str, ast.ClassDef]]:
    for each in kind.__mro__:
        path = getattr(sys.modules.get(each.__module__), "__file__", None)
        tree = None if path is None or kind_of_file[path] else tree_of(path)
        for node in () if tree is None else ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == each.__name__:
                yield str(path), node


def _location(path: str, line: int) -> Location:
    return Location(path, line, function=function_at(path, line))


def _line(place: Location) -> int:
    return place.line


def _is_entry(node: ast.AST, key: str) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == key
    )


def _keys_set(node: ast.AST, key: str) -> Iterator[int]:
    """Yield the lines of a node that give this key a value."""
    match node:
        case ast.Subscript(ctx=ast.Store()) if _is_entry(node, key):
            yield node.lineno
        case ast.Dict(keys=keys):
            for each in keys:
                if isinstance(each, ast.Constant) and each.value == key:
                    yield each.lineno
        case ast.Call(func=ast.Attribute(attr="setdefault"), args=[ast.Constant(value=name), *_]):
            if name == key:
                yield node.lineno
        case _:
            pass


def _may_run(node: ast.AST, parents: dict[ast.AST, ast.AST], group: Mapping[str, Any]) -> bool:
    """Return whether no condition on the options of the group leaves this out."""
    child: ast.AST = node
    while (parent := parents.get(child)) is not None:
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            holds = _option(parent.test, group)
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            if holds is not None and holds is not any(child is each for each in body):
                return False
        child = parent
    return True


def _option(test: ast.expr, group: Mapping[str, Any]) -> bool | None:
    """Return whether ``group["amsgrad"]`` holds; None for any other condition."""
    is_plain = isinstance(test, ast.Subscript) and isinstance(test.slice, ast.Constant)
    value = group.get(test.slice.value) if is_plain else None  # type: ignore[attr-defined]  # mypy does not follow `is_plain`
    return bool(value) if isinstance(value, (bool, int, float)) else None


def _names_bound(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> set[str]:
    """Return the names that an assignment of this very expression gives it."""
    parent = parents.get(node)
    if isinstance(parent, ast.Assign) and parent.value is node:
        return {each.id for each in parent.targets if isinstance(each, ast.Name)}
    if isinstance(parent, ast.Tuple) and isinstance(outer := parents.get(parent), ast.Assign):
        (target, *more) = outer.targets
        if not more and isinstance(target, ast.Tuple) and len(target.elts) == len(parent.elts):
            name = target.elts[parent.elts.index(node)]  # type: ignore[arg-type]  # an expression of the tuple
            return {name.id} if isinstance(name, ast.Name) else set()
    return set()


def _writes_any(node: ast.Expr, names: set[str]) -> bool:
    """Return whether a statement writes in place into one of these, as ``buf.mul_(a)`` does."""
    receiver: ast.expr = node.value
    in_place = False
    while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        attribute = receiver.func.attr
        in_place = in_place or (attribute.endswith("_") and not attribute.endswith("__"))
        receiver = receiver.func.value
    return in_place and isinstance(receiver, ast.Name) and receiver.id in names


def _puts_parameters(node: ast.Subscript) -> bool:
    """Return whether a node is a target as ``group["params"][0]`` or ``group["params"]``."""
    if not isinstance(node.ctx, ast.Store):
        return False
    target: ast.expr = node
    while isinstance(target, ast.Subscript):
        if _is_entry(target, "params"):
            return root_key(target.value) is not None
        target = target.value
    return False
