"""GCS604: an edge that torch.where does not guard."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.function_class import assignments
from gradcheck_lint.model.module import names_target
from gradcheck_lint.model.syntax import dotted_name, is_literal, positional, walk
from gradcheck_lint.model.values import Kind, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.numerics.non_finite_gradient.edge_tests import comparison_of, number
from gradcheck_lint.rules.numerics.non_finite_gradient.pairwise_distances import (
    guard_of_steps,
    is_differentiated,
    resolved,
    roots_of_own_distances,
    roots_of_squares,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class NonFiniteGradient(Rule):
    """An infinite derivative is multiplied by zero: beside ``torch.where``, or at distance zero."""

    entry = catalogue.NON_FINITE_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every where() that computes on the branch whose edge it excludes."""
        if function.mode is GradMode.DISABLED:
            return
        if _handles_data(function):
            return
        if function.module.mentions(b"sqrt", b"0.5"):
            yield from _roots(function)
        scopes = function.module.scopes
        bound = assignments(function.scope)
        for node in function.scope.nodes_of(cst.Call):
            if scopes.resolve_import(dotted_name(node.func) or "") != "torch.where":
                continue
            handed = positional(node)
            if len(handed) != 3:  # noqa: PLR2004
                continue
            test = comparison_of(resolved(handed[0], bound) or handed[0])
            if test is None:
                continue
            compared = function.module.text(test.operand)
            if any(map(_is_kept_away, bound.get(compared, ()))):
                continue
            for branch, is_taken in ((handed[1], True), (handed[2], False)):
                source = resolved(branch, bound) or branch
                found = _edge(source, compared, function) or _divided(source, compared, function)
                if found is not None and test.drops_edge(is_taken=is_taken):
                    text = source_of(function.module, found)
                    yield Violation(
                        found,
                        f"where() drops the value of `{text}` at its edge, but backward multiplies "
                        "its infinite derivative by zero: the gradient is NaN there",
                        Severity.WARNING,
                        "make the input safe first: `x = torch.where(mask, x, 1.0)`, then compute",
                    )
                    break


def _roots(function: FunctionModel) -> Iterator[Violation]:
    """Yield the roots of what is zero, or may be, in a function that is differentiated."""
    own = list(roots_of_own_distances(function))
    told = {id(node) for node, _ in own}
    others = [node for node in roots_of_squares(function) if id(node) not in told]
    if (own or others) and is_differentiated(function):
        yield from itertools.starmap(_root, own)
        yield from (_of_squares(function, node) for node in others)


def _root(node: cst.CSTNode, points: str) -> Violation:
    return Violation(
        node,
        f"each of `{points}` is compared with itself as well: the root of zero has an infinite "
        "derivative, which backward multiplies by zero, so the gradient is NaN there",
        Severity.WARNING,
        "add a small number under the root, or clamp it; torch.cdist sees to it by itself",
    )


def _of_squares(function: FunctionModel, node: cst.CSTNode) -> Violation:
    guard = guard_of_steps(function.module)
    then = "the gradient is NaN then"
    return Violation(
        node,
        f"`{source_of(function.module, node)}` has an infinite derivative where all that is "
        "squared is zero, and nothing keeps it away from there: "
        + (then if guard is None else f"{then}, and the step is skipped without a word"),
        Severity.NOTE if guard is None else Severity.WARNING,
        "add a small number under the root, or clamp it",
        () if guard is None else ((guard, "this leaves steps out"),),
    )


_EDGED = frozenset({"sqrt", "rsqrt", "log", "log2", "log10", "acos", "asin", "reciprocal"})


def _is_kept_away(node: cst.BaseExpression) -> bool:
    """Tell whether what a name was bound to is never at the edge: `x.clamp(min=eps)`, `x + eps`."""
    if type(node) is cst.BinaryOperation:
        return isinstance(node.operator, (cst.Add, cst.Power))
    if type(node) is not cst.Call:
        return False
    last = dotted_name(node.func) or ""
    if type(node.func) is cst.Attribute:
        last = node.func.attr.value
    return last.rpartition(".")[2] in _BOUNDED


