"""Find loops over layers in which each output takes the place of the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["overwritten_outputs"]


def overwritten_outputs(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield ``out = layer(x)`` of a loop over layers that never reads ``out``, with its name.

    What the last layer returns is all that is left.
    """
    if not function.module.scopes.derives_from(function.scope.owner, "torch.nn."):
        return
    for loop in function.scope.nodes_of(cst.For):
        turning = frozenset(bound_names(loop.target))
        inside = list(walk(loop.body))
        if any(isinstance(node, (cst.Break, cst.Return, cst.Yield, cst.Try)) for node in inside):
            continue
        names = [node.value for node in inside if type(node) is cst.Name]
        for statement in loop.body.body:
            made = statement.body[0] if type(statement) is cst.SimpleStatementLine else None
            if type(made) is not cst.Assign or len(made.targets) != 1:
                continue
            name = dotted_name(made.targets[0].target)
            if (
                name is not None
                and names.count(name) == 1
                and name not in turning | {"_"}
                and any(_runs_one_of(node, turning) for node in walk(made.value))
            ):
                yield made, name


def _runs_one_of(node: cst.CSTNode, turning: frozenset[str]) -> bool:
    """Return whether this calls another layer in each turn: ``layer(x)``, ``self.layers[i](x)``."""
    if type(node) is not cst.Call or not node.args:
        return False
    if type(node.func) is cst.Name:
        return node.func.value in turning
    is_looked_up = type(node.func) is cst.Subscript or (
        type(node.func) is cst.Call and dotted_name(node.func.func) == "getattr"
    )
    return is_looked_up and any(
        type(each) is cst.Name and each.value in turning for each in walk(node.func)
    )
