"""The source of a function that ran: its statements, its calls and what they name."""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from gradcheck_suite.auditing.call_sites import is_user_code, location_of, user_files_with
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = [
    "RECORDING_OFF",
    "Called",
    "Function",
    "Span",
    "asks_for_gradients",
    "called_by",
    "function_at",
    "functions_by_name",
    "innermost",
    "line_of_decorator",
    "line_that_led_to",
    "name_given_at",
    "name_of",
    "only_call_of",
    "only_line",
    "own_statements",
    "root_key",
    "span_at",
    "span_of",
    "tree_of",
    "way_out",
]

Span: TypeAlias = "tuple[int, int, int, int]"
"""First and last line, first column and the one after the last, in bytes, as ``ast`` counts."""

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"

RECORDING_OFF = ("no_grad", "inference_mode")
"""What switches recording off for what stands under it."""


def tree_of(path: str) -> ast.Module | None:
    """Return the parsed source of a file, if it can be read."""
    return _parsed("".join(linecache.getlines(path)))


@lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None


def only_line(
    text: str,
    lines_in: Callable[[ast.Module], Iterable[int]],
    files: Iterable[str] | None = None,
) -> Location | None:
    """Return the one line that ``lines_in`` finds; None where it finds none, or several.

    Args:
        text: what a file must have to be parsed.
        lines_in: yields lines of a parsed file.
        files: where to look; by default the files of the user's modules.
    """
    lines = {
        (path, line)
        for path in (user_files_with(text) if files is None else files)
        if (tree := tree_of(path)) is not None
        for line in lines_in(tree)
    }
    if len(lines) != 1:
        return None
    ((path, line),) = lines
    return Location(path, line, function=function_at(path, line))


def only_call_of(place: Location | None) -> Location | None:
    """Return the one line of the program that calls the function in which a line stands."""
    name = _name_to_call(place)
    return None if name is None else only_line(f"{name}(", lambda tree: _calls_of(name, tree))


def _call_before(place: Location | None, running: Iterable[CallSite]) -> Location | None:
    """Return the last line, before one that is running, that calls a line's function.

    Args:
        place: the line of the function that was called.
        running: the lines that run, innermost first; the function itself is none of theirs.
    """
    name = _name_to_call(place)
    for here in map(location_of, running):
        tree = None if name is None or here is None else tree_of(here.path)
        scope = None if tree is None or here is None else innermost(tree, here.line) or tree
        if name is None or here is None or scope is None:
            continue
        lines = [line for line in _calls_of(name, scope) if line <= here.line]
        if lines:
            return Location(here.path, max(lines), function=here.function)
    return None


def line_that_led_to(site: CallSite | None, running: Sequence[CallSite]) -> Location | None:
    """Return the line of what runs that led to one that ran before, or that line itself.

    Args:
        site: the line that ran, as a write.
        running: the lines that run now, innermost first.
    """
    place = location_of(site)
    if site is None or any(each[0] is site[0] for each in running):
        return place
    return _call_before(place, running) or only_call_of(place) or place


def _name_to_call(place: Location | None) -> str | None:
    """Return the name by which the function around a line is called, where that is its own."""
    name = None if place is None or place.function is None else place.function.rpartition(".")[2]
    return None if not name or name.startswith("__") or name in {"forward", "<lambda>"} else name


def _calls_of(name: str, scope: ast.AST) -> Iterator[int]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and name_of(node) == name:
            yield node.lineno


def name_given_at(path: str, line: int, callee: str) -> str | None:
    """Return what the result of a call on a line is called: ``step`` of ``self.step = make()``.

    Of several on the line, that of the call of ``callee``.
    """
    tree = tree_of(path)
    given: list[tuple[str | None, str | None]] = []
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or node.lineno):
            (target, *more) = node.targets
            if isinstance(node.value, ast.Call) and not more:
                last = "id" if isinstance(target, ast.Name) else "attr"
                name: str | None = getattr(target, last, None)
                given.append((name_of(node.value), name))
    if len(given) > 1:
        given = [each for each in given if each[0] == callee]
    return given[0][1] if given else None


@lru_cache(maxsize=1024)
def innermost(tree: ast.Module, line: int) -> Function | None:
    """Return the function whose source is around a line, the innermost of several."""
    best: Function | None = None
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and (best is None or node.lineno >= best.lineno)
        ):
            best = node
    return best


