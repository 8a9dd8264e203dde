"""Know which networks are copies of others, what brings them up to date, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function, copied
from gradcheck_lint.analyses.object_uses import argument_for, parents_of
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    first_word,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Copy", "Follow", "Mention", "copies_in", "follows", "mentions_of", "unmoved"]

_MOST_CALLS: Final = 3
_MOVING: Final = SAME_MODULE_METHODS | {"eval", "train"}


class Copy(NamedTuple):
    """A network that a function makes with the values of another one."""

    name: str
    original: str
    node: cst.CSTNode


class Follow(NamedTuple):
    """What gives the tensors of one network the values of others, or moves them there.

    ``what`` is the method that lists the tensors, "" for one that a caller has to tell.
    """

    copy: str
    originals: frozenset[str]
    what: str
    node: cst.CSTNode


class Mention(NamedTuple):
    """Where a network stands in a file, and what is done with it there.

    ``how`` is "run", "eval", "train", "read", "frozen", "made", or "used" for anything else.
    """

    how: str
    node: cst.CSTNode
    function: FunctionModel


def unmoved(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what makes the network of ``Net().to(device).eval()``."""
    while (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value in _MOVING
    ):
        node = node.func.value
    return node


def copies_in(function: FunctionModel) -> list[Copy]:
    """Return the networks that a function makes as copies, whole or by their parameters."""
    found: dict[str, Copy] = {}
    made = {}
    held = {
        dotted_name(unmoved(value)): dotted_name(target)
        for target, value in function.scope.assignments
        if type(target) is cst.Attribute
    }
    for target, value in function.scope.assignments:
        name, source = dotted_name(target), copied(unmoved(value), function)
        original = None if source is None else dotted_name(unmoved(source))
        original = held.get(original) or original
        if name is not None and original is not None:
            found[name] = Copy(name, original, value)
        elif name is not None:
            made[name] = value
    for follow in _direct(function.scope):
        if follow.copy in made and len(follow.originals) == 1:
            (original,) = follow.originals
            found[follow.copy] = Copy(follow.copy, original, made[follow.copy])
    return list(found.values())


def follows(function: FunctionModel, depth: int = 0) -> list[Follow]:
    """Return what brings networks up to date in a function, by the names that they have there."""
    key = ("networks that follow", id(function.scope))
    memo = function.module.memo
    if key not in memo:
        memo[key] = []
        below = _by_calls(function, depth) if depth < _MOST_CALLS else ()
        memo[key] = [*_direct(function.scope), *below]
    found: list[Follow] = memo[key]
    return found


def _direct(scope: FunctionScope) -> Iterator[Follow]:
    for node in scope.nodes_of(cst.For, cst.Call):
        if type(node) is cst.Call and last_word(dotted_name(node.func)) == "load_state_dict":
            given = positional(node)
            state = given[0] if given else None
            if type(state) is cst.Call and last_word(dotted_name(state.func)) == "state_dict":
                one, other = (
                    (dotted_name(each.func) or "").rpartition(".")[0] for each in (node, state)
                )
                yield Follow(one, frozenset({other}), "state_dict", node)
        elif type(node) is cst.For and type(node.iter) is cst.Call:
            yield from _in_loop(node, node.iter, node)
        elif type(node) is cst.For and type(node.iter) is cst.Name:
            for target, value in scope.assignments:
                if dotted_name(target) == node.iter.value and type(value) is cst.Call:
                    yield from _in_loop(node, value, value)


def _in_loop(loop: cst.For, pairs: cst.Call, place: cst.CSTNode) -> Iterator[Follow]:
    """Yield what a loop over the tensors of two networks writes to."""
    if dotted_name(pairs.func) != "zip" or type(loop.target) is not cst.Tuple:
        return
    written = frozenset(_written(loop.body))
    sides = [
        (any(type(each) is cst.Name and each.value in written for each in walk(target)), value)
        for target, value in zip(
            (each.value for each in loop.target.elements), positional(pairs), strict=False
        )
    ]
    others = frozenset(
        name for is_written, value in sides if not is_written for name, _ in _listed(value)
    )
    for is_written, value in sides:
        for name, what in _listed(value) if is_written else ():
            yield Follow(name, others, what, place)


def _written(body: cst.CSTNode) -> Iterator[str]:
    """Yield the names whose tensors are written in place, or given others."""
    for node in walk(body):
        place: cst.CSTNode | None = None
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            method = node.func.attr.value
            place = node.func.value if method.endswith("_") and not method.endswith("__") else None
        elif type(node) is cst.AssignTarget or type(node) is cst.AugAssign:
            place = node.target
        while isinstance(place, (cst.Attribute, cst.Call, cst.Subscript)):
            place = place.func if type(place) is cst.Call else place.value  # type: ignore[union-attr]
        if type(place) is cst.Name:
            yield place.value


def _listed(value: cst.BaseExpression) -> Iterator[tuple[str, str]]:
    """Yield the networks whose tensors these are, and what lists them."""
    if isinstance(value, (cst.List, cst.Tuple)):
        for element in value.elements:
            yield from _listed(element.value)
        return
    while type(value) is cst.Call:
        method = last_word(dotted_name(value.func))
        if method in {"list", "tuple", "chain"} and value.args:
            for argument in value.args:
                yield from _listed(argument.value)
            return
        if type(value.func) is not cst.Attribute:
            return
        if value.func.attr.value in _LISTING:
            name = dotted_name(value.func.value)
            if name is not None:
                yield name, value.func.attr.value
            return
        value = value.func.value
    name = dotted_name(value)
    if name is not None:
        yield name, ""


