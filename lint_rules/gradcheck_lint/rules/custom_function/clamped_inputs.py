"""Find inputs that forward clamps, and whose gradient a backward passes on where they lie outside.

A straight-through Function may mean that. Where backward works out which elements lie outside for
the gradient of another input, and not for this one, the two gradients are of different functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.function_class import elements_of, returns
from gradcheck_lint.model.name_sources import augmented_names, sources_of
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, dotted_name, walk
from gradcheck_lint.rules.custom_function.incoming import mentions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.function_class import AutogradFunction
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Unmasked", "unmasked"]


class Unmasked(NamedTuple):
    """A gradient that is passed on everywhere, of an input that forward clamps at ``clamp``."""

    node: cst.BaseExpression
    input: str
    clamp: cst.CSTNode


def unmasked(
    function: FunctionModel, known: AutogradFunction, incoming: frozenset[str]
) -> Iterator[Unmasked]:
    """Yield what a backward returns as it is, beside a gradient that is masked."""
    if known.forward is None:
        return
    masks = _masks(known.forward) | _masks(function.scope)
    for way in returns(function.scope):
        gradients = elements_of(way.value)
        if not any(_depends_on(each, masks, function.scope) for each in gradients):
            continue
        for given, gradient in zip(known.inputs or (), gradients, strict=False):
            clamp = _clamp_of(given.name, known.forward)
            if clamp is not None and _is_passed_on(gradient, incoming, function.scope):
                yield Unmasked(gradient, given.name, clamp)


def _written(scope: FunctionScope) -> set[str]:
    """Return the names of tensors that a function writes into: ``grad[mask] = 0``."""
    written: set[str | None] = set()
    for node in scope.nodes:
        for target, _ in assigned_pairs(node):
            if type(target) is cst.Subscript:
                written.add(dotted_name(target.value))
        called = node.func if type(node) is cst.Call else None
        if type(called) is cst.Attribute and called.attr.value.endswith("_"):
            written.add(dotted_name(called.value))
    return {name for name in (*written, *augmented_names(scope)) if name is not None}


_COMPARING: Final = frozenset({"gt", "lt", "ge", "le", "greater", "less", "sign"})
_CLAMPING: Final = frozenset(
    {"clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_max", "hardtanh", "relu", "relu6"}
)


def _masks(scope: FunctionScope) -> set[str]:
    """Return the names that a comparison of values flows into."""
    masks: set[str] = set()
    for target, value in scope.assignments:
        if mentions(value, masks) or any(map(_compares, walk(value))):
            masks.update(bound_names(target))
    return masks


def _compares(node: cst.CSTNode) -> bool:
    if type(node) is cst.Comparison:
        return all(isinstance(each.operator, _ORDER) for each in node.comparisons)
    return type(node) is cst.Call and _name_of(node.func) in _COMPARING


_ORDER: Final = (cst.LessThan, cst.GreaterThan, cst.LessThanEqual, cst.GreaterThanEqual)


def _depends_on(node: cst.BaseExpression, masks: set[str], scope: FunctionScope) -> bool:
    if mentions(node, masks) or any(map(_compares, walk(node))):
        return True
    sources = sources_of(scope).get(dotted_name(node) or "") or ()
    return any(source is not node and mentions(source, masks) for source in sources)


def _clamp_of(name: str, forward: FunctionScope) -> cst.CSTNode | None:
    """Return where forward clamps what it has computed of an input."""
    computed = {name}
    for target, value in forward.assignments:
        if mentions(value, computed):
            computed.update(bound_names(target))
    for node in forward.nodes:
        is_clamp = type(node) is cst.Call and _name_of(node.func) in _CLAMPING
        if is_clamp and mentions(_clamped(node), computed):  # type: ignore[arg-type]
            return node
    return None


def _name_of(called: cst.BaseExpression) -> str:
    if type(called) is cst.Attribute:
        return called.attr.value
    return called.value if type(called) is cst.Name else ""


def _clamped(call: cst.Call) -> cst.CSTNode:
    """Return what a call clamps: of the function its first argument, of a method its object."""
    owner = call.func.value if type(call.func) is cst.Attribute else None
    is_function = not isinstance(owner, cst.BaseExpression) or dotted_name(owner) in _LIBRARIES
    return call.args[0] if is_function and call.args else call.func


_LIBRARIES: Final = frozenset({"torch", "F", "nn.functional", "torch.nn.functional"})


def _is_passed_on(node: cst.BaseExpression, incoming: frozenset[str], scope: FunctionScope) -> bool:
    """Return whether this is the incoming gradient as it is, or a copy of it."""
    while type(node) is cst.Call and type(node.func) is cst.Attribute:
        if node.args or node.func.attr.value not in {"clone", "contiguous"}:
            return False
        node = node.func.value
    name = dotted_name(node)
    sources = sources_of(scope).get(name or "") or ()
    if name in _written(scope):
        return False
    if name in incoming:
        return not sources
    return len(sources) == 1 and _is_passed_on(sources[0], incoming, scope)
