"""Find the statements of a file that make a named thing grow, and those that let it shrink."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Growth", "argument_added", "growth_of", "passed_from", "put_under"]

_ADDING_METHODS = frozenset(
    {"add", "append", "appendleft", "extend", "extendleft", "insert", "put", "put_nowait"}
)
_KEYED_METHODS = frozenset({"setdefault", "update"})
_SHRINKING_METHODS = frozenset(
    {"clear", "discard", "get", "get_nowait", "pop", "popitem", "popleft", "remove", "rotate"}
)
_LOOKING_METHODS = frozenset({"get", "setdefault"})
_BUILDERS = frozenset({"__init__", "__new__", "__post_init__"})
_WITHOUT_GRAPH = frozenset({"detach", "item", "numpy", "tolist"})
_NUMBERS = frozenset({"bool", "float", "int", "len", "round", "str"})
_FEW = 4
"""Statements that may have filled a holder and are all told. Chosen, for length: of more, none
helps."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a file says about a name.

    Attributes:
        site: the statement that adds to it, if there is exactly one.
        sites: the statements that may have, where there are several, but few.
        adds: whether each statement that adds to it makes it longer: none sets an item whose key
            may have been there.
        shrinks: whether some statement may take things out of it, or begins it anew.
    """

    site: Location | None = None
    sites: tuple[Location, ...] = ()
    adds: bool = False
    shrinks: bool = False

    @property
    def is_endless(self) -> bool:
        """Return whether the file adds to it and never takes anything away."""
        return self.adds and not self.shrinks


def growth_of(
    file: str,
    name: str,
    *,
    function: str | None = None,
    attribute: bool = False,
    classes: frozenset[str] = frozenset(),
    base: str | None = None,
    key: str | int | None = None,
    anybody: bool = False,
) -> Growth:
    """Return what the source says of how ``name`` grows and shrinks.

    Args:
        file: the source file, or the name under which a notebook cell was compiled.
        name: the name of a variable or attribute.
        function: look in the functions of this qualified name, and in those inside it, only.
        attribute: whether ``name`` is an attribute and not a variable.
        classes: the qualified names of the classes whose ``self`` has the attribute; if there are
            none, any object may have it.
        base: the last name before the attribute, as ``meter`` in ``trainer.meter.values``: outside
            of the classes, only what is written so is looked at.
        key: the item of the thing that holds what was added, as "train" in ``log["train"]``.
        anybody: look at the attribute of whatever is not another class's ``self``.
    """
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Growth()
    receivers = _receivers(tree) if classes else frozenset[str]()
    wanted = _Wanted(name, attribute, classes, base, receivers, anybody)
    statements = [
        each
        for each in _statements(tree, (), in_loop=False)
        if function is None or f"{each.scope}.".startswith(f"{function}.")
    ]
    sites = [each for each in statements if _grows(each, wanted)]
    told = sites or [each for each in statements if _is_made_of_itself(each, wanted)]
    if len(told) > 1:
        likely = [each for each in told if _may_have_added(each, wanted, key)]
        told = likely or told
    return Growth(
        site=_location(file, told[0]) if len(told) == 1 else None,
        sites=tuple(_location(file, each) for each in told) if len(told) <= _FEW else (),
        adds=bool(sites) and not any(_is_keyed(each.statement) for each in sites),
        shrinks=(bool(sites) and all(_has_fixed_key(each.statement) for each in sites))
        or any(_shrinks(each, wanted) and not _comes_once(each, sites) for each in statements),
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The name that is looked for, and what may stand before it."""

    name: str
    attribute: bool
    classes: frozenset[str]
    base: str | None
    receivers: frozenset[str]
    anybody: bool = False

    def is_called(self, node: ast.AST, scope: str) -> bool:
        """Return whether an expression in that scope is the name."""
        if not self.attribute:
            return isinstance(node, ast.Name) and node.id == self.name
        if not isinstance(node, ast.Attribute) or node.attr != self.name:
            return False
        if not self.classes and self.base is None:
            return True
        before = node.value
        last = before.id if isinstance(before, ast.Name) else getattr(before, "attr", None)
        if last in self.receivers:
            return any(f"{scope}.".startswith(f"{name}.") for name in self.classes)
        return self.anybody or last == self.base

    def is_under(self, node: ast.expr, scope: str) -> bool:
        """Return whether an expression is the name, or an item or a part of it."""
        return self.key_under(node, scope) is not None

    def key_under(self, node: ast.expr, scope: str) -> ast.expr | None:
        """Return the key right behind the name on the way to an expression; the name if none."""
        key: ast.expr | None = None
        while not self.is_called(node, scope):
            part = _lookup_of(node) or node
            if isinstance(part, ast.Subscript):
                key = part.slice
            elif isinstance(part, ast.Attribute):
                key = node.args[0] if isinstance(node, ast.Call) else None
            else:
                return None
            node = part.value
        return node if key is None else key


