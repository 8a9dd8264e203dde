"""GCS307: layers that a method puts into a model whose optimizer the constructor has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import has_weights
from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.flow import Attach
from gradcheck_lint.model.syntax import dotted_name, last_word, positional
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["attached_later", "is_later_method"]


def is_later_method(function: FunctionModel) -> bool:
    """Tell whether this is a method beside a constructor that makes an optimizer."""
    maker = _constructor(function)
    return maker is not None and "parameters" in maker.words


def attached_later(function: FunctionModel) -> Iterator[Violation]:
    """Yield every layer that a method attaches to what the constructor's optimizer owns."""
    maker = _constructor(function)
    if maker is None or not is_later_method(function):
        return
    made = _optimizer_of(maker, function)
    if made is None:
        return
    node, path, owned = made
    word = last_word(path)
    if _may_come_before(function, maker, node):
        return
    if word in function.scope.words or _is_made_elsewhere(function, maker, word):
        return
    itself = function.scope.first_parameter
    for event in function.events():
        if not isinstance(event, Attach) or event.loops:
            continue
        root = event.path.rpartition(".")[0]
        if not root or root != owned.replace(f"{maker.first_parameter}", f"{itself}", 1):
            continue
        if not event.attached or not all(has_weights(v, function) for v in event.attached):
            continue
        if _is_seen_to(function, last_word(event.path)):
            continue
        yield Violation(
            event.node,
            f"`{event.path}` is replaced after the constructor made `{path}` from the model's "
            "parameters: the new layer gets gradients and is never trained",
            Severity.WARNING,
            "make the optimizer anew afterwards, or give it the layer: "
            f'`{path}.add_param_group({{"params": {event.path}.parameters()}})`',
            ((node, "this optimizer still has the old parameters"),),
        )


def _may_come_before(function: FunctionModel, maker: FunctionScope, made: cst.CSTNode) -> bool:
    """Tell whether the constructor may call a method before it makes the optimizer."""
    own = function.scope.name.rpartition(".")[2]
    if own not in maker.words:
        return False
    nodes = list(maker.nodes)
    place = next(index for index, node in enumerate(nodes) if node is made)
    uses = [
        index for index, node in enumerate(nodes) if type(node) is cst.Name and node.value == own
    ]
    return not uses or min(uses) < place


def _constructor(function: FunctionModel) -> FunctionScope | None:
    scope = function.scope
    if scope.owner is None or isinstance(scope.node, cst.Module):
        return None
    maker = scope.owner.methods.get("__init__")
    return None if maker is scope else maker


def _optimizer_of(
    maker: FunctionScope, function: FunctionModel
) -> tuple[cst.CSTNode, str, str] | None:
    """Return where a constructor makes the one optimizer that it keeps, its path, and its model."""
    found = [
        (node, dotted_name(node.targets[0].target) or "")
        for node in maker.nodes_of(cst.Assign)
        if function.module.makes_optimizer(node.value)
    ]
    if len(found) != 1:
        return None
    ((node, path),) = found
    handed = positional(node.value) if type(node.value) is cst.Call else []
    first = handed[0] if handed else None
    if not path.startswith(f"{maker.first_parameter}.") or type(first) is not cst.Call:
        return None
    called = dotted_name(first.func) or ""
    if not called.endswith(".parameters") or first.args:
        return None
    return node, path, called.removesuffix(".parameters")


def _is_made_elsewhere(function: FunctionModel, maker: FunctionScope, word: str) -> bool:
    """Tell whether another function of the file may make the optimizer anew, or never steps it."""
    known = function.module.scopes
    scopes = [
        scope
        for scope in known.functions
        if scope.owner is None or any(maker.owner is one for one in known.lineage(scope.owner))
    ]
    if any(scope is not maker and assigns_attribute(scope, word) for scope in scopes):
        return True
    return not any({word, "step"} <= scope.words for scope in scopes)


def _is_seen_to(function: FunctionModel, word: str) -> bool:
    """Tell whether something else is done with a layer of this name than to run it."""
    for scope in function.module.scopes.functions:
        if word not in scope.words:
            continue
        for node in scope.nodes_of(cst.Attribute, cst.Call):
            if type(node) is cst.Attribute and node.attr.value in _SEES_TO:
                if word in (dotted_name(node.value) or "").split("."):
                    return True
            elif type(node) is cst.Call and any(
                last_word(dotted_name(argument.value)) == word for argument in node.args
            ):
                return True
    return False


_SEES_TO = frozenset(
    {"parameters", "named_parameters", "requires_grad_", "requires_grad", "load_state_dict"}
)
