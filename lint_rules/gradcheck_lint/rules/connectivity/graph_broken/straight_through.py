"""Find losses for a codebook that are computed of the straight-through value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Call, Forward
from gradcheck_lint.model.syntax import (
    assigned_once,
    dotted_name,
    last_word,
    literal_key,
    plain_string,
    positional,
)
from gradcheck_lint.rules.connectivity.graph_broken.terms import is_detach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["codebook_losses"]

_Path: TypeAlias = tuple[str | int, ...]
_Paths: TypeAlias = frozenset[_Path]
"""The keys that lead to straight-through values in something: ``()`` is the thing itself."""

_NOWHERE: Final[_Paths] = frozenset()
_ITSELF: Final[_Paths] = frozenset({()})
_MOST_CALLS = 4
_LONGEST_PATH = 3
_CODES: Final = re.compile(
    r"(?i)embed|codebook|codes?\b|dictionary|prototype|entries|centroid|cluster"
)


def codebook_losses(function: FunctionModel) -> Iterator[cst.Call]:
    """Yield each ``mse_loss(z_q, z.detach())`` where ``z_q`` is ``z + (code - z).detach()``.

    The codes stand inside of detach() there, so that the loss that is to move them moves what was
    quantized instead.
    """
    module = function.module
    if not module.mentions(b").detach()") or "detach" not in function.scope.words:
        return
    held = _given_by_callers(function)
    for node in function.scope.nodes:
        if type(node) is cst.Call and last_word(dotted_name(node.func)) in _DISTANCES:
            sides = positional(node)[:2]
            if len(sides) == _SIDES and any(map(is_detach, sides)):
                others = [side for side in sides if not is_detach(side)]
                if any(() in _paths_of(side, held, function, 0) for side in others):
                    yield node
        _bind(node, held, function, 0)


_DISTANCES: Final = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_SIDES = 2


def _given_by_callers(function: FunctionModel) -> dict[str, _Paths]:
    """Return what the parameters of a function hold, by the calls of it in the file."""
    given: dict[str, _Paths] = {}
    for caller in list(function.module.functions()):
        if function.scope not in _calls_in(caller).values():
            continue
        held: dict[str, _Paths] = {}
        for node in caller.scope.nodes:
            if type(node) is cst.Call and _called(node, caller) is function.scope:
                for name in function.scope.parameters:
                    value = argument_for(name, node, function.scope)
                    if value is not None:
                        paths = _paths_of(value, held, caller, 0)
                        given[name] = given.get(name, _NOWHERE) | paths
            _bind(node, held, caller, 0)
    return given


def _bind(node: cst.CSTNode, held: dict[str, _Paths], function: FunctionModel, depth: int) -> None:
    """Note what the names of an assignment hold from here on."""
    target, value = assigned_once(node)
    if target is None or value is None:
        return
    paths = _paths_of(value, held, function, depth)
    if isinstance(target, (cst.Tuple, cst.List)):
        for index, element in enumerate(target.elements):
            name = dotted_name(element.value)
            if name is not None:
                held[name] = _under(index, paths)
    elif (name := dotted_name(target)) is not None:
        held[name] = paths


def _under(key: str | int, paths: _Paths) -> _Paths:
    return frozenset(path[1:] for path in paths if path[:1] == (key,))


def _below(key: str | int, paths: _Paths) -> _Paths:
    return frozenset((key, *path) for path in paths if len(path) < _LONGEST_PATH)


def _paths_of(
    value: cst.BaseExpression, held: dict[str, _Paths], function: FunctionModel, depth: int
) -> _Paths:
    """Return the keys that lead to straight-through values of codes in an expression."""
    if _is_straight_through(value, function):
        return _ITSELF
    name, found = dotted_name(value), _NOWHERE
    if name is not None:
        found = held.get(name, _NOWHERE)
    elif isinstance(value, (cst.Tuple, cst.List)):
        for index, element in enumerate(value.elements):
            found |= _below(index, _paths_of(element.value, held, function, depth))
    elif type(value) is cst.Dict:
        for entry in value.elements:
            if type(entry) is cst.DictElement and type(entry.key) is cst.SimpleString:
                key = plain_string(entry.key)
                if key is not None:
                    found |= _below(key, _paths_of(entry.value, held, function, depth))
    elif type(value) is cst.Subscript:
        place = literal_key(value)
        if place is not None:
            found = _under(place, _paths_of(value.value, held, function, depth))
    elif type(value) is cst.Call and depth < _MOST_CALLS:
        called = _called(value, function)
        if called is not None:
            found = _returned_by(function.module.function(called), depth + 1)
    return found


def _returned_by(function: FunctionModel, depth: int) -> _Paths:
    """Return the keys that lead to straight-through values in what a function returns."""
    key, memo = ("straight-through", id(function.scope)), function.module.memo
    if key not in memo:
        memo[key] = _NOWHERE
        held: dict[str, _Paths] = {}
        found = _NOWHERE
        for node in function.scope.nodes:
            _bind(node, held, function, depth)
            if type(node) is cst.Return and node.value is not None:
                found |= _paths_of(node.value, held, function, depth)
        memo[key] = found
    known: _Paths = memo[key]
    return known


def _called(call: cst.Call, function: FunctionModel) -> FunctionScope | None:
    """Return the function of the file that is called, the ``forward`` where it is a module."""
    return called_function(call, function) or _calls_in(function).get(id(call))


def _calls_in(function: FunctionModel) -> dict[int, FunctionScope]:
    """Return the functions of the file that the calls of a function lead to."""
    key, memo, scopes = ("calls", id(function.scope)), function.module.memo, function.module.scopes
    if key not in memo:
        found: dict[int, FunctionScope] = {}
        for event in function.events():
            called = event.function if isinstance(event, Call) and not event.referenced else None
            for value in event.values if isinstance(event, Forward) else ():
                called = scopes.method(scopes.classes.get(value.name), "forward") or called
            if called is not None:
                found[id(event.node)] = called
        memo[key] = found
    known: dict[int, FunctionScope] = memo[key]
    return known


def _is_straight_through(value: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this is ``z + (code - z).detach()``, of a code that was looked up."""
    if type(value) is not cst.BinaryOperation or type(value.operator) is not cst.Add:
        return False
    for plain, other in ((value.left, value.right), (value.right, value.left)):
        if not is_detach(other):
            continue
        assert type(other) is cst.Call
        assert type(other.func) is cst.Attribute
        moved = other.func.value
        if (
            type(moved) is cst.BinaryOperation
            and type(moved.operator) is cst.Subtract
            and function.module.text(moved.right) == function.module.text(plain)
        ):
            return _is_code(moved.left, function)
    return False


def _is_code(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether a value was taken from a table of codes, by the names it was made with."""
    name = dotted_name(node)
    sources = [node] + [
        value
        for target, value in map(assigned_once, function.scope.nodes)
        if name is not None and value is not None and dotted_name(target) == name
    ]
    return any(_CODES.search(function.module.text(source)) for source in sources)
