"""GCS501: backward returns too few gradients, or takes another number than forward returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.model.function_class import (
    function_with,
    has_other_decorator,
    parameters,
    returns,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.backward_arity.gradient_count import GradientCount
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.function_class import AutogradFunction
    from gradcheck_lint.model.module import FunctionModel


class BackwardArity(Rule):
    """A backward returns fewer gradients than forward has inputs, or takes not one per output."""

    entry = catalogue.BACKWARD_ARITY

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield a backward that takes too few or too many, and every return that has too few."""
        known = function_with(function, "backward", "vjp")
        if known is None or known.inputs is None or known.forward is None or not known.is_static:
            return
        scopes = function.module.scopes
        if any(has_other_decorator(method, scopes) for method in (function.scope, known.forward)):
            return
        yield from _taken(function, known)
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


def _taken(function: FunctionModel, known: AutogradFunction) -> Iterator[Violation]:
    """Yield a backward that does not take one gradient for each output of forward."""
    takes = parameters(function.scope)
    assert known.forward is not None
    count = GradientCount(known.forward, known.tensors, function.module.scopes)
    ends = returns(known.forward)
    given = {count.of(node.value) for node in ends}
    outputs = given.pop() if len(given) == 1 else None
    if takes is None or outputs is None or len(takes) == 1 + outputs:
        return
    if sum(not item.has_default for item in takes) <= 1 + outputs <= len(takes):
        return
    taken = len(takes) - 1
    yield Violation(
        function.scope.node,
        f"backward takes {taken} gradient{'s' * (taken != 1)}, and forward returns {outputs} "
        f"output{'s' * (outputs != 1)}: torch raises a TypeError in backward()",
        Severity.ERROR,
        "take one gradient for each output, also for those that are not differentiable",
        ((ends[0], "the outputs"),),
    )