def _lookup_of(node: ast.AST) -> ast.Attribute | None:
    """Return the method by which a call looks something up: a queue's ``get`` takes no key."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    return node.func if node.args and node.func.attr in _LOOKING_METHODS else None


def _receivers(tree: ast.AST) -> frozenset[str]:
    """Return what the methods of a file call the object or the class that they are called on."""
    methods = [
        method.args
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    first = [[*given.posonlyargs, *given.args][:1] for given in methods]
    return frozenset(parameter.arg for found in first for parameter in found)


def _comes_once(shrinking: _Statement, growing: list[_Statement]) -> bool:
    """Return whether a statement stands before or after the loop in which a thing grows."""
    return not shrinking.in_loop and all(
        each.in_loop and each.scope == shrinking.scope for each in growing
    )


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement, or the body of a lambda, where it stands, and whether in a loop there."""

    statement: ast.stmt | ast.expr
    scope: str
    in_loop: bool


def _location(file: str, site: _Statement) -> Location:
    node = site.statement
    return Location(
        path=file,
        line=node.lineno,
        column=node.col_offset + 1,
        end_line=node.end_lineno,
        end_column=None if node.end_col_offset is None else node.end_col_offset + 1,
        function=site.scope or None,
    )


def _statements(tree: ast.AST, scope: tuple[str, ...], *, in_loop: bool) -> Iterator[_Statement]:
    for child in ast.iter_child_nodes(tree):
        inner, looped = scope, in_loop
        if isinstance(child, ast.ClassDef):
            inner, looped = (*scope, child.name), False
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner, looped = (*scope, child.name, "<locals>"), False
        elif isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
            looped = True
        if isinstance(child, ast.stmt):
            yield _Statement(child, _dotted(scope), in_loop)
        elif isinstance(child, ast.Lambda):
            inner, looped = (*scope, "<lambda>", "<locals>"), False
            yield _Statement(child.body, _dotted(inner), in_loop=False)
        yield from _statements(child, inner, in_loop=looped)


def _dotted(scope: tuple[str, ...]) -> str:
    return ".".join(scope).removesuffix(".<locals>")


def _grows(site: _Statement, wanted: _Wanted) -> bool:
    statement, scope = site.statement, site.scope
    if _calls(_value_of(statement), wanted, scope, _ADDING_METHODS | _KEYED_METHODS):
        return True
    if isinstance(statement, ast.AugAssign):
        return wanted.is_under(statement.target, scope)
    if isinstance(statement, ast.Assign):
        return any(
            # An item that is set, as in a history by step.
            (isinstance(target, ast.Subscript) and wanted.is_under(target, scope))
            # A name that is bound to itself and more.
            or (wanted.is_called(target, scope) and _adds_to(statement.value, wanted, scope))
            for target in statement.targets
        )
    return False


def _may_have_added(site: _Statement, wanted: _Wanted, key: str | int | None) -> bool:
    """Return whether a statement that adds may have added a graph, under that key."""
    added, under = _added_and_where(site.statement)
    if added and all(map(_has_no_graph, added)):
        return False
    keys = [found for each in under if (found := wanted.key_under(each, site.scope)) is not None]
    return key is None or not keys or any(_may_be(each, key) for each in keys)


