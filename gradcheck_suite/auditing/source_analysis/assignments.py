"""Which line of the source makes a leaf anew, freezes by a pattern, or sets a flag of no use."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from torch import nn

from gradcheck_suite.auditing.call_sites import kind_of_file, user_files_with
from gradcheck_suite.auditing.source_analysis.flow_cut import Cut
from gradcheck_suite.auditing.source_analysis.source import (
    function_at,
    innermost,
    name_of,
    only_line,
    root_key,
    tree_of,
)
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType

__all__ = [
    "FreezingLine",
    "cut_of",
    "division_of_loss",
    "freezing_lines",
    "kept_by_reference_at",
    "layers_made_in_forward",
    "leaf_made_anew",
    "replaced_after",
    "set_before_call",
    "switched_off_at",
]

_MAKES_A_LEAF = re.compile(r"requires_grad_\(|requires_grad=True|\bParameter\(|\bVariable\(")


@dataclass(frozen=True, slots=True)
class FreezingLine:
    """A line that sets requires_grad to False.

    Attributes:
        location: where; the condition, for what depends on a string: ``if "layer1" in name:``.
        target: what is frozen, as the source has it.
        under_pattern: whether it depends on a string.
        is_flag: whether it assigns the attribute.
    """

    location: Location
    target: str
    under_pattern: bool
    is_flag: bool


def leaf_made_anew(name: str, running: Sequence[CodeType]) -> Location | None:
    """Return the line that binds this name to a new leaf, in the files of what is running.

    One that names the same owner comes first, then one in a function that runs; one in a
    constructor counts for the last.

    Args:
        name: of the variable, attribute or key, with the way to it: ``state["prompt"]``.
        running: the user's functions, innermost first.
    """
    way = re.search(r"(\.|\[)?\W?(\w+)\W*$", name)
    if way is None:
        return None
    wanted = {".": ast.Attribute, "[": ast.Subscript}.get(way[1], ast.Name), way[2]
    owner = re.findall(r"\w+", name)[-2:-1]
    functions = {code.co_name for code in running}
    files = [code.co_filename for code in running if not kind_of_file[code.co_filename]]
    found: list[tuple[bool, int, Location]] = []
    for path in dict.fromkeys([*files, *user_files_with(way[2])]):
        tree = tree_of(path)
        for node in () if tree is None else ast.walk(tree):
            if not _binds(node, wanted):
                continue
            function = function_at(path, node.lineno)
            last = "" if function is None else function.rpartition(".")[2]
            rank = 2 if last in functions else 0 if last in {"", "__init__"} else 1
            place = Location(path=path, line=node.lineno, function=function)
            found.append((_names_owner(node, owner), rank, place))
        if found:
            break
    return max(found, key=lambda each: (*each[:2], each[2].line))[2] if found else None


def _names_owner(node: ast.stmt, owner: Sequence[str]) -> bool:
    """Return whether what is assigned is called an attribute or item of this owner."""
    return any(
        isinstance(each, (ast.Attribute, ast.Subscript)) and [_last_key(each.value)] == [*owner]
        for each in ast.walk(node)
        if isinstance(getattr(each, "ctx", None), ast.Store)
    )


def _binds(node: ast.AST, wanted: tuple[type[ast.expr], str]) -> TypeGuard[ast.stmt]:
    """Return whether this assigns a new leaf to a name, attribute or key."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    kind, key = wanted
    is_it = any(isinstance(each, kind) and _last_key(each) == key for each in targets)
    return is_it and bool(_MAKES_A_LEAF.search(ast.unparse(node.value)))


def layers_made_in_forward(running: Iterable[str]) -> list[Location]:
    """Return the lines, in these files or others that define a forward, that make a layer there."""
    found = []
    for path in dict.fromkeys([*running, *user_files_with("def forward")]):
        tree = tree_of(path)
        for scope in () if tree is None else ast.walk(tree):
            if not isinstance(scope, ast.FunctionDef) or scope.name != "forward":
                continue
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and _is_a_layer(node.func):
                    function = function_at(path, node.lineno)
                    found.append(Location(path=path, line=node.lineno, function=function))
    return found


