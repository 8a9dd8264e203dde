"""Find rows whose gradient is set to zero, and that weight decay changes all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.settings import constant_of, number
from gradcheck_lint.model.flow import Clip, InPlace, Step
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    dotted_name,
    integer,
    keyword,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["Decayed", "decayed_rows"]


class Decayed(NamedTuple):
    """Where a gradient is masked, and the optimizer that decays what it belongs to."""

    masked: cst.CSTNode
    optimizer: cst.Call
    is_known: bool


def decayed_rows(function: FunctionModel) -> Iterator[Decayed]:
    """Yield the masking of a gradient whose optimizer, the nearest in the file, decays weights."""
    if not _WORDS & function.scope.words:
        return
    masked = next(_masks(function), None)
    if masked is None or _restores(function.module):
        return
    near = _nearest_optimizers(function)
    decays = [_decay(call, maker) for maker, call in near]
    if decays and 0 not in decays:
        yield Decayed(masked, near[0][1], None not in decays)


_WORDS: Final = frozenset({"grad", "register_hook"})


def _masks(function: FunctionModel) -> Iterator[cst.CSTNode]:
    """Yield what sets a part of a gradient to zero."""
    for node in function.scope.nodes:
        if type(node) is cst.Assign:
            is_mask = any(_masks_target(each.target, node.value, function) for each in node.targets)
        elif type(node) is cst.AugAssign:
            is_product = type(node.operator) is cst.MultiplyAssign
            is_mask = is_product and _is_gradient(node.target, function) and _names_mask(node.value)
        else:
            is_mask = type(node) is cst.Call and _masks_by_call(node, function)
        if is_mask:
            yield node


def _masks_target(
    target: cst.BaseExpression, value: cst.BaseExpression, function: FunctionModel
) -> bool:
    """Return whether this is ``p.grad[rows] = 0`` or ``p.grad = p.grad * mask``."""
    if type(target) is cst.Subscript:
        return _is_masking(target) and _is_zero(value) and _is_gradient(target.value, function)
    return _is_gradient(target, function) and _multiplies_by_mask(value)


def _masks_by_call(node: cst.Call, function: FunctionModel) -> bool:
    """Return whether a method writes zeros into a gradient, or a hook does."""
    if type(node.func) is not cst.Attribute:
        return False
    method, owner, given = node.func.attr.value, node.func.value, positional(node)
    if method == "register_hook":
        return bool(given) and _hook_masks(given[0], function)
    if method == "zero_" and type(owner) is cst.Subscript:
        return _is_masking(owner) and _is_gradient(owner.value, function)
    if method not in _MASKING or not given or not _is_gradient(owner, function):
        return False
    return method != "mul_" or _names_mask(given[0])


_MASKING: Final = frozenset({"mul_", "index_fill_", "masked_fill_"})


def _is_gradient(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this is ``p.grad``, ``p.grad.data`` or a name for one of them."""
    name = dotted_name(node)
    if name is None:
        return (
            type(node) is cst.Attribute
            and node.attr.value in {"grad", "data"}
            and (node.attr.value == "grad" or _is_gradient(node.value, function))
        )
    name = name.removesuffix(".data")
    if name.endswith(".grad"):
        return True
    sources = sources_of(function.scope).get(name) or ()
    return (
        len(sources) == 1
        and type(sources[0]) is not cst.Name
        and _is_gradient(sources[0], function)
    )


def _is_masking(target: cst.Subscript) -> bool:
    """Return whether an index takes rows by a mask or a slice, and not one by one in a loop."""
    first = target.slice[0].slice
    if type(first) is cst.Slice:
        return first.lower is not None or first.upper is not None
    value = first.value if type(first) is cst.Index else None
    return integer(value) is None and type(value) is not cst.Ellipsis


