"""GCS604: an edge that torch.where does not guard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.function_class import assignments, body_of
from gradcheck_lint.model.nearness import Sought
from gradcheck_lint.model.syntax import dotted_name, positional, walk
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._text import source_of
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class NonFiniteGradient(Rule):
    """``torch.where`` picks the finite value, but its backward still goes through the other."""

    entry = catalogue.NON_FINITE_GRADIENT

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function calls where()."""
        return function.module.near.has_itself(function.scope, _WHERE)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every where() that computes on the branch whose edge it excludes."""
        if function.mode is GradMode.DISABLED or isinstance(function.scope.node, cst.Module):
            return
        if _handles_data(function):
            return
        scopes = function.module.scopes
        bound = assignments(function.scope)
        for node in body_of(function.scope):
            if type(node) is not cst.Call:
                continue
            if scopes.resolve_import(dotted_name(node.func) or "") != "torch.where":
                continue
            handed = positional(node)
            if len(handed) != 3 or not isinstance(handed[0], cst.Comparison):  # noqa: PLR2004
                continue
            compared = function.module.text(handed[0].left)
            if any(map(_is_kept_away, bound.get(compared, ()))):
                continue
            for branch in handed[1:]:
                found = _edge(branch, compared, function)
                if found is not None:
                    text = source_of(function.module.tree, found)
                    yield Violation(
                        found,
                        f"where() drops the value of `{text}` at its edge, but backward multiplies "
                        "its infinite derivative by zero: the gradient is NaN there",
                        Severity.WARNING,
                        "make the input safe first: `x = torch.where(mask, x, 1.0)`, then compute",
                    )
                    break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    return torch.where(square > 0, square.sqrt(), 0.0)
""",
            lines=(5,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    safe = torch.where(square > 0, square, 1.0)
    clamped = torch.where(square > 0, square.clamp(min=1e-8).sqrt(), 0.0)
    return torch.where(square > 0, safe.sqrt(), 0.0) + clamped

@torch.no_grad()
def log(x):
    return torch.where(x > 0, x.log(), 0.0)
""",
            why="made safe before, or never differentiated",
        ),
    )


_WHERE = Sought(lambda word: word == "where")
_EDGED = frozenset({"sqrt", "rsqrt", "log", "log2", "log10", "acos", "asin", "reciprocal"})


def _is_kept_away(node: cst.BaseExpression) -> bool:
    """Tell whether what a name was bound to is never at the edge: `x.clamp(min=eps)`, `x + eps`."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, (cst.Add, cst.Power))
    if not isinstance(node, cst.Call):
        return False
    last = dotted_name(node.func) or ""
    if isinstance(node.func, cst.Attribute):
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
        if not isinstance(node, cst.Call):
            continue
        last = (dotted_name(node.func) or "").rpartition(".")[2]
        operand: cst.BaseExpression | None = None
        if isinstance(node.func, cst.Attribute):
            last, operand = node.func.attr.value, node.func.value
        if last not in _EDGED:
            continue
        handed = positional(node)
        texts = [function.module.text(item) for item in (operand, *handed) if item is not None]
        if compared in texts:
            return node
    return None