def _added_and_where(
    statement: ast.stmt | ast.expr,
) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return what a statement adds or assigns, and to what."""
    value = _value_of(statement)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        return given, [value.func.value]
    if isinstance(statement, ast.AugAssign):
        return [statement.value], [statement.target]
    if isinstance(statement, ast.Assign):
        return [statement.value], statement.targets
    return [], []


def _may_be(node: ast.expr, key: str | int) -> bool:
    return not isinstance(node, ast.Constant) or node.value == key


def _has_no_graph(node: ast.expr) -> bool:
    """Return whether an expression is a number, a text or a detached tensor by its form."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        return True
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in _NUMBERS
        return isinstance(node.func, ast.Attribute) and (
            node.func.attr in _WITHOUT_GRAPH or _has_no_graph(node.func.value)
        )
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, (ast.Tuple, ast.List)):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.values
    return bool(parts) and all(map(_has_no_graph, parts))


def _value_of(statement: ast.stmt | ast.expr) -> ast.AST:
    return statement.value if isinstance(statement, ast.Expr) else statement


def _calls(call: ast.AST, wanted: _Wanted, scope: str, methods: frozenset[str]) -> bool:
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in methods
        and wanted.is_under(call.func.value, scope)
    )


def _adds_to(value: ast.expr, wanted: _Wanted, scope: str) -> bool:
    if not isinstance(value, (ast.BinOp, ast.Dict, ast.List, ast.Set, ast.Tuple)):
        return False
    return any(wanted.is_called(part, scope) for part in ast.walk(value))


def _is_made_of_itself(site: _Statement, wanted: _Wanted) -> bool:
    """Return whether a name is bound to something of it and others, as ``x = cat([x, y])``."""
    statement, scope = site.statement, site.scope
    if not isinstance(statement, ast.Assign):
        return False
    targets = (part for each in statement.targets for part in _targets_of(each))
    if not any(wanted.is_called(target, scope) for target in targets):
        return False
    value = statement.value
    if isinstance(value, ast.IfExp):
        return any(_adds_to(each, wanted, scope) for each in (value.body, value.orelse))
    if not isinstance(value, ast.Call):
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    parts = [part for each in given for part in getattr(each, "elts", [each])]
    return len(parts) > 1 and any(wanted.is_called(part, scope) for part in parts)


def _is_keyed(statement: ast.stmt | ast.expr) -> bool:
    if isinstance(statement, ast.Assign):
        by_key = isinstance(statement.value, (ast.Dict, ast.Set))
        return by_key or any(isinstance(target, ast.Subscript) for target in statement.targets)
    call = _value_of(statement)
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _KEYED_METHODS
    )


def _has_fixed_key(statement: ast.stmt | ast.expr) -> bool:
    """Return whether an item is set under a key that the source spells out, always the same."""
    if isinstance(statement, ast.Assign):
        return all(
            isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
            for target in statement.targets
        )
    call = _value_of(statement)
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "setdefault"
        and bool(call.args)
        and isinstance(call.args[0], ast.Constant)
    )


def _shrinks(site: _Statement, wanted: _Wanted) -> bool:
    """Return whether a statement may take something out of the name, or begin it anew."""
    statement, scope = site.statement, site.scope
    if isinstance(statement, ast.Delete):
        return any(wanted.is_under(target, scope) for target in statement.targets)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in (part for each in targets for part in _targets_of(each)):
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
                if wanted.is_under(target, scope):
                    return True
            elif wanted.is_called(target, scope) and not (
                _is_beginning(site, wanted) or _keeps_all(statement.value, wanted, scope)
            ):
                return True
    return any(
        _calls(part, wanted, scope, _SHRINKING_METHODS) and not _lookup_of(part)
        for part in _own_parts(statement)
    )


def _targets_of(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _targets_of(element)
    else:
        yield target


def _is_beginning(site: _Statement, wanted: _Wanted) -> bool:
    """Return whether an assignment there is where a thing begins, once for each that there is."""
    builds = site.scope.rpartition(".")[2] in _BUILDERS
    return not site.in_loop and (builds or not wanted.attribute)


def _keeps_all(value: ast.expr, wanted: _Wanted, scope: str) -> bool:
    """Return whether a name bound to ``value`` keeps all that it had."""
    parts: list[ast.expr | None] = []
    if isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        parts = [part.value if isinstance(part, ast.Starred) else part for part in value.elts]
    elif isinstance(value, ast.Dict):
        parts = list(value.values)
    return any(part is not None and wanted.is_called(part, scope) for part in parts)


def _own_parts(statement: ast.stmt | ast.expr) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without the statements inside it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)
        )