def _is_zero(node: cst.BaseExpression) -> bool:
    if number(node) == 0:
        return True
    if type(node) is not cst.Call:
        return False
    name = last_word(dotted_name(node.func))
    method = node.func.attr.value if type(node.func) is cst.Attribute else name
    return method in {"zeros_like", "zero_"} or (
        method == "fill_" and bool(node.args) and number(node.args[0].value) == 0
    )


def _names_mask(node: cst.BaseExpression) -> bool:
    """Return whether a factor goes by the name of a mask."""
    return any(
        type(each) is cst.Name and ("mask" in each.value.lower() or "keep" in each.value.lower())
        for each in walk(node)
    )


def _multiplies_by_mask(node: cst.BaseExpression) -> bool:
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
        return _names_mask(node)
    is_call = type(node) is cst.Call
    name = last_word(dotted_name(node.func)) if is_call else ""  # type: ignore[attr-defined]
    return name == "where" or (name in {"masked_fill", "mul"} and _names_mask(node))


def _hook_masks(hook: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether a hook of a tensor returns its gradient with some of it set to zero."""
    if type(hook) is cst.Lambda:
        return _multiplies_by_mask(hook.body)
    scope = function.scope.nested.get(
        dotted_name(hook) or ""
    ) or function.module.scopes.top.nested.get(dotted_name(hook) or "")
    if scope is None or type(scope.node) is not cst.FunctionDef:
        return False
    own = scope.first_parameter
    names = {own, *_copies_of(own or "", function.module.function(scope))}
    for node in scope.nodes_of(cst.Assign, cst.Return):
        if type(node) is cst.Assign and type(node.targets[0].target) is cst.Subscript:
            target = node.targets[0].target
            if dotted_name(target.value) in names and _is_zero(node.value) and _is_masking(target):
                return True
        if type(node) is cst.Return and node.value is not None and _multiplies_by_mask(node.value):
            return True
    return False


def _copies_of(name: str, function: FunctionModel) -> Iterator[str]:
    for other, sources in sources_of(function.scope).items():
        for source in sources or ():
            called = source.func if type(source) is cst.Call else None
            is_copy = type(called) is cst.Attribute and called.attr.value == "clone"
            if is_copy and dotted_name(called.value) == name:  # type: ignore[union-attr]
                yield other


def _restores(module: ModuleModel) -> bool:
    """Return whether a function that steps writes weights as well, or weights are masked too."""
    for function in module.functions():
        events = list(function.events())
        steps = any(isinstance(event, Step) for event in events)
        for event in events:
            if not isinstance(event, InPlace) or isinstance(event, Clip):
                continue
            text = module.text(event.target) if event.target is not None else ""
            if "grad" in text or not any(word in text for word in ("weight", "data", "param", "p")):
                continue
            if steps and event.loops and _is_of_weights(text):
                return True
            if "mask" in module.text(event.node) and _is_of_weights(text):
                return True
    return False


def _is_of_weights(text: str) -> bool:
    return any(word in text for word in ("weight", ".data", "param", "embed"))


def _nearest_optimizers(function: FunctionModel) -> list[tuple[FunctionModel, cst.Call]]:
    """Return the optimizers that the function makes, or else its class, or the file."""
    scope, module = function.scope, function.module
    made = [
        (maker, node)
        for maker in module.functions()
        for node in maker.scope.nodes_of(cst.Call)
        if module.makes_optimizer(node)
    ]
    own = [each for each in made if each[0].scope is scope]
    beside = [
        each for each in made if scope.owner is not None and each[0].scope.owner is scope.owner
    ]
    return own or beside or made


def _decay(call: cst.Call, function: FunctionModel) -> float | None:
    """Return the weight decay of an optimizer, None where the file does not tell."""
    given = keyword(call, "weight_decay")
    if given is not None:
        return number(constant_of(given, function))
    if any(argument.star for argument in call.args) or "weight_decay" in function.module.text(call):
        return None
    return _DECAY.get(last_word(dotted_name(call.func)), 0.0)


_DECAY: Final = {"AdamW": 0.01, "Lion": 0.0}
"""What optimizers decay weights by where nothing is said."""
