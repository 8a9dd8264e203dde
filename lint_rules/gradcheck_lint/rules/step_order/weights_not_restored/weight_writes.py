"""Find what replaces the weights of a model, in a function and in those that it calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import class_handed_in
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, first_word, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["Write", "replaces_itself", "writes_in"]

_MOST_CALLS: Final = 40  # what is cut off is remembered so: far from what programs have
_AVERAGE: Final = re.compile(
    r"(?:^|_)(?:ema|swa|avg|averaged?|shadow|mean|polyak)(?:_|$)", re.IGNORECASE
)
_COPIES: Final = frozenset(
    {"clone", "deepcopy", "detach", "zeros_like", "empty_like", "ones_like", "state_dict", "copy"}
)
_LISTING: Final = frozenset({"parameters", "named_parameters"})
_BY_NAME: Final = frozenset({"copy_to", "apply_shadow"})
"""Methods by which classes of other packages put their average into a model."""


class Write(NamedTuple):
    """A statement that gives weights other contents.

    Attributes:
        node: the call or assignment.
        owner: the dotted name of the model, or of the object whose weights it has.
        is_of_object: whether the weights are those that an object keeps a list of.
        is_kept: whether the contents come of what an object keeps, or of an average.
        called: the function that writes, where that is called.
        alias: another name of the model, by which the write has it.
    """

    node: cst.CSTNode
    owner: str
    is_of_object: bool
    is_kept: bool
    called: FunctionScope | None = None
    alias: str | None = None


def replaces_itself(function: FunctionModel) -> bool:
    """Return whether a function copies what is kept into weights, by its text alone."""
    return not _BY_NAME.isdisjoint(function.scope.words) or any(
        write.is_kept for write in _direct(function)
    )


def writes_in(function: FunctionModel, depth: int = 0) -> list[Write]:
    """Return what replaces weights of objects that a function has from outside."""
    key = ("weights that a function writes", id(function.scope))
    known: list[Write] | None = function.module.memo.get(key)
    if known is None:
        function.module.memo[key] = known = []
        # A generator puts back what it has replaced, once its caller goes on.
        if not function.scope.nodes_of(cst.Yield):
            below = _by_calls(function, depth) if depth < _MOST_CALLS else ()
            known = [*_direct(function), *below]
        function.module.memo[key] = known
    return known


def _direct(function: FunctionModel) -> Iterator[Write]:
    for node in function.scope.nodes_of(cst.For, cst.Call):
        if type(node) is cst.For:
            yield from _in_loop(node, function)
        elif type(node) is cst.Call and type(node.func) is cst.Attribute:
            owner = dotted_name(node.func.value)
            words = {each.value for argument in node.args for each in _names(argument)}
            if node.func.attr.value == "load_state_dict" and owner and _may_be_model(owner):
                is_kept = any(map(_AVERAGE.search, words))
                yield Write(node, owner, is_of_object=False, is_kept=is_kept)


def _may_be_model(path: str) -> bool:
    return not any(word in path for word in ("optim", "sched", "scaler", "opt_"))


def _in_loop(loop: cst.For, function: FunctionModel) -> Iterator[Write]:
    """Yield the write of a loop over weights, if it copies something that is kept into them."""
    written = [name for node in walk(loop.body) for name in _copied_into(node)]
    sources = {name.value for name in _names(loop.body)}
    by_name = {
        dotted_name(item.value) or ""
        for node in walk(loop.body)
        if next(_copied_into(node), None) is not None
        for item in walk(node)
        if type(item) is cst.Subscript
    }
    for name, iterated in _targets(loop):
        if name not in written:
            continue
        owner, is_list = _owner(iterated)
        if owner is None or _is_copy(owner, function):
            continue
        kept = [other for given, other in _targets(loop) if given != name and given in sources]
        is_kept = any(
            _is_copy(_owner(other)[0] or "", function)
            or _AVERAGE.search(_owner(other)[0] or "") is not None
            for other in kept
        ) or any(_is_copy(path, function) or _AVERAGE.search(path) for path in by_name)
        yield Write(loop, owner, is_of_object=is_list and "." in owner, is_kept=is_kept)


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    return (each for each in walk(node) if type(each) is cst.Name)


def _copied_into(node: cst.CSTNode) -> Iterator[str]:
    """Yield ``p`` of ``p.data.copy_(x)``, ``p.copy_(x)`` and ``p.data = x``."""
    targets: list[cst.CSTNode | None] = []
    if (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value == "copy_"
    ):
        targets.append(node.func.value)
    targets += [each for each, _ in assigned_pairs(node) if type(each) is cst.Attribute]
    for target in targets:
        name = dotted_name(target) or ""
        if type(node) is cst.Call or name.endswith(".data"):
            yield name.removesuffix(".data")


def _targets(loop: cst.For) -> list[tuple[str, cst.BaseExpression]]:
    """Return the names that a loop binds, each with what they are taken from."""
    iterated = loop.iter
    if type(iterated) is cst.Call and dotted_name(iterated.func) == "enumerate":
        return []
    names = (
        [dotted_name(each.value) or "" for each in loop.target.elements]
        if type(loop.target) is cst.Tuple
        else [dotted_name(loop.target) or ""]
    )
    if type(iterated) is cst.Call and dotted_name(iterated.func) == "zip":
        return list(zip(names, [each.value for each in iterated.args], strict=False))
    # Of names and parameters, the second are written.
    return [(name, iterated) for name in names]


def _owner(iterated: cst.BaseExpression) -> tuple[str | None, bool]:
    """Return whose weights a loop goes through, and whether that is a list of them."""
    if type(iterated) is cst.Call and type(iterated.func) is cst.Attribute:
        if iterated.func.attr.value in _LISTING:
            return dotted_name(iterated.func.value), False
        return None, False
    return dotted_name(iterated), True


def _is_copy(path: str, function: FunctionModel) -> bool:
    """Return whether an attribute of self, or a name, is given copies of weights."""
    scope = function.scope
    root, _, attribute = path.partition(".")
    sources: list[cst.BaseExpression] = []
    if attribute and scope.owner is not None and root == scope.first_parameter:
        for method in scope.owner.methods.values():
            sources += _given(f"{method.first_parameter}.{attribute}", method)
    else:
        sources += _given(path, scope)
    return any(
        type(node) is cst.Name and node.value in _COPIES
        for source in sources
        for node in walk(source)
    )


def _given(path: str, scope: FunctionScope) -> Iterator[cst.BaseExpression]:
    for target, value in scope.assignments:
        if dotted_name(target) == path:
            yield value


def _by_calls(function: FunctionModel, depth: int) -> Iterator[Write]:
    for event in function.events():
        if not isinstance(event, Call) or type(event.node) is not cst.Call or event.referenced:
            continue
        scope = event.function or _handed_in(event, function)
        if scope is None:
            yield from _of_other_package(event.node)
            continue
        if scope is function.scope or event.is_constructor:
            continue
        for write in writes_in(function.module.function(scope), depth + 1):
            owner = _at_caller(write, event.node, scope)
            if owner is not None:
                yield write._replace(node=event.node, owner=owner, called=scope)


def _handed_in(event: Call, function: FunctionModel) -> FunctionScope | None:
    """Return the method that is called on an object which all callers hand over."""
    called = event.node.func if type(event.node) is cst.Call else None
    name = dotted_name(called.value) if type(called) is cst.Attribute else None
    if name is None or event.method is None:
        return None
    owner: ClassScope | None = class_handed_in(function, name)
    return function.module.scopes.method(owner, event.method)


def _of_other_package(node: cst.Call) -> Iterator[Write]:
    """Yield ``average.copy_to(model.parameters())`` of a class that is not known."""
    if type(node.func) is not cst.Attribute or node.func.attr.value not in _BY_NAME:
        return
    for argument in node.args:
        owner, _ = _owner(argument.value)
        if owner is not None:
            yield Write(node, owner, is_of_object=False, is_kept=True)


def _at_caller(write: Write, call: cst.Call, called: FunctionScope) -> str | None:
    """Return the name that the written object has where the function is called."""
    root = first_word(write.owner)
    rest = write.owner.removeprefix(root)
    if called.owner is not None and root == called.first_parameter:
        receiver = dotted_name(call.func.value) if type(call.func) is cst.Attribute else None
        return None if receiver is None else receiver + rest
    given = argument_for(root, call, called)
    if given is None:
        return None
    owner, _ = _owner(given)
    return None if owner is None else owner + rest
