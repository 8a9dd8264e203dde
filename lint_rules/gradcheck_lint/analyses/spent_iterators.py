"""Find what is given an iterator of parameters that something has gone through before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given, given_by_callers
from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.model.function_class import returns
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    bound_names,
    dotted_name,
    is_none,
    keyword,
    last_word,
    plain_string,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["SpentUse", "spent_uses"]


class SpentUse(NamedTuple):
    """A use of an iterator that has nothing left.

    ``how`` is "optimizer", "clip" or "loop"; ``by`` is what has used it up, or makes it, where the
    use itself comes again: ``again`` is True then. ``is_sure`` tells that each use finds nothing,
    or each but the first.
    """

    path: str
    how: str
    node: cst.CSTNode
    by: cst.CSTNode
    again: bool
    is_sure: bool


class _Use(NamedTuple):
    how: str
    node: cst.CSTNode
    place: int


def spent_uses(function: FunctionModel) -> list[SpentUse]:
    """Return the uses, in one function, of iterators that it or its object makes once."""
    key = ("spent iterators", id(function.scope))
    memo = function.module.memo
    if key not in memo:
        memo[key] = [*_of_names(function), *_of_attributes(function)]
    found: list[SpentUse] = memo[key]
    return found


def _of_names(function: FunctionModel) -> Iterator[SpentUse]:
    if not function.module.mentions(b"parameters(", b"buffers("):
        return
    nodes = function.scope.nodes
    for name, made, is_sure in (*_made_here(function), *_handed_in(function)):
        begin = _place(nodes, made)
        uses = [use for path in _aliases(name, function) for use in _uses(path, function)]
        uses = sorted((use for use in uses if use.place > begin), key=lambda use: use.place)
        for index, use in enumerate(uses):
            if use.how == "read":
                continue
            before = [each for each in uses[:index] if _comes_first(function, each.node, use.node)]
            if before:
                yield SpentUse(
                    name, use.how, use.node, before[0].node, again=False, is_sure=is_sure
                )
            elif _is_in_loop(nodes, use.node, made):
                yield SpentUse(name, use.how, use.node, made, again=True, is_sure=is_sure)


def _made_here(function: FunctionModel) -> Iterator[tuple[str, cst.BaseExpression, bool]]:
    """Yield each name of an iterator that is made in a function, how, and whether it surely is."""
    for name, sources in sources_of(function.scope).items():
        if sources is None or len(sources) != 1 or name in function.scope.parameters:
            continue
        is_sure = _is_iterator(sources[0], function)
        if is_sure or (is_sure is False and _is_of_torch(name, function)):
            yield name, sources[0], is_sure


def _handed_in(function: FunctionModel) -> Iterator[tuple[str, cst.BaseExpression, bool]]:
    """Yield each parameter that a caller in the file gives an iterator, and what that is."""
    for name in function.scope.parameters:
        if name in sources_of(function.scope):
            continue
        of_torch = any(
            all_are(values, Kind.PARAMETERS) for _, values in given_by_callers(function, name)
        )
        for caller, made in expressions_given(function, name):
            is_sure = _is_iterator(made, caller)
            if is_sure or (is_sure is False and of_torch):
                yield name, made, False
                break


_NAMED: Final = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"})


def _aliases(name: str, function: FunctionModel) -> Iterator[str]:
    """Yield a name and the others that only it is assigned to."""
    yield name
    for other, sources in sources_of(function.scope).items():
        if sources is not None and len(sources) == 1 and dotted_name(sources[0]) == name:
            yield from _aliases(other, function)


def _words(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(each.value for each in walk(node) if type(each) is cst.Name)


def _is_iterator(node: cst.BaseExpression, function: FunctionModel) -> bool | None:
    """Tell whether this can be gone through once; False where a class may have it otherwise."""
    if type(node) is cst.GeneratorExp:
        return True
    if type(node) is not cst.Call:
        return None
    made = _returned(node, function)
    if made:
        return True if all(map(_is_made_once, made)) else None
    name = dotted_name(node.func) or ""
    if name in _ITERATORS or name.startswith("itertools."):
        return True
    is_parameters = type(node.func) is cst.Attribute and node.func.attr.value == "parameters"
    return False if is_parameters and not node.args else None


def _is_made_once(node: cst.BaseExpression) -> bool:
    name = dotted_name(node.func) if type(node) is cst.Call else None
    return type(node) is cst.GeneratorExp or name in _ITERATORS


def _returned(call: cst.Call, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return what a function of the file that makes parameters returns, whichever way it goes."""
    scope = called_function(call, function)
    if scope is None or _NAMED.isdisjoint(scope.words):
        return []
    return [way.value for way in returns(scope) if way.value is not None]


