"""GCS507: an intermediate of forward is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    assignments,
    before_star,
    function_with,
    names_in,
    returns,
    saved_names,
)
from gradcheck_lint.model.syntax import child_list, dotted_name, is_none
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class SavedIntermediate(Rule):
    """A forward saves an intermediate result, which has no graph in a second backward."""

    entry = catalogue.SAVED_INTERMEDIATE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every saved intermediate that backward computes with."""
        known = function_with(function, "forward", "setup_context")
        if known is None or known.backward is None or known.inputs is None:
            return
        if known.is_once_differentiable or _is_opaque(known):
            return
        bound = assignments(function.scope)
        inputs = {item.name for item in known.inputs}
        returned = _with_aliases(known.returned, bound)
        smooth = _smooth_names(bound, inputs & known.tensors - _without_gradient(known))
        for name, argument in saved_names(function.scope):
            if name in returned or name in inputs or name not in smooth:
                continue
            where = function.scope.name.rpartition(".")[2]
            yield Violation(
                argument,
                f"`{name}` is computed in {where}, where nothing is recorded, and saved: the "
                "first derivative is right, but a second one treats it as a constant",
                Severity.WARNING,
                "save the inputs and compute it again in backward, return it as an output, or "
                "mark backward @once_differentiable",
                ((smooth[name], "computed here"),),
            )


def _without_gradient(known: AutogradFunction) -> frozenset[str]:
    """Return the inputs for which every return of backward writes None: they are constants."""
    assert known.backward is not None
    written = [list(before_star(node.value)) for node in returns(known.backward)]
    return frozenset(
        item.name
        for place, item in enumerate(known.inputs or ())
        if written and all(place < len(row) and is_none(row[place]) for row in written)
    )


def _with_aliases(
    names: frozenset[str], bound: dict[str, list[cst.BaseExpression]]
) -> frozenset[str]:
    """Return names, and the names of what they are other names of."""
    aliases = (value.value for name in names for value in bound.get(name, ()) if _is_name(value))
    return names.union(aliases)


def _is_name(node: cst.BaseExpression) -> TypeGuard[cst.Name]:
    return type(node) is cst.Name


_SMOOTH = frozenset(
    {
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "sigmoid",
        "tanh",
        "softmax",
        "log_softmax",
        "pow",
        "square",
        "reciprocal",
        "norm",
        "mean",
        "var",
        "std",
        "sum",
        "matmul",
        "mm",
        "bmm",
        "mul",
        "div",
        "add",
        "sub",
        "logsumexp",
        "erf",
        "softplus",
        "neg",
    }
)
_OPERATORS = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide, cst.Power, cst.MatrixMultiply)


def _smooth_names(
    bound: dict[str, list[cst.BaseExpression]], tensors: frozenset[str] | set[str]
) -> dict[str, cst.CSTNode]:
    """Return the names whose only value is a smooth function of the inputs."""
    found: dict[str, cst.CSTNode] = {}
    known = set(tensors)
    for name, sources in bound.items():
        if len(sources) == 1 and _is_smooth(sources[0]) and names_in(sources[0]) & known:
            found[name] = sources[0]
            known.add(name)
    return found


def _is_smooth(node: cst.BaseExpression) -> bool:
    if type(node) is cst.BinaryOperation:
        return isinstance(node.operator, _OPERATORS) and not _has_steps(node)
    if type(node) is cst.Call:
        last = dotted_name(node.func) or ""
        if type(node.func) is cst.Attribute:
            last = node.func.attr.value
        return last.rpartition(".")[2] in _SMOOTH and not _has_steps(node)
    return False


def _has_steps(node: cst.CSTNode) -> bool:
    """Tell whether a comparison, a shape or a rounding takes part, so that little can be said."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, (cst.Comparison, cst.Subscript)):
            return True
        if type(current) is cst.Attribute and current.attr.value in _STEPS:
            return True
        stack.extend(child_list(current))
    return False


_STEPS = frozenset(
    {
        "shape",
        "size",
        "numel",
        "dim",
        "round",
        "floor",
        "ceil",
        "sign",
        "argmax",
        "item",
        "sort",
        "topk",
        "detach",
    }
)


def _is_opaque(function: AutogradFunction) -> bool:
    """Tell whether backward does not let autograd record what it computes."""
    assert function.backward is not None
    for node in function.backward.nodes:
        if type(node) is cst.Attribute and node.attr.value in {
            "data",
            "numpy",
            "detach",
            "enable_grad",
            "no_grad",
            "apply",
        }:
            return True
        if type(node) is cst.Call:
            name = dotted_name(node.func)
            imported = function.module.scopes.resolve_import(name) if name else None
            if imported and not imported.startswith(("torch.", "math.")):
                return True
    return False