@lru_cache(maxsize=32)
def functions_by_name(tree: ast.Module) -> dict[str, list[Function]]:
    """Return all functions of a file, those of classes and inside of others too."""
    found: dict[str, list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.setdefault(node.name, []).append(node)
    return found


def function_at(path: str, line: int) -> str | None:
    """Return the qualified name of the function around a line, as Python calls it; None if none."""
    tree = tree_of(path)
    names: list[str] = []
    inner: ast.AST | None = tree
    while inner is not None:
        outer, inner = inner, None
        for node in _scopes_in(outer):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                is_local = isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
                names += ["<locals>", node.name] if is_local else [node.name]
                inner = node
    return ".".join(names) if names else None


def _scopes_in(outer: ast.AST) -> Iterator[Function | ast.ClassDef]:
    """Yield the functions and classes right inside a node, in blocks of statements too."""
    for child in ast.iter_child_nodes(outer):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _scopes_in(child)


def own_statements(body: Iterable[ast.stmt], *, off: int) -> Iterator[tuple[ast.stmt, int]]:
    """Yield simple statements in order, with the line of the ``no_grad`` they are under, or 0."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield statement, off
        inside = off
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                name = name_of(item.context_expr)
                if name in RECORDING_OFF:
                    inside = item.context_expr.lineno
                elif name == "enable_grad":
                    inside = 0
        for field in ("body", "orelse", "finalbody"):
            yield from own_statements(getattr(statement, field, []), off=inside)
        for handler in getattr(statement, "handlers", []):
            yield from own_statements(handler.body, off=inside)


def way_out(path: str, first: int, last: int) -> int | None:
    """Return the line of a ``return`` or ``break`` by which what runs at one line misses another.

    Both lines are of one function; a ``break`` counts if its loop is around both.
    """
    tree = tree_of(path)
    scope: ast.AST | None = None if tree is None else innermost(tree, first) or tree
    if scope is None or tree is None or (innermost(tree, last) or tree) is not scope:
        return None
    waiting: list[tuple[ast.AST, bool]] = [(child, False) for child in ast.iter_child_nodes(scope)]
    for node, is_in_loop in waiting:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            continue
        kinds = (ast.Return, ast.Break) if is_in_loop else (ast.Return,)
        if isinstance(node, kinds) and first < node.lineno < last:
            return node.lineno
        inside = is_in_loop
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            inside = node.lineno <= first and last <= (node.end_lineno or node.lineno)
        waiting.extend((child, inside) for child in ast.iter_child_nodes(node))
    return None


def name_of(node: ast.expr) -> str | None:
    """Return the last part of the name that is called, read or decorated with."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def root_key(node: ast.expr) -> str | None:
    """Return what a target or a name is filed under: ``x``, ``self.x``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        inner = root_key(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def line_of_decorator(scope: ast.Module | Function) -> int:
    """Return the line of the decorator that switches recording off, or 0."""
    found = 0
    for decorator in getattr(scope, "decorator_list", []):
        if name_of(decorator) in RECORDING_OFF:
            found = decorator.lineno
    return found


@dataclass(frozen=True, slots=True)
class Called:
    """What a call names, and the object that it is called on; no ``code`` of a library's."""

    code: CodeType | None
    receiver: object = None


def called_by(path: str, function: ast.expr, variables: Mapping[str, object]) -> Called | None:
    """Return what is called, as the variables of the function or of the module in that file say.

    No attribute is computed: what an object or a class has in its dictionary is looked at.
    """
    value, receiver = _value_of(path, function, variables)
    if isinstance(value, nn.Module):
        value, receiver = type(value).forward, value
    if isinstance(value, MethodType):
        receiver, value = value.__self__, value.__func__
    if not isinstance(value, FunctionType):
        return Called(None) if isinstance(value, (BuiltinFunctionType, type)) else None
    code: CodeType = inspect.unwrap(value).__code__
    return Called(code, receiver) if is_user_code(code) else Called(None)


def _value_of(path: str, node: ast.expr, variables: Mapping[str, object]) -> tuple[Any, object]:
    """Return what a name or an attribute stands for, and the object whose method it is, if any."""
    if isinstance(node, ast.Name):
        if node.id in variables:
            return variables[node.id], None
        module = _module_of(path)
        return (None if module is None else vars(module).get(node.id)), None
    if not isinstance(node, ast.Attribute):
        return None, None
    owner = _value_of(path, node.value, variables)[0]
    own = getattr(owner, "__dict__", {})
    for place in (own, own.get("_modules", {}) if isinstance(owner, nn.Module) else {}):
        if node.attr in place:
            return place[node.attr], None
    return inspect.getattr_static(type(owner), node.attr, None), owner


_module_names: dict[str, str] = {}
"""By their files, the names of modules that were asked for: there are thousands to look through."""


def _module_of(path: str) -> ModuleType | None:
    known = sys.modules.get(_module_names.get(path, ""))
    if getattr(known, "__file__", None) == path:
        return known
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path:
            _module_names[path] = name
            return module
    return None


def asks_for_gradients(node: ast.expr) -> bool:
    """Return whether an expression is a call with ``requires_grad=True``."""
    return isinstance(node, ast.Call) and any(
        keyword.arg == "requires_grad" and getattr(keyword.value, "value", None) is True
        for keyword in node.keywords
    )


def span_of(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    """Return where an expression stands."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def span_at(site: CallSite) -> Span | None:
    """Return where in its source the call at this site stands (Python 3.11 and later)."""
    code, offset = site[:2]
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return None
    # One entry for each instruction, of two bytes.
    found: Any = next(itertools.islice(positions(), offset // 2, None), (None,) * 4)
    return None if None in found else tuple(found)
