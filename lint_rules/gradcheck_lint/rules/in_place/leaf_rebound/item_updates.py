"""Find updates that put a computed tensor in the place of a leaf: ``w[k] = w[k] - w[k].grad``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.knowledge import HARMLESS_BUILTINS
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    bound_names,
    dotted_name,
    first_word,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from gradcheck_lint.model.module import FunctionModel

    _Text: TypeAlias = "Callable[[cst.CSTNode], str]"

__all__ = ["ItemUpdate", "item_updates"]
_COMPREHENSIONS: Final = (cst.ListComp, cst.DictComp, cst.GeneratorExp)
_LEAF_WORDS: Final = frozenset({"requires_grad_", "requires_grad", "retain_grad", "Parameter"})


class ItemUpdate(NamedTuple):
    """A statement that replaces items of a container by what it computes of their gradients."""

    node: cst.CSTNode
    container: str
    item: str


def item_updates(function: FunctionModel) -> Iterator[ItemUpdate]:
    """Yield the updates after which backward() fills the gradients of other tensors.

    That is where a loop around an update calls backward() again, or runs the method that updates
    what its object keeps; where nothing in there makes leaves again, or another container.
    """
    nodes = function.scope.nodes
    candidates = list(_updates(function, nodes))
    if not candidates:
        return
    repeated = {
        loop
        for event in function.events()
        if isinstance(event, Backward) and not event.by_engine
        for loop in event.loops
    }
    around = [list(walk(known.node)) for known in function.loops() if known.identity in repeated]
    own_nodes = list(nodes)
    if _keeps_its_own(function):
        around.append(own_nodes)
    for update in candidates:
        own = f"{function.scope.first_parameter}."
        for inside in around:
            if inside is own_nodes and not update.container.startswith(own):
                continue
            if any(node is update.node for node in inside) and not _is_seen_to(update, inside):
                yield update
                break


def _keeps_its_own(function: FunctionModel) -> bool:
    """Tell whether a method runs again and again, and no other one of its class makes leaves."""
    scopes, scope = function.module.scopes, function.scope
    others = (
        method
        for owner in scopes.lineage(scope.owner)
        for name, method in owner.methods.items()
        if name != "__init__" and method is not scope
    )
    if scope.owner is None or any(not _LEAF_WORDS.isdisjoint(each.words) for each in others):
        return False
    return repeats(function)


def _updates(function: FunctionModel, nodes: Sequence[cst.CSTNode]) -> Iterator[ItemUpdate]:
    text = function.module.text
    loops = [node for node in nodes if type(node) is cst.For]
    for node in nodes:
        if type(node) not in ASSIGNING:
            continue
        target, value = assigned_once(node)
        if type(target) is cst.Subscript and type(value) is cst.BinaryOperation:
            container = dotted_name(target.value)
            names = {text(target), *_items_within(loops, node, container)}
            item = next((name for name in names if _is_computed_of(value, name, text)), None)
        else:
            container = dotted_name(target)
            item = _item_of_comprehension(value, container, text)
        if container is not None and item is not None:
            yield ItemUpdate(node, container, item)


def _items_within(
    loops: Sequence[cst.For], node: cst.CSTNode, container: str | None
) -> Iterator[str]:
    """Yield the names of the items of a container that a loop around a statement goes through."""
    for loop in loops:
        if container is not None and any(inner is node for inner in walk(loop.body)):
            yield from _names_of_items(loop.target, loop.iter, container)


def _names_of_items(
    target: cst.BaseExpression, iterated: cst.BaseExpression, container: str
) -> Iterator[str]:
    """Yield the names that a loop gives the items of a container, and perhaps their keys."""
    path = dotted_name(iterated)
    wanted = {container, f"{container}.items", f"{container}.values"}
    if type(iterated) is cst.Call:
        path = dotted_name(iterated.func)
        if path in {"enumerate", "list", "zip"} and iterated.args:
            path = dotted_name(iterated.args[0].value)
    if path in wanted:
        yield from bound_names(target)


def _item_of_comprehension(
    value: cst.BaseExpression | None, container: str | None, text: _Text
) -> str | None:
    """Return what a comprehension over a container computes anew for each of its items."""
    if type(value) is cst.Call and dotted_name(value.func) in {"dict", "list", "tuple"}:
        value = value.args[0].value if value.args else None
    if not isinstance(value, _COMPREHENSIONS) or container is None:
        return None
    made = value.value if isinstance(value, cst.DictComp) else value.elt
    if type(made) is not cst.BinaryOperation:
        return None
    names = _names_of_items(value.for_in.target, value.for_in.iter, container)
    return next((name for name in names if _is_computed_of(made, name, text)), None)


def _is_computed_of(value: cst.BaseExpression, item: str, text: _Text) -> bool:
    """Tell whether an expression has an item and its gradient in it."""
    parts = [
        text(node)
        for node in walk(value)
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript))
    ]
    return f"{item}.grad" in parts and parts.count(item) > 1


def _is_seen_to(update: ItemUpdate, inside: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a loop may make leaves again, make the container anew, or be left."""
    root = first_word(update.container)
    own = {id(below) for below in walk(update.node)}
    for node in inside:
        if type(node) is cst.Name and node.value in _LEAF_WORDS:
            return True
        if isinstance(node, (cst.Break, cst.Return)):
            return True
        if isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.For, cst.CompFor)):
            bound = set(bound_names(node.target))
            if id(node) not in own and not bound.isdisjoint({root, update.container}):
                return True
        if type(node) is cst.Expr and type(node.value) is cst.Call:
            called = node.value
            is_plain = type(called.func) is cst.Name and called.func.value in HARMLESS_BUILTINS
            handed = {dotted_name(argument.value) for argument in called.args}
            if not is_plain and update.container in handed:
                return True
    return False