def _is_a_layer(function: ast.expr) -> bool:
    name = ast.unparse(function)
    return bool(re.fullmatch(r"((torch\.)?nn\.)?[A-Z]\w*", name)) and (
        hasattr(nn, name.rpartition(".")[2])
    )


def _last_key(target: ast.expr) -> str | None:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return None


def cut_of(name: str, places: Iterable[Location]) -> Cut | None:
    """Return where one of these functions detaches the tensor of this name, if any does.

    So it does by making a number of it, which goes on in a local or in what is returned.

    Args:
        name: of the variable or attribute, with the way to it: ``model.scale``.
        places: lines in the functions that are looked into.
    """
    keys = re.findall(r"\w+", name)
    for place in places:
        tree = tree_of(place.path)
        scope = None if tree is None else innermost(tree, place.line)
        if scope is None:
            continue
        kept = _kept_beside(scope)
        for node in ast.walk(scope):
            made = _conversion(node)
            if made is not None and node not in kept and keys:
                if _last_key(_receiver(made.value)) == keys[-1]:
                    return Cut(place.path, made.lineno, f"`.{made.attr}()`")
            elif isinstance(node, ast.Attribute) and node.attr in {"detach", "data"}:
                writes = isinstance(node.ctx, ast.Store) or _is_written_through(node, scope)
                if keys and _last_key(node.value) == keys[-1] and not writes:
                    what = "`.detach()`" if node.attr == "detach" else "`.data`"
                    return Cut(place.path, node.lineno, what)
    return None


_CONVERSIONS = frozenset(["item", "tolist", "numpy"])


def _conversion(node: ast.AST) -> ast.Attribute | None:
    """Return the method by which a call makes Python numbers of a tensor, if one does."""
    method = node.func if isinstance(node, ast.Call) else None
    is_one = isinstance(method, ast.Attribute) and method.attr in _CONVERSIONS
    return method if is_one else None  # type: ignore[return-value]  # as was just asked


def _receiver(node: ast.expr) -> ast.expr:
    """Return what the first of a chain of methods is called on."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _kept_beside(scope: ast.AST) -> set[ast.AST]:
    """Return what is but printed, logged, or kept in an attribute or a container."""
    beside = (
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Expr)
        or (
            isinstance(each, ast.Assign)
            and not any(isinstance(target, ast.Name) for target in each.targets)
        )
    )
    return {inner for each in beside for inner in ast.walk(each)}


def _is_written_through(data: ast.Attribute, scope: ast.AST) -> bool:
    """Return whether this is but the target of a write: ``x.data.clamp_(0)``, ``x.data[0] = 1``."""
    if data.attr != "data":
        return False
    return any(
        (isinstance(each, ast.Attribute) and each.value is data and each.attr.endswith("_"))
        or (
            isinstance(each, ast.Subscript)
            and each.value is data
            and isinstance(each.ctx, ast.Store)
        )
        for each in ast.walk(scope)
    )


def freezing_lines(paths: Iterable[str]) -> Iterator[FreezingLine]:
    """Yield the lines of these files that freeze."""
    for path in paths:
        tree = tree_of(path)
        if tree is None:
            continue
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            frozen = _frozen(node)
            if frozen is None:
                continue
            test = _condition(node, parents)
            line = frozen.lineno if test is None else test.lineno
            place = Location(path=path, line=line, function=function_at(path, line))
            is_flag = isinstance(node, ast.Assign)
            yield FreezingLine(place, ast.unparse(frozen), test is not None, is_flag)


def _frozen(node: ast.AST) -> ast.expr | None:
    """Return what a statement or call freezes; None where it does something else."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        value = node.value
        off = isinstance(value, ast.Constant) and value.value is False
        pattern = isinstance(value, (ast.Compare, ast.UnaryOp, ast.BoolOp, ast.Call))
        if node.targets[0].attr == "requires_grad" and (off or pattern):
            return node.targets[0].value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        given = node.args[0] if node.args else None
        if node.func.attr == "requires_grad_" and isinstance(given, ast.Constant):
            return node.func.value if given.value is False else None
    return None