_ITERATORS: Final = frozenset({"filter", "map", "zip", "iter", "chain", "chain.from_iterable"})


def _is_of_torch(name: str, function: FunctionModel) -> bool:
    return all_are(function.bindings.get(name, frozenset()), Kind.PARAMETERS)


def _place(nodes: Sequence[cst.CSTNode], node: cst.CSTNode) -> int:
    return next((index for index, each in enumerate(nodes) if each is node), -1)


def _uses(path: str, function: FunctionModel, *, depth: int = 0) -> Iterator[_Use]:
    """Yield what goes through all that a dotted name holds."""
    if first_of(path) not in function.scope.words:
        return
    for place, node in enumerate(function.scope.nodes):
        how = _how(node, path, function, depth)
        if how is not None:
            yield _Use(how, node, place)


def first_of(path: str) -> str:
    """Return the first name of a dotted one."""
    return path.partition(".")[0]


def _how(node: cst.CSTNode, path: str, function: FunctionModel, depth: int) -> str | None:
    if type(node) is cst.For:
        is_left = any(isinstance(each, (cst.Break, cst.Return)) for each in walk(node.body))
        if path not in _iterated(node.iter) or is_left:
            return None
        written = set(_written(node))
        return "clip" if "grad" in written else "loop" if written else "read"
    if type(node) is cst.CompFor:
        return "read" if path in _iterated(node.iter) else None
    return _how_called(node, path, function, depth) if type(node) is cst.Call else None


def _how_called(node: cst.Call, path: str, function: FunctionModel, depth: int) -> str | None:
    if function.module.makes_optimizer(node):
        return "optimizer" if path in _handed(node, function) else None
    given = [dotted_name(argument.value) for argument in node.args]
    if path not in given:
        return None
    name = last_word(dotted_name(node.func))
    if name.startswith("clip_grad_"):
        return "clip" if given.index(path) == 0 else None
    return "read" if name in _DRAINING else _in_callee(node, path, function, depth)


def _written(loop: cst.For) -> Iterator[str]:
    """Yield "grad" where a loop changes gradients of what it goes through, "" where other things.

    That gradients are cleared is no change of what a step uses.
    """
    names = frozenset(bound_names(loop.target))
    for node in walk(loop.body):
        targets: list[cst.BaseExpression] = []
        clears = False
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            targets = [node.func.value] if node.func.attr.value.endswith("_") else []
            clears = node.func.attr.value == "zero_"
        elif type(node) is cst.AugAssign:
            targets = [node.target]
        elif type(node) is cst.Assign:
            written = [known.target for known in node.targets]
            targets = [each for each in written if type(each) is not cst.Name]
            clears = is_none(node.value)
        for target in targets:
            while type(target) is cst.Subscript:
                target = target.value  # noqa: PLW2901 - what the item is of
            name = dotted_name(target)
            if name is not None and first_of(name) in names:
                is_grad = not clears and name.removesuffix(".data").endswith(".grad")
                yield "grad" if is_grad else ""


_DRAINING: Final = frozenset(
    {"sum", "list", "tuple", "set", "len", "max", "min", "sorted", "dict", "frozenset"}
)


def _iterated(over: cst.BaseExpression) -> list[str | None]:
    """Return what a loop goes through: ``params``, also in ``zip(params, grads)``."""
    if type(over) is cst.Call and dotted_name(over.func) in {"zip", "enumerate"}:
        return [dotted_name(argument.value) for argument in over.args]
    return [dotted_name(over)]


def _handed(call: cst.Call, function: FunctionModel) -> Iterator[str]:
    """Yield the names of what an optimizer is given, also in groups."""
    for value in (*positional(call)[:1], keyword(call, "params")):
        if value is None:
            continue
        name = dotted_name(value)
        sources = sources_of(function.scope).get(name or "") or ()
        if name is not None:
            yield name
        for node in walk(sources[0] if len(sources) == 1 else value):
            key = node.key if type(node) is cst.DictElement else None
            if type(key) is cst.SimpleString and plain_string(key) == "params":
                yield dotted_name(node.value) or ""  # type: ignore[attr-defined]


