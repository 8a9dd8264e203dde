"""GCS901: torch.autograd.Variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.knowledge import FACTORIES, MAY_KEEP_THE_GRAPH, VARIABLE_CLASSES
from gradcheck_lint.model.syntax import boolean, dotted_name, has_star, keyword, positional, walk
from gradcheck_lint.rules._rule import Fix, Replacement, Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import Scopes


class LegacyVariable(Rule):
    """``Variable`` wraps a tensor in what a tensor already is."""

    entry = catalogue.LEGACY_VARIABLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every call of Variable in the file."""
        module, scopes = function.module, function.module.scopes
        if not isinstance(function.scope.node, cst.Module) or not module.mentions(b"Variable"):
            return
        for node in walk(function.scope.node):
            if type(node) is not cst.Call or keyword(node, "volatile") is not None:
                continue
            if scopes.resolve_import(dotted_name(node.func) or "") not in VARIABLE_CLASSES:
                continue
            yield Violation(
                node,
                "Variable and Tensor are one since torch 0.4: this call returns a tensor",
                Severity.NOTE,
                "use the tensor itself, with `requires_grad_()` where a gradient is wanted",
                fix=_fix(node, function),
            )


def _fix(node: cst.Call, function: FunctionModel) -> Fix | None:
    """Return the tensor alone, where the call says no more than that.

    A leaf that requires grad is not the same, unless the tensor is made on the spot: the call cuts
    the graph of what it is given.
    """
    scopes = function.module.scopes
    handed = positional(node)
    wanted = keyword(node, "requires_grad")
    if has_star(node) or len(handed) != 1 or len(node.args) > 1 + (wanted is not None):
        return None
    is_new = _is_new(handed[0], scopes)
    if wanted is None or boolean(wanted) is False:
        edit = Replacement(node, handed[0])
    elif is_new and boolean(wanted) is True:
        edit = Replacement(node, f"{function.module.code(handed[0])}.requires_grad_()")
    else:
        return None
    return Fix((edit,), "Use the tensor itself", safe=is_new)


def _is_new(node: cst.BaseExpression, scopes: Scopes) -> bool:
    """Tell whether a tensor is made on the spot, so that Variable has no graph to cut."""
    if type(node) is not cst.Call:
        return False
    return scopes.resolve_import(dotted_name(node.func) or "") in FACTORIES - MAY_KEEP_THE_GRAPH
