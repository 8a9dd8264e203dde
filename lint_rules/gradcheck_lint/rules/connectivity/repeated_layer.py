"""GCS412: a list of layers that is one layer several times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import bound_names, integer, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class RepeatedLayer(Rule):
    """A list of layers is made by repeating one."""

    entry = catalogue.REPEATED_LAYER

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every list of a new layer that is multiplied, or of one that was made before."""
        if not function.module.mentions(b"nn."):
            return
        for node in function.scope.nodes_of(cst.BinaryOperation, cst.ListComp, cst.GeneratorExp):
            if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
                for made in _repeated(node):
                    if kind_of(made, function) == "module":
                        yield _violation(node, made, function, Severity.WARNING)
            elif isinstance(node, (cst.ListComp, cst.GeneratorExp)):
                source = _made_before(node, function)
                if source is not None and kind_of(source, function) == "module":
                    yield _violation(node, source, function, Severity.NOTE)


def _violation(
    node: cst.CSTNode, made: cst.BaseExpression, function: FunctionModel, severity: Severity
) -> Violation:
    return Violation(
        node,
        f"`{function.module.text(made)}` is made once and stands in this list several times: it is "
        "one layer with one set of parameters, which runs in each place",
        severity,
        "make one for each place: `[... for _ in range(n)]`",
    )


def _repeated(node: cst.BinaryOperation) -> Iterator[cst.BaseExpression]:
    """Yield what ``[made] * n`` has several times."""
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, (cst.List, cst.Tuple)) and integer(other) != 1:
            yield from (element.value for element in one.elements)


def _made_before(
    node: cst.ListComp | cst.GeneratorExp, function: FunctionModel
) -> cst.BaseExpression | None:
    """Return what made the element of ``[layer for _ in range(n)]``."""
    targets = {
        name
        for each in walk(node.for_in)
        if type(each) is cst.CompFor
        for name in bound_names(each.target)
    }
    if type(node.elt) is not cst.Name or node.elt.value in targets:
        return None
    sources = sources_of(function.scope).get(node.elt.value)
    return sources[0] if sources is not None and len(sources) == 1 else None
