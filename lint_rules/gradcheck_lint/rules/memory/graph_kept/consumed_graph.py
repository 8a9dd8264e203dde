"""Show that the graph of a stored value has been used up by a function that was called before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import spent_by

if TYPE_CHECKING:
    from gradcheck_lint.model.flow import Store
    from gradcheck_lint.model.module import FunctionModel


def spent_before(function: FunctionModel, store: Store) -> cst.CSTNode | None:
    """Return the ``backward()`` of a called function that has used up the graph of what is stored.

    That is of what the function returned, or of an attribute of ``self`` that a method called
    before in the same iteration computes and differentiates.
    """
    spent = spent_by(store.stored)
    path, first = dotted_name(store.stored_node) or "", function.scope.first_parameter
    if spent is not None or function.scope.owner is None or path.rpartition(".")[0] != first:
        return spent
    for event in function.events():
        if event is store:
            break
        if not isinstance(event, Call) or event.function is None or event.method is None:
            continue
        is_beside = event.loops == store.loops and event.arms == store.arms[: len(event.arms)]
        called = event.function
        if is_beside and called.owner is not None and called.first_parameter == first:
            spent = _differentiates(function.module.function(called), path) or spent
    return spent


def _differentiates(called: FunctionModel, path: str) -> cst.CSTNode | None:
    """Return the last statement of a method about an attribute that it binds, if a backward()."""
    last: cst.CSTNode | None = None
    is_bound = False
    for node in called.scope.nodes_of(cst.AssignTarget, cst.Call):
        if type(node) is cst.AssignTarget and dotted_name(node.target) == path:
            is_bound, last = True, None
        elif (
            type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and dotted_name(node.func.value) == path
        ):
            last = node if node.func.attr.value == "backward" else last
    return last if is_bound else None