def passed_from(
    argument: tuple[str, int | None, str], files: Iterable[str], base: str | None
) -> Location | None:
    """Return the call that passes what a statement adds, where that is an argument given to it.

    A meter or a buffer adds what it is given: the line to change is the one that gives it a graph.

    Args:
        argument: the function, place and name, as ``argument_added`` has it.
        files: where calls are looked for.
        base: what the program calls the object, as ``losses`` in ``losses.update(loss)``: of
            several calls, the one of that name is told.

    Returns:
        The one call that may have passed a graph; None if there are several, or none.
    """
    function, place, name = argument
    calls = [
        (file, each, call)
        for file in files
        for each in _statements(_parsed(file), (), in_loop=False)
        for call in _own_parts(each.statement)
        if isinstance(call, ast.Call) and _last_name(call.func) == function
        if any(not _has_no_graph(given) for given in _given(call, place, name))
    ]
    if base is not None and len(calls) > 1:
        calls = [each for each in calls if base in _names_in(each[2].func)] or calls
    lines = {(file, call.lineno): each for file, each, call in calls}
    if len(lines) != 1:
        return None
    ((file, _), statement) = next(iter(lines.items()))
    return _location(file, statement)


def _parsed(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def argument_added(site: Location) -> tuple[str, int | None, str] | None:
    """Return the function whose argument a statement adds, its place, None if any, and its name."""
    tree = _parsed(site.path)
    around = [
        each
        for each in ast.walk(tree)
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        and each.lineno <= site.line <= (each.end_lineno or each.lineno)
    ]
    if not around:
        return None
    function = max(around, key=lambda each: each.lineno)
    used = {
        part
        for statement in ast.walk(function)
        if isinstance(statement, ast.stmt) and statement.lineno == site.line
        for added in _added_and_where(statement)[0]
        for part in _passed_on(added)
    }
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    methods = {
        id(method)
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for method in each.body
    }
    first = 1 if id(function) in methods else 0
    if given.vararg is not None and given.vararg.arg in used:
        return function.name, None, given.vararg.arg
    for place, name in enumerate(names[first:]):
        if name in used:
            return function.name, place, name
    return None


def _passed_on(node: ast.expr) -> Iterator[str]:
    """Yield the names whose own value is a part of an expression's, not that of an attribute."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not isinstance(node, ast.Attribute):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _passed_on(child)


def _given(call: ast.Call, place: int | None, name: str) -> list[ast.expr]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == name]
    if named or place is None:
        return named or call.args
    return call.args[place : place + 1]


def _last_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def _names_in(node: ast.AST) -> set[str]:
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return names | {str(part.value) for part in parts if isinstance(part, ast.Constant)}


def put_under(key: str, files: Iterable[str]) -> Location | None:
    """Return the one place where something that may have a graph is put into a dictionary.

    Args:
        key: under which, spelled out.
        files: where it is looked for.
    """
    found: dict[tuple[str, int], tuple[ast.expr, str]] = {}
    for file in files:
        for each in _statements(_parsed(file), (), in_loop=False):
            for part in _own_parts(each.statement):
                for name, value in _items_of(part):
                    if name == key and not _has_no_graph(value):
                        found[file, value.lineno] = value, each.scope
    if len(found) != 1:
        return None
    ((file, _), (value, scope)) = next(iter(found.items()))
    return Location(
        path=file,
        line=value.lineno,
        column=value.col_offset + 1,
        end_line=value.end_lineno,
        end_column=None if value.end_col_offset is None else value.end_col_offset + 1,
        function=scope or None,
    )


def _items_of(node: ast.AST) -> Iterator[tuple[object, ast.expr]]:
    """Yield the keys, spelled out, and the values that an expression puts into a dictionary."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield key.value, value
    elif isinstance(node, ast.Call) and _last_name(node.func) == "dict":
        for keyword in node.keywords:
            yield keyword.arg, keyword.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                yield target.slice.value, node.value
