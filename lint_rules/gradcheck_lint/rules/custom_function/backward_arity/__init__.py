"""GCS501: backward returns too few gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.model.function_class import function_with, has_other_decorator, returns
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.backward_arity.gradient_count import GradientCount
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class BackwardArity(Rule):
    """A backward returns fewer gradients than forward has inputs."""

    entry = catalogue.BACKWARD_ARITY

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every return of a backward that has too few values."""
        known = function_with(function, "backward", "vjp")
        if known is None or known.inputs is None or known.forward is None or not known.is_static:
            return
        scopes = function.module.scopes
        if any(has_other_decorator(method, scopes) for method in (function.scope, known.forward)):
            return
        needed = sum(not item.has_default for item in known.inputs)
        cotangents = frozenset(item.name for item in known.cotangents)
        count = GradientCount(function.scope, cotangents, scopes)
        for node in returns(function.scope):
            given = count.of(node.value)
            if given is not None and given < needed:
                yield Violation(
                    node,
                    f"backward returns {given} gradient{'s' * (given != 1)} for the {needed} "
                    "inputs of forward: torch raises a RuntimeError in backward()",
                    Severity.ERROR,
                    "return one value for each input, None where there is no gradient",
                    ((known.forward.node, f"forward takes {needed} inputs besides ctx"),),
                )