_LISTING: Final = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "modules"}
)


def _by_calls(function: FunctionModel, depth: int) -> Iterator[Follow]:
    for call in function.scope.nodes_of(cst.Call):
        called = called_function(call, function) or _method_of_object(call, function)
        if called is None or called is function.scope:
            continue
        for known in follows(function.module.function(called), depth + 1):
            for name, what in _at_caller(known.copy, call, called):
                others = (
                    name
                    for original in known.originals
                    for name, _ in _at_caller(original, call, called)
                )
                yield Follow(name, frozenset(others), known.what or what, call)


def _method_of_object(call: cst.Call, function: FunctionModel) -> FunctionScope | None:
    event = function.call_at(call) if type(call.func) is cst.Attribute else None
    return None if event is None or event.is_constructor else event.function


def _at_caller(name: str, call: cst.Call, called: FunctionScope) -> Iterator[tuple[str, str]]:
    """Yield what is called so in a function by its name where that is called."""
    root = first_word(name)
    rest = name.removeprefix(root)
    if called.owner is not None and root == called.first_parameter:
        receiver = dotted_name(call.func.value) if type(call.func) is cst.Attribute else None
        if receiver is not None:
            yield receiver + rest, ""
    given = argument_for(root, call, called)
    for path, what in _listed(given) if given is not None else ():
        yield path + rest, what


def mentions_of(copy: Copy, function: FunctionModel) -> list[Mention] | None:
    """Return what a file does with a network that a function makes; None if that is not in sight.

    An attribute is followed by its name through the file.
    """
    module, word = function.module, last_word(copy.name)
    if _by_text(module, word):
        return None
    is_own = "." in copy.name
    found: list[Mention] = []
    for other in list(module.functions()) if is_own else [function]:
        if word not in other.scope.words:
            continue
        if not is_own and any(word in inner.words for inner in other.scope.nested.values()):
            return None
        parents = parents_of(other)
        for node in other.scope.nodes:
            if type(node) is cst.Attribute and is_own and node.attr.value == word:
                found.append(_mention(node, parents, other))
            elif type(node) is cst.Name and not is_own and node.value == word:
                above = parents.get(id(node))
                if not (type(above) is cst.Attribute and above.attr is node):
                    found.append(_mention(node, parents, other))
    return found


def _by_text(module: ModuleModel, word: str) -> bool:
    """Return whether something may be reached by a text that has its name."""
    key = "texts that may be names"
    if key not in module.memo:
        module.memo[key] = " ".join(
            node.value
            for node in module.nodes_of(cst.SimpleString)
            if len(node.value) < 40  # noqa: PLR2004 - a name is short
        )
    texts: str = module.memo[key]
    return word in texts or module.mentions(b"getattr(self", b"setattr(", b"vars(", b"__dict__")


def _mention(
    node: cst.CSTNode, parents: dict[int, cst.CSTNode], function: FunctionModel
) -> Mention:
    parent = parents.get(id(node))
    method = ""
    whole = node
    if type(parent) is cst.Attribute and parent.value is whole:
        method, whole = parent.attr.value, parent
        parent = parents.get(id(whole))
    above = parent
    while isinstance(above, (cst.Element, cst.Tuple)):
        above = parents.get(id(above))
    if isinstance(above, cst.AssignTarget) and not method:
        return Mention("made", node, function)
    if type(parent) is cst.Call and parent.func is whole:
        return Mention(_called(method, parent, parents), parent, function)
    is_one = method and type(parent) is not cst.Attribute and method not in {"data", "forward"}
    return Mention("read" if is_one else "used", node, function)


def _called(method: str, call: cst.Call, parents: dict[int, cst.CSTNode]) -> str:
    """Tell what calling a network, or a method of it, does with it."""
    how = "run"
    if method == "eval" or (method and "requires_grad" not in method and _is_off(call)):
        how = "eval"
    elif method == "train":
        how = "train"
    elif method == "requires_grad_" or (method in _LISTING and _is_frozen_by(call, parents)):
        how = "frozen"
    elif method == "state_dict" or method in _MOVING:
        how = "read"
    elif method in _LISTING or any(word in method for word in _WRITING):
        how = "used"
    return how


def _is_off(call: cst.Call) -> bool:
    return len(call.args) == 1 and boolean(call.args[0].value) is False


_WRITING: Final = ("update", "copy", "load", "sync", "soft", "move", "set_", "step", "add_", "reg")
"""Parts of the names of methods that may change a network."""


def _is_frozen_by(listing: cst.Call, parents: dict[int, cst.CSTNode]) -> bool:
    """Return whether a loop over parameters does nothing but to freeze them."""
    node: cst.CSTNode | None = listing
    while node is not None and type(node) is not cst.For:
        node = parents.get(id(node))
        if isinstance(node, cst.BaseSmallStatement):
            return False
    if type(node) is not cst.For:
        return False
    return all(
        last_word(dotted_name(each)) in {"requires_grad", "requires_grad_"}
        for each in _written_or_called(node.body)
    )


def _written_or_called(body: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for node in walk(body):
        if type(node) is cst.AssignTarget:
            yield node.target
        elif type(node) is cst.Call:
            yield node.func
