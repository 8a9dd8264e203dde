"""Find inner steps of meta-learning that throw away the graph that they have asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.knowledge import INPLACE_METHODS
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    bound_names,
    dotted_name,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["graphs_thrown_away"]


def graphs_thrown_away(function: FunctionModel) -> Iterator[Violation]:
    """Yield the writes that are all that gradients with a graph are used for.

    ``create_graph=True`` says that something is to be differentiated through them.
    """
    if "create_graph" not in function.scope.words:
        return
    nodes = function.scope.nodes
    for node in nodes:
        for target, value in assigned_pairs(node):
            if _asks_for_graph(value, function):
                names = _with_elements(set(bound_names(target)), nodes)
                writes = _only_writes(names, nodes, function)
                if writes:
                    yield _violation(writes[0], value, function)


def _asks_for_graph(value: cst.BaseExpression, function: FunctionModel) -> bool:
    if type(value) is not cst.Call:
        return False
    name = function.module.scopes.resolve_import(dotted_name(value.func) or "")
    return name == "torch.autograd.grad" and boolean(keyword(value, "create_graph")) is True


def _with_elements(names: set[str], nodes: Sequence[cst.CSTNode]) -> set[str]:
    """Return names, and those of the elements that loops take of what they hold."""
    for node in nodes:
        if isinstance(node, (cst.For, cst.CompFor)):
            names |= {found for target in _elements(node, names) for found in bound_names(target)}
    return names


def _elements(loop: cst.For | cst.CompFor, names: set[str]) -> list[cst.CSTNode]:
    """Return the targets of a loop that elements of one of these names are bound to."""
    source = loop.iter
    if dotted_name(source) in names:
        return [loop.target]
    if type(source) is not cst.Call or dotted_name(source.func) != "zip":
        return []
    if type(loop.target) is not cst.Tuple:
        return []
    pairs = zip(loop.target.elements, positional(source), strict=False)
    return [element.value for element, given in pairs if dotted_name(given) in names]


def _only_writes(
    names: set[str], nodes: Sequence[cst.CSTNode], function: FunctionModel
) -> list[cst.CSTNode]:
    """Return the writes past autograd that use these names; none if anything else does."""
    unrecorded = unrecorded_by_with(nodes, function.module.scopes)
    writes = [node for node in nodes if _is_unseen_write(node, id(node) in unrecorded)]
    within = {id(inner): write for write in writes for inner in walk(write)}
    passed_by = {
        id(inner) for node in nodes for part in _binding_parts(node) for inner in walk(part)
    }
    found: list[cst.CSTNode] = []
    for node in nodes:
        if type(node) is not cst.Name or node.value not in names or id(node) in passed_by:
            continue
        if id(node) not in within:
            return []
        found.append(within[id(node)])
    # What a lambda or function inside does with them is not seen.
    hidden = function.scope.nodes_and_lambdas[1]
    is_hidden = any(type(n) is cst.Name and n.value in names for each in hidden for n in walk(each))
    return [] if is_hidden or function.scope.nested else found


def _binding_parts(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the parts of a node that bind names, or go through their elements alone."""
    if isinstance(node, (cst.For, cst.CompFor)):
        return [node.target, node.iter]
    if type(node) is cst.Arg and node.keyword is not None:
        return [node.keyword]
    if type(node) is cst.Attribute:
        return [node.attr]
    return [node.target] if type(node) is cst.AssignTarget else []


def _is_unseen_write(node: cst.CSTNode, is_unrecorded: bool) -> bool:
    """Return whether a statement or call writes to memory in a way that no graph sees."""
    written: cst.CSTNode | None = None
    if type(node) is cst.AugAssign:
        written = node.target
    elif type(node) is cst.Assign and len(node.targets) == 1:
        written = node.targets[0].target
        is_unrecorded = False
    elif type(node) is cst.Call and type(node.func) is cst.Attribute:
        written = node.func.value if node.func.attr.value in INPLACE_METHODS else None
    if written is None:
        return False
    is_data = type(written) is cst.Attribute and written.attr.value == "data"
    return is_data or is_unrecorded


def _violation(write: cst.CSTNode, asked: cst.CSTNode, function: FunctionModel) -> Violation:
    module = function.module
    return Violation(
        write,
        f"`{source_of(module, write)}` writes past autograd what `create_graph=True` gave a graph: "
        "no loss can be differentiated through this update",
        Severity.WARNING,
        "make new tensors of it, `fast = [p - lr * g for p, g in zip(fast, grads)]`, and run the "
        "model on them with torch.func.functional_call; or leave create_graph out",
        ((asked, "asked for with a graph here"),),
    )
