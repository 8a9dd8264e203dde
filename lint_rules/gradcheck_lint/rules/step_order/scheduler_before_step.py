"""GCS306: a scheduler that steps before its optimizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.intervals import come_round
from gradcheck_lint.model.flow import Backward, Call, SchedulerStep, Step
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event, Loop
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class SchedulerBeforeStep(Rule):
    """A learning rate scheduler steps before its optimizer does."""

    entry = catalogue.SCHEDULER_BEFORE_STEP

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every scheduler that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)
        if function.module.mentions(b"%") and "step" in function.scope.words:
            for loop in function.loops():
                yield from _per_micro_batch(function, loop)


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        "the scheduler steps before the optimizer's first step: the first value of the schedule is "
        "skipped, and torch warns at run time" + problem.reservation,
        problem.severity,
        "call it after `optimizer.step()`",
        tuple((event.node, "the optimizer steps here, afterwards") for event in problem.others),
    )


_COUNTS_UPDATES: Final = re.compile(
    rb"len\([^\n]*/[^\n]*(?:accum|every|micro)|(?:num|total|max)_(?:updates|optim\w*_steps)"
)


def _per_micro_batch(function: FunctionModel, loop: Loop) -> Iterator[Violation]:
    """Yield the schedulers that step for each backward while the optimizer steps for several."""
    events = [e for e in loop.body.events() if e.loops and e.loops[-1] == loop.identity]
    steps = [event for event in events if isinstance(event, Step)]
    for event in events:
        if not isinstance(event, SchedulerStep) or type(event.node) is not cst.Call:
            continue
        if event.node.args or not steps:
            continue
        outside = len(event.arms)
        if not all(
            step.arms[:outside] == event.arms
            and len(step.arms) > outside
            and come_round(step.arms[outside:], loop.body, loop.node)
            for step in steps
        ):
            continue
        first = steps[0].arms[: outside + 1]
        if any(_computes(each, function) and each.arms[: outside + 1] != first for each in events):
            counts = _COUNTS_UPDATES.search(function.module.source) is not None
            is_left_to = function.module.scopes.uses_engine
            yield Violation(
                event.node,
                "the scheduler steps on each micro-batch, and the optimizer only every so many: "
                "the schedule runs out that many times too early"
                + ("" if counts else ", unless its length is counted in micro-batches"),
                Severity.WARNING if counts and not is_left_to else Severity.NOTE,
                "step it where the optimizer steps",
                ((steps[0].node, "the optimizer steps here"),),
            )


def _computes(event: Event, function: FunctionModel) -> bool:
    """Return whether backward() runs here, or in what is called here."""
    if isinstance(event, Call):
        return event.function is not None and function.module.near.has(event.function, BACKWARD)
    return isinstance(event, Backward)
