"""Follow the gradients that a backward is given through its body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, dotted_name, first_word, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.function_class import AutogradFunction
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["computed_of", "incoming_of", "mentions"]


def incoming_of(known: AutogradFunction) -> frozenset[str]:
    """Return the names of the gradients that a backward is given."""
    star = known.starred_cotangents
    names = {item.name for item in known.cotangents}
    return frozenset(names if star is None else names | {star.name.value})


def mentions(node: cst.CSTNode, names: frozenset[str] | set[str]) -> bool:
    """Return whether a name occurs, or gradients that a backward() inside has left."""
    return any(
        each.value in names
        if type(each) is cst.Name
        else type(each) is cst.Attribute and each.attr.value == "grad"
        for each in walk(node)
    )


def computed_of(incoming: frozenset[str], function: FunctionModel) -> set[str]:
    """Return the names that something of the incoming gradient may have reached.

    Who is handed it in a call may write it into whatever else it is handed.
    """
    known = set(incoming)
    flows = [*_flows(function)]
    while True:
        found = {
            name
            for targets, sources in flows
            if not targets <= known and any(mentions(source, known) for source in sources)
            for name in targets
        }
        if found <= known:
            return known
        known |= found


def _flows(function: FunctionModel) -> Iterator[tuple[set[str], Sequence[cst.CSTNode]]]:
    """Yield names with what may flow into them at one place."""
    for node in function.scope.nodes:
        if type(node) is cst.Assign:
            targets = {name for each in node.targets for name in bound_names(each.target)}
            targets |= {first_word(dotted_name(_root(each.target))) for each in node.targets}
            yield targets, [node.value]
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            yield {first_word(dotted_name(_root(node.target)))}, [node.value or node.target]
        elif isinstance(node, (cst.For, cst.CompFor)):
            yield set(bound_names(node.target)), [node.iter]
        elif type(node) is cst.Call:
            names = {each.value for each in walk(node) if type(each) is cst.Name}
            yield names, [node]
    for name, nested in function.scope.nested.items():
        yield {name}, [nested.node]


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        node = node.value
    return node
