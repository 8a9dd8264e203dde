"""Follow what a function computes of a value, to what it returns, keeps or hands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for, parents_of
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["WaysOut", "ways_out"]


class WaysOut(NamedTuple):
    """Whether a gradient may come back on some way, and what cuts the others, in source order."""

    is_open: bool
    cuts: tuple[cst.CSTNode, ...]


def ways_out(starts: list[cst.CSTNode], function: FunctionModel, depth: int = 0) -> WaysOut:
    """Follow values by the names that they are given; what is not understood is an open way."""
    nodes = function.scope.nodes
    parents = parents_of(function)
    loads: dict[str, list[cst.CSTNode]] = {}
    for node in nodes:
        if type(node) is cst.Name:
            loads.setdefault(node.value, []).append(node)
    cuts: list[cst.CSTNode] = []
    waiting, seen = list(starts), set(map(id, starts))
    while waiting:
        node = waiting.pop()
        if _is_unrecorded(node, parents):
            cuts.append(node)
            continue
        found = _further(node, parents, function, depth)
        if found is None:
            return WaysOut(is_open=True, cuts=())
        cuts += found.cuts
        fresh = [*found.on]
        for name in found.names:
            fresh += [each for each in loads.get(name, ()) if _is_load(each, parents)]
        waiting += [each for each in fresh if id(each) not in seen]
        seen.update(map(id, fresh))
    order = {id(node): place for place, node in enumerate(nodes)}
    cuts.sort(key=lambda node: order.get(id(node), -1))
    return WaysOut(is_open=False, cuts=tuple(cuts))


class _Found(NamedTuple):
    """What is computed of a value by the node around it, under which names, or what cuts it."""

    on: tuple[cst.CSTNode, ...] = ()
    names: tuple[str, ...] = ()
    cuts: tuple[cst.CSTNode, ...] = ()


_NOTHING: Final = _Found()


def _further(  # noqa: PLR0911 - one answer for each kind of node
    node: cst.CSTNode, parents: dict[int, cst.CSTNode], function: FunctionModel, depth: int
) -> _Found | None:
    """Say where a value goes from a node; None where a gradient may come back from there."""
    outer = parents.get(id(node))
    if type(outer) is cst.Attribute:
        return _of_attribute(outer, parents)
    if type(outer) is cst.Arg:
        call = parents[id(outer)]
        if type(call) is not cst.Call or type(parents.get(id(call))) is cst.Expr:
            return None  # handed to a class, or kept by what is called
        return _of_argument(node, call, function, depth)
    if isinstance(outer, _PASSING):
        return _Found(on=(outer,))
    if type(outer) is cst.Subscript:
        return _Found(on=(outer,)) if outer.value is node else _NOTHING
    if isinstance(outer, _ENDING):
        return _NOTHING
    targets: list[cst.BaseExpression] = []
    if type(outer) is cst.Assign:
        targets = [each.target for each in outer.targets]
    elif isinstance(outer, (cst.AnnAssign, cst.AugAssign)):
        targets = [outer.target]
    names = [name for target in targets for name in bound_names(target)]
    if not names or not all(map(str.isidentifier, names)):
        return None
    is_whole = all(isinstance(each, (cst.Name, cst.Tuple)) for each in targets)
    return _Found(names=tuple(names)) if is_whole else None


_PASSING: Final = (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp, cst.Tuple, cst.Element)
_ENDING: Final = (cst.Comparison, cst.ComparisonTarget, cst.If, cst.Expr, cst.Assert, cst.Index)


def _of_attribute(outer: cst.Attribute, parents: dict[int, cst.CSTNode]) -> _Found | None:
    name, call = outer.attr.value, parents.get(id(outer))
    if name == "data":
        return _Found(cuts=(outer,))
    if type(call) is cst.Call and call.func is outer:
        if name in _CUTTING:
            return _Found(cuts=(call,))
        if name in _ASKING:
            return _NOTHING
        return None if name in _OTHER_EFFECTS or name.endswith("_") else _Found(on=(call,))
    if name in _FACTS:
        return _NOTHING
    return _Found(on=(outer,)) if name in {"T", "mT", "H", "real", "imag"} else None


_CUTTING: Final = frozenset({"detach", "item", "tolist"})
_ASKING: Final = frozenset(
    (
        *("argmax", "argmin", "argsort", "dim", "eq", "ge", "gt", "le", "lt", "ne", "new_full"),
        *("new_ones", "new_tensor", "new_zeros", "numel", "size"),
    )
)
_FACTS: Final = frozenset({"device", "dtype", "is_cuda", "ndim", "requires_grad", "shape"})
_OTHER_EFFECTS: Final = frozenset({"backward", "append", "register_hook", "retain_grad"})
_MAKING: Final = frozenset(
    (
        *("argmax", "argmin", "empty_like", "float", "full_like", "int", "isfinite", "isnan"),
        *("len", "ones_like", "print", "rand_like", "randn_like", "zeros_like"),
    )
)


def _of_argument(
    node: cst.CSTNode, call: cst.Call, function: FunctionModel, depth: int
) -> _Found | None:
    name = (dotted_name(call.func) or "").rpartition(".")[2]
    if name in _MAKING:
        return _NOTHING
    scope = called_function(call, function) or _only_one(name, function)
    if scope is not None and depth < _DEEPEST:
        for parameter in scope.parameters:
            if argument_for(parameter, call, scope) is node:
                inside = function.module.function(scope)
                loads = [each for each in scope.nodes_of(cst.Name) if each.value == parameter]
                ways = ways_out(list(loads), inside, depth + 1)
                if not ways.is_open and ways.cuts:
                    return _Found(cuts=ways.cuts[:1])
    return _Found(on=(call,))


_DEEPEST: Final = 2


def _only_one(name: str, function: FunctionModel) -> FunctionScope | None:
    """Return the one method of the file that has a name, whatever object it is called on."""
    known = function.module.scopes.by_name.get(name, ())
    return known[0] if len(known) == 1 and known[0].owner is not None else None


def _is_load(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> bool:
    outer = parents.get(id(node))
    if type(outer) is cst.Attribute:
        return outer.value is node
    if type(outer) is cst.Arg:
        return outer.value is node
    return type(outer) is not cst.AssignTarget


def _is_unrecorded(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> bool:
    """Return whether a node lies in ``with torch.no_grad():``."""
    outer = parents.get(id(node))
    while outer is not None:
        if type(outer) is cst.With and any(
            type(each) is cst.Name and each.value in {"no_grad", "inference_mode"}
            for item in outer.items
            for each in walk(item.item)
        ):
            return True
        outer = parents.get(id(outer))
    return False
