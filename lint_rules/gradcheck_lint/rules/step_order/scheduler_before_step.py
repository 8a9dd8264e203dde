"""GCS306: a scheduler that steps before its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class SchedulerBeforeStep(Rule):
    """A learning rate scheduler steps before its optimizer does."""

    entry = catalogue.SCHEDULER_BEFORE_STEP

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every scheduler that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        "the scheduler steps before the optimizer's first step: the first value of the schedule is "
        "skipped, and torch warns at run time" + problem.reservation,
        problem.severity,
        "call it after `optimizer.step()`",
        tuple((event.node, "the optimizer steps here, afterwards") for event in problem.others),
    )