def _in_callee(call: cst.Call, path: str, function: FunctionModel, depth: int) -> str | None:
    """Return what a function of the file does with an argument, if it goes through all of it."""
    scope = called_function(call, function)
    if scope is None or depth or type(scope.node) is not cst.FunctionDef:
        return None
    called = function.module.function(scope)
    for parameter in scope.parameters:
        if dotted_name(argument_for(parameter, call, scope)) != path:
            continue
        found = [use.how for use in _uses(parameter, called, depth=depth + 1)]
        if found and _CLIPS in scope.name.lower() and "grad" in scope.words:
            return "clip"
        return next((how for how in ("optimizer", "clip", "loop") if how in found), None) or (
            "read" if found else None
        )
    return None


_CLIPS: Final = "clip"


def _comes_first(function: FunctionModel, first: cst.CSTNode, later: cst.CSTNode) -> bool:
    """Tell whether one statement runs before another one whenever that does."""
    around: cst.CSTNode = function.scope.node
    for block in walk(function.scope.node):
        is_block = isinstance(block, (cst.BaseSuite, cst.Lambda, cst.FunctionDef))
        if is_block and block is not around and any(node is first for node in walk(block)):
            around = block
    return any(node is later for node in walk(around))


def _is_in_loop(nodes: Sequence[cst.CSTNode], use: cst.CSTNode, made: cst.CSTNode) -> bool:
    """Tell whether a loop has a use, and not what makes the iterator."""
    for loop in nodes:
        if isinstance(loop, (cst.For, cst.While)) and loop is not use:
            inside = {id(node) for node in walk(loop.body)}
            if id(use) in inside and id(made) not in inside:
                return True
    return False


def _of_attributes(function: FunctionModel) -> Iterator[SpentUse]:
    """Yield the uses of an iterator that an object keeps, in methods that run again."""
    owner, first = function.scope.owner, function.scope.first_parameter
    if owner is None or first is None:
        return
    for attribute, (maker, made) in _kept(function).items():
        uses = list(_uses(f"{first}.{attribute}", function))
        own = _is_called_twice(function)
        others = list(
            _uses(f"{maker.first_parameter}.{attribute}", function.module.function(maker))
        )
        for index, use in enumerate(uses):
            if use.how == "read":
                continue
            path = f"{first}.{attribute}"
            before = [each for each in uses[:index] if _comes_first(function, each.node, use.node)]
            if maker is not function.scope and others:
                before = [*before, others[0]]
            if before:
                yield SpentUse(path, use.how, use.node, before[0].node, again=False, is_sure=False)
            elif maker is not function.scope and own:
                yield SpentUse(path, use.how, use.node, made, again=True, is_sure=False)


def _is_called_twice(function: FunctionModel) -> bool:
    """Return whether a loop runs a method, or several calls of the file do."""
    name = last_word(function.scope.name)
    calls = sum(
        type(node) is cst.Call and last_word(dotted_name(node.func)) == name
        for other in function.module.scopes.functions
        if name in other.words
        for node in other.nodes
    )
    return calls > 1 or repeats(function)


def _kept(
    function: FunctionModel,
) -> dict[str, tuple[FunctionScope, cst.BaseExpression]]:
    """Return the attributes of a class that are iterators of parameters, made in one place."""
    owner, memo = function.scope.owner, function.module.memo
    assert owner is not None
    key = ("iterators of a class", id(owner))
    if key not in memo:
        found: dict[str, list[tuple[FunctionScope, cst.BaseExpression]]] = {}
        for method in owner.methods.values():
            for target, value in method.assignments:
                root, _, attribute = (dotted_name(target) or "").partition(".")
                if root == method.first_parameter and attribute:
                    found.setdefault(attribute, []).append((method, value))
        memo[key] = {
            attribute: made[0]
            for attribute, made in found.items()
            if len(made) == 1
            and any(
                _is_of_parameters(value, known)
                for value, known in _given(made[0][1], function.module.function(made[0][0]))
            )
        }
    kept: dict[str, tuple[FunctionScope, cst.BaseExpression]] = memo[key]
    return kept


def _given(
    node: cst.BaseExpression, function: FunctionModel
) -> Iterator[tuple[cst.BaseExpression, FunctionModel]]:
    """Yield what is kept, and what the callers in the file give where that is a parameter."""
    yield node, function
    name = dotted_name(node)
    if name in function.scope.parameters and name not in sources_of(function.scope):
        for caller, value in expressions_given(function, name):
            yield value, caller


def _is_of_parameters(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this is an iterator over parameters."""
    if _is_iterator(node, function) is None:
        return False
    is_made_here = not _NAMED.isdisjoint(_words(node))
    return is_made_here or (type(node) is cst.Call and bool(_returned(node, function)))
