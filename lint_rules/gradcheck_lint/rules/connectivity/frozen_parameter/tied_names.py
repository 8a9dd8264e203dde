"""Find filters by a name under which ``named_parameters()`` does not report a tied weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, plain_string, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["TiedName", "tied_names"]


class TiedName(NamedTuple):
    """Where parameters are frozen by name, the name that none has, the one it has, and the tie."""

    node: cst.CSTNode
    lost: str
    kept: str
    tie: cst.CSTNode


def tied_names(function: FunctionModel) -> Iterator[TiedName]:
    """Yield what sets ``requires_grad`` by names of which one belongs to a tied weight."""
    words = function.scope.words
    if not {"named_parameters", "requires_grad"} <= words:
        return
    module = function.module
    literals = _literals(module)
    for lost, kept, tie in _ties(module):
        is_named = any(lost in text.split(".") for text in literals)
        if not is_named or any(kept in text.split(".") for text in literals):
            continue
        node = next((each for each in function.scope.nodes if _sets_by_name(each)), None)
        if node is not None:
            yield TiedName(node, lost, kept, tie)


def _sets_by_name(node: cst.CSTNode) -> bool:
    """Return whether this is a loop over named parameters that sets ``requires_grad``."""
    if type(node) is not cst.For or type(node.iter) is not cst.Call:
        return False
    called = node.iter.func
    is_named = type(called) is cst.Attribute and called.attr.value == "named_parameters"
    return is_named and any(
        type(each) is cst.Name and each.value in {"requires_grad", "requires_grad_"}
        for each in walk(node.body)
    )


def _literals(module: ModuleModel) -> frozenset[str]:
    """Return the strings of a file."""
    if "strings" not in module.memo:
        module.memo["strings"] = frozenset(
            text
            for node in module.nodes_of(cst.SimpleString)
            if (text := plain_string(node)) is not None
        )
    found: frozenset[str] = module.memo["strings"]
    return found


def _ties(module: ModuleModel) -> list[tuple[str, str, cst.CSTNode]]:
    """Return the weights that are tied: the part that loses its name, the other, and where."""
    if "tied weights" not in module.memo:
        module.memo["tied weights"] = list(_find_ties(module))
    found: list[tuple[str, str, cst.CSTNode]] = module.memo["tied weights"]
    return found


def _find_ties(module: ModuleModel) -> Iterator[tuple[str, str, cst.CSTNode]]:
    for function in module.functions():
        for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
            for target, value in assigned_pairs(node):
                one, other = _part(target, function), _part(value, function)
                if one is None or other is None or one == other:
                    continue
                parts = _registered(function)
                if one not in parts or other not in parts or _is_untied(one, node, module):
                    continue
                lost, kept = (one, other) if parts.index(other) < parts.index(one) else (other, one)
                yield lost, kept, node


def _part(node: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Return ``head`` of ``self.head.weight``."""
    name = dotted_name(node) or ""
    path = name.split(".")
    is_own = len(path) == 3 and path[0] == function.scope.first_parameter  # noqa: PLR2004 - self, part, weight
    return path[1] if is_own and path[2] == "weight" else None


def _registered(function: FunctionModel) -> list[str]:
    """Return the attributes of a class in the order in which its constructor sets them."""
    owner = function.scope.owner
    maker = None if owner is None else function.module.scopes.method(owner, "__init__")
    found: list[str] = []
    for node in maker.nodes if maker is not None else ():
        for target, _ in assigned_pairs(node):
            root, _, attribute = (dotted_name(target) or "").partition(".")
            if maker is not None and root == maker.first_parameter and attribute:
                found.append(attribute)
    return found


def _is_untied(part: str, tie: cst.CSTNode, module: ModuleModel) -> bool:
    """Return whether another assignment gives the tied part a weight of its own."""
    return any(
        (dotted_name(target) or "").endswith(f".{part}.weight")
        for function in module.functions()
        for node in function.scope.nodes
        if node is not tie
        for target, _ in assigned_pairs(node)
    )
