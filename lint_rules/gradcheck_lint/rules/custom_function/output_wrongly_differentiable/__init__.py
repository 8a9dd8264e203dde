"""GCS505: a mask that looks differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    assignments,
    displayed,
    function_with,
    returns,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.output_wrongly_differentiable.masks import (
    is_filled_mask,
    is_mask,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class OutputWronglyDifferentiable(Rule):
    """A Function returns a mask or index as a floating-point output that looks differentiable."""

    entry = catalogue.OUTPUT_WRONGLY_DIFFERENTIABLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every returned mask whose gradient backward ignores."""
        known = function_with(function, "forward")
        if (
            known is None
            or known.backward is None
            or any(known.saving_calls("mark_non_differentiable"))
        ):
            return
        ends = returns(function.scope)
        outputs = displayed(ends[0].value, function.scope) if len(ends) == 1 else []
        if len(outputs) != len(known.cotangents):
            return
        bound = assignments(function.scope)
        used = _names_used(known)
        for output, cotangent in zip(outputs, known.cotangents, strict=True):
            made = _made_by(output, bound, function.scope)
            if made is None or cotangent.name in used:
                continue
            yield Violation(
                output,
                "this output is a mask or index in floating point: it has no gradient, but looks "
                f"differentiable, and backward ignores `{cotangent.name}`",
                Severity.WARNING,
                f"call `ctx.mark_non_differentiable({function.module.code(output)})` in forward",
                ((made, "made here"),),
            )


def _made_by(
    output: cst.BaseExpression, bound: dict[str, list[cst.BaseExpression]], scope: FunctionScope
) -> cst.BaseExpression | None:
    """Return what makes an output that is a mask, None if it is something else."""
    if type(output) is not cst.Name:
        return output if is_mask(output) else None
    sources = bound.get(output.value, [])
    if len(sources) != 1:
        return None
    is_one = is_mask(sources[0]) or is_filled_mask(output.value, sources[0], scope)
    return sources[0] if is_one else None


def _names_used(function: AutogradFunction) -> frozenset[str]:
    assert function.backward is not None
    found: set[str] = set()
    for node in function.backward.nodes:
        if type(node) is cst.Name:
            found.add(node.value)
    return frozenset(found)