def _condition(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.expr | None:
    """Return the pattern that decides whether this statement runs."""
    if isinstance(node, ast.Assign) and _is_pattern(node.value):
        return node.value
    while (up := parents.get(node)) is not None and not isinstance(
        up, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    ):
        if isinstance(up, ast.If) and _is_pattern(up.test):
            return up.test
        node = up
    return None


def _is_pattern(test: ast.expr) -> bool:
    return any(
        (isinstance(each, ast.Compare) and isinstance(each.ops[0], (ast.In, ast.NotIn)))
        or (
            isinstance(each, ast.Attribute)
            and each.attr in {"startswith", "endswith", "match", "search", "fullmatch", "find"}
        )
        for each in ast.walk(test)
    )


def kept_by_reference_at(key: str, keeper: type) -> Location | None:
    """Return the one line that sets this key to something without a copy.

    It is looked for where the class of what keeps it and its bases are, then in all modules.
    """
    modules = (sys.modules.get(each.__module__) for each in keeper.__mro__)
    own = dict.fromkeys(file for each in modules if (file := getattr(each, "__file__", None)))

    def references(tree: ast.Module) -> Iterator[int]:
        return (value.lineno for value in _values_of(tree, key) if _is_reference(value))

    own_files = [file for file in own if not kind_of_file[file]]
    return only_line(key, references, own_files) or only_line(key, references)


def _values_of(tree: ast.Module, key: str) -> Iterator[ast.expr]:
    """Yield what is assigned to this key, in a statement or in a dictionary that is written out."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    match target:
                        case ast.Subscript(slice=ast.Constant(value=name)) if name == key:
                            yield value
                        case _:
                            pass
            case ast.Dict(keys=keys, values=values):
                for each, value in zip(keys, values, strict=True):
                    if isinstance(each, ast.Constant) and each.value == key:
                        yield value
            case _:
                pass


def switched_off_at(option: str, near: Location) -> Location | None:
    """Return the one line that gives False to an option, as an argument, a default or a key.

    It is looked for in the file of a line, then in all modules.
    """

    def lines_in(tree: ast.Module) -> Iterator[int]:
        return _lines_switching_off(tree, option)

    return only_line(option, lines_in, [near.path]) or only_line(option, lines_in)


def _lines_switching_off(tree: ast.Module, option: str) -> Iterator[int]:
    for node in ast.walk(tree):
        pairs: list[tuple[str | None, ast.expr | None]] = []
        match node:
            case ast.keyword(arg=name, value=value):
                pairs = [(name, value)]
            case ast.Assign(targets=targets, value=value):
                pairs = [(_last_key(target), value) for target in targets]
            case ast.AnnAssign(target=target, value=value):
                pairs = [(_last_key(target), value)]
            case ast.Dict(keys=keys, values=values):
                written = [None if key is None else getattr(key, "value", None) for key in keys]
                pairs = list(zip(written, values, strict=True))
            case ast.arguments():
                names = [each.arg for each in (*node.posonlyargs, *node.args)]
                with_default = names[len(names) - len(node.defaults) :]
                pairs = list(zip(with_default, node.defaults, strict=True))
                only_named = [each.arg for each in node.kwonlyargs]
                pairs += zip(only_named, node.kw_defaults, strict=True)
            case _:
                pass
        for name, given in pairs:
            if name == option and isinstance(given, ast.Constant) and given.value is False:
                yield given.lineno


def division_of_loss(backward: Location) -> Location | None:
    """Return the line that last divides what this ``backward()`` is called on or given.

    That is the line itself, or one before it in the same function.
    """
    tree = tree_of(backward.path)
    if tree is None:
        return None
    scope = innermost(tree, backward.line) or tree
    names: set[str | None] = set()
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call) or name_of(node) != "backward":
            continue
        if node.lineno <= backward.line <= (node.end_lineno or node.lineno):
            if any(isinstance(each, ast.Div) for each in ast.walk(node)):
                return backward
            names |= {root_key(each) for each in ast.walk(node) if isinstance(each, ast.expr)}
    lines = []
    for node in ast.walk(scope):
        if not isinstance(node, (ast.Assign, ast.AugAssign)) or node.lineno >= backward.line:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        divides = any(isinstance(each, ast.Div) for each in ast.walk(node))
        if divides and not names.isdisjoint(map(root_key, targets)):
            lines.append(node.lineno)
    if not lines:
        return None
    return Location(backward.path, max(lines), function=backward.function)


def set_before_call(call: Location) -> Location | None:
    """Return the one line that sets what a call is given, to more than a constant.

    ``self.best = ...`` for a line ``model.load_state_dict(self.best)``; of what has a name alone.
    """
    tree = tree_of(call.path)
    scope = tree if tree is None else innermost(tree, call.line) or tree
    given = {
        (_last_key(argument), isinstance(argument, ast.Name))
        for node in ast.walk(scope or ast.Module([], []))
        if isinstance(node, ast.Call) and node.lineno == call.line
        for argument in node.args
        if isinstance(argument, (ast.Name, ast.Attribute))
    }
    if tree is None or scope is None or len(given) != 1:
        return None
    ((key, is_local),) = given
    lines = {
        node.lineno
        for node in ast.walk(scope if is_local else tree)
        if isinstance(node, ast.Assign)
        and not isinstance(node.value, (ast.Constant, ast.Tuple))
        and key in map(_last_key, node.targets)
    }
    if len(lines) != 1:
        return None
    (line,) = lines
    return Location(call.path, line, function=function_at(call.path, line))


def replaced_after(made: Location) -> Location | None:
    """Return the line that replaces a model, or a part of one, whose parameters a line hands on.

    ``model.head = ...`` after ``SGD(model.parameters())`` in the same function, or in the one other
    method that does so where the model is an attribute: ``self.model``.
    """
    tree = tree_of(made.path)
    if tree is None:
        return None
    scope = innermost(tree, made.line) or tree
    models = {
        root_key(node.func.value)
        for node in ast.walk(scope)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"parameters", "named_parameters"}
        and made.line <= node.lineno <= _end_of_statement(scope, made.line)
    } - {None}

    def replacing(scope: ast.AST) -> Iterator[int]:
        for node in ast.walk(scope):
            keys = [root_key(each) or "" for each in getattr(node, "targets", ())]
            if isinstance(node, ast.Assign) and any(
                key == model or key.startswith(f"{model}.") for key in keys for model in models
            ):
                yield node.lineno

    later = [line for line in replacing(scope) if line > made.line]
    if not later and any(str(model).startswith("self.") for model in models):
        later = [
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name != "__init__" and node is not scope
            for line in replacing(node)
        ]
        later = later if len(later) == 1 else []
    if not later:
        return None
    return Location(made.path, min(later), function=function_at(made.path, min(later)))


def _end_of_statement(scope: ast.AST, line: int) -> int:
    """Return the last line of the statement that begins on a line, or that line."""
    return max(
        (
            node.end_lineno or line
            for node in ast.walk(scope)
            if isinstance(node, ast.stmt) and node.lineno == line
        ),
        default=line,
    )


_VIEWS = frozenset({"detach", "view", "view_as", "reshape", "flatten", "squeeze", "float", "to"})
"""Methods that may return the memory of their tensor."""


def _is_reference(value: ast.expr) -> bool:
    """Return whether an expression is no more than another way to what it names."""
    match value:
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _VIEWS:
            return _is_reference(inner)
        case _:
            return False