_BOUNDED = frozenset(
    {"clamp", "clamp_min", "clamp_", "clip", "maximum", "where", "softplus", "exp", "sigmoid"}
)


def _handles_data(function: FunctionModel) -> bool:
    """Tell by its name whether a function prepares or shows data, which nobody differentiates."""
    return _DATA.search(function.scope.name.rpartition(".")[2].lower()) is not None


_DATA = re.compile("prep|augment|collate|metric|plot|visual|dataset|getitem")


def _edge(
    branch: cst.BaseExpression, compared: str, function: FunctionModel
) -> cst.BaseExpression | None:
    """Return the operation in a branch whose derivative is infinite where the test is false."""
    for node in walk(branch):
        operands: list[cst.BaseExpression] = []
        if type(node) is cst.BinaryOperation and type(node.operator) is cst.Power:
            operands = [node.left] if _is_root(node.right) else []
        elif type(node) is cst.Call:
            last = (dotted_name(node.func) or "").rpartition(".")[2]
            operands = positional(node)
            if type(node.func) is cst.Attribute:
                last = node.func.attr.value
                operands = [node.func.value, *operands]
            is_root = last == "pow" and bool(node.args) and _is_root(node.args[-1].value)
            if last not in _EDGED and not is_root:
                continue
        if compared in map(function.module.text, operands):
            assert isinstance(node, cst.BaseExpression)
            return node
    return None


def _divided(
    branch: cst.BaseExpression, compared: str, function: FunctionModel
) -> cst.BaseExpression | None:
    """Return a quotient that may have a gradient, by what is zero where the test is false."""
    for node in walk(branch):
        if type(node) is cst.BinaryOperation and type(node.operator) is cst.Divide:
            quotient: tuple[cst.BaseExpression, ...] = (node.left, node.right)
        elif type(node) is cst.Call and type(node.func) is cst.Attribute:
            is_division = node.func.attr.value in {"div", "divide", "true_divide"}
            operands = (node.func.value, *positional(node))
            quotient = operands[-2:] if is_division else ()
        else:
            continue
        is_it = len(quotient) == _PAIR and function.module.text(quotient[1]) == compared
        if is_it and _may_have_graph(quotient, function) and is_differentiated(function):
            return node
    return None


_PAIR: Final = 2


def _may_have_graph(operands: Sequence[cst.BaseExpression], function: FunctionModel) -> bool:
    """Return whether an operand has a graph, or is computed of a parameter that is no target."""
    own = {function.scope.first_parameter} if function.scope.owner is not None else set()
    parameters = frozenset[int]().union(
        *(
            sites(function.bindings.get(name, frozenset()))
            for name in function.scope.parameters - own
            if not names_target(name)
        )
    )
    names = {each.value for operand in operands for each in walk(operand) if type(each) is cst.Name}
    for name in names:
        for value in function.bindings.get(name, ()):
            if value.kind in _WITH_GRAPH or value.through:
                return True
            if value.kind is Kind.UNKNOWN and {value.site, *value.mentions} & parameters:
                return True
    return False


_WITH_GRAPH: Final = frozenset({Kind.HISTORY, Kind.LEAF, Kind.LEAF_VIEW})


def _is_root(exponent: cst.BaseExpression) -> bool:
    """Tell whether a power with this exponent has an infinite derivative at zero."""
    if type(exponent) is cst.UnaryOperation:
        return type(exponent.operator) is cst.Minus and is_literal(exponent.expression)
    if type(exponent) is cst.BinaryOperation and type(exponent.operator) is cst.Divide:
        left, right = number(exponent.left), number(exponent.right)
        return left is not None and right is not None and 0 < left < right
    return type(exponent) is cst.Float and float(exponent.value) < 1
