"""GCS504: a backward that leaves autograd without saying so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.rules._rule import Fix, NewImport, Replacement, Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class MissingOnceDifferentiable(Rule):
    """A backward leaves autograd and is not marked ``once_differentiable``."""

    entry = catalogue.MISSING_ONCE_DIFFERENTIABLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every backward that computes outside of autograd, at the first such place."""
        known = function_with(function, "backward")
        if known is None or known.is_once_differentiable:
            return
        node = _leaves(function)
        if node is None or type(function.scope.node) is not cst.FunctionDef:
            return
        yield Violation(
            node,
            f"backward leaves autograd here (`{source_of(function.module, node)}`) without "
            "@once_differentiable: a second derivative is silently wrong instead of an error",
            Severity.WARNING,
            "put @once_differentiable below @staticmethod",
            fix=_fix(function.scope.node) if known.is_static else None,
        )


_OPERATOR = re.compile(r"torch\.ops\.(?!aten\.|prims\.)\w+\.\w*backward")
"""An operator of an extension that is itself somebody's backward."""

_EXTENSION = re.compile(r"(?:^|[._])(?:_C|_ext|ext_module|\w+_cuda|\w+_ext|\w+_cpp)\.\w+$")


def _leaves(function: FunctionModel) -> cst.CSTNode | None:
    """Return the first place where a backward leaves autograd, unless it differentiates there."""
    found: cst.CSTNode | None = None
    for node in function.scope.nodes:
        if type(node) is cst.Attribute and node.attr.value in {"enable_grad", "apply"}:
            return None
        if found is not None:
            continue
        if type(node) is cst.Call:
            name = dotted_name(node.func) or ""
            method = node.func.attr.value if type(node.func) is cst.Attribute else ""
            imported = function.module.scopes.resolve_import(name)
            if method in {"numpy", "detach"} or (
                imported and (_EXTENSION.search(name) or _OPERATOR.match(imported))
            ):
                found = node
        elif type(node) is cst.Attribute and node.attr.value == "data":
            found = node
    return found


def _fix(node: cst.FunctionDef) -> Fix:
    decorator = cst.Decorator(cst.Name("once_differentiable"))
    marked = node.with_changes(decorators=[*node.decorators, decorator])
    return Fix(
        (
            Replacement(node, marked),
            NewImport("torch.autograd.function", "once_differentiable"),
        ),
        "Mark backward as once_differentiable",
        safe=True,
    )
