"""GCS303: step() with no fresh gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.model.flow import Proof, Step, ZeroGrad
from gradcheck_lint.model.values import sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class StepWithoutBackward(Rule):
    """An optimizer steps with gradients that no backward has renewed."""

    entry = catalogue.STEP_WITHOUT_BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)


_MESSAGES = {
    "order": (
        "step() comes before this iteration's backward(): the gradients have just been cleared, so "
        "the step changes nothing"
    ),
    "none": "step() runs, but no backward() on any path gives it gradients",
    "twice": "step() runs a second time without a backward() since the first: it applies the same "
    "gradients again",
}
_RELATED = {
    "order": ("cleared here", "backward comes here, after the step"),
    "none": ("cleared here",),
    "twice": ("the step that has used the gradients",),
}
_HINTS = {
    "order": "call backward() before step()",
    "none": "call backward() on the loss before step()",
    "twice": "remove one of the two",
}


def _violation(problem: Problem) -> Violation:
    related = tuple(
        (event.node, words)
        for event, words in zip(problem.others, _RELATED[problem.kind], strict=False)
        if event is not problem.event
    )
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind] + problem.reservation,
        min(problem.severity, Severity.ERROR if _is_optimizer(problem) else Severity.WARNING),
        _HINTS[problem.kind],
        related,
    )


def _is_optimizer(problem: Problem) -> bool:
    """Tell whether what steps is an optimizer of torch, or is used as one: it zeroes as well."""
    step = problem.event
    if not isinstance(step, Step) or step.proof is Proof.PROVEN:
        return True
    return step.proof is Proof.NAMED and any(
        isinstance(event, ZeroGrad)
        and (event.receiver == step.receiver or sites(event.values) & sites(step.values))
        for event in problem.function.events()
    )
