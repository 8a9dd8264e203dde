"""GCS302: zero_grad() that discards gradients no step has used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.dropped_windows import dropped_windows
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class ZeroGradMisplaced(Rule):
    """``zero_grad()`` comes between backward and step, or on each micro-batch of a window."""

    entry = catalogue.ZERO_GRAD_MISPLACED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every reset that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _unused(problem) if problem.kind == "unused" else _violation(problem)
        for dropped in dropped_windows(function):
            yield Violation(
                dropped.reset.node,
                f"each epoch throws away the gradients of its last window: `{dropped.counter}` "
                "goes on from epoch to epoch, so the step after this comes as early as if they "
                "were there, and uses those of fewer batches",
                Severity.WARNING,
                "zero after each step alone, or begin to count anew in each epoch",
                ((dropped.test, "the step waits for this"),),
            )


def _unused(problem: Problem) -> Violation:
    step, reset = problem.others
    return Violation(
        problem.event.node,
        f"no step uses the gradients of this backward(): `{getattr(step, 'receiver', None)}` has "
        f"stepped before it, and they are cleared before it steps again{problem.reservation}",
        problem.severity,
        "step after this backward()",
        ((step.node, "the step that comes too early"), (reset.node, "cleared here")),
    )


_MESSAGES = {
    "between": (
        "zero_grad() clears the gradients between backward() and step(), so the step does not see "
        "the loss at all"
    ),
    "window": (
        "zero_grad() runs on every micro-batch, but the step only every so often: it uses the "
        "gradients of the last micro-batch alone"
    ),
}
_HINTS = {
    "between": "call zero_grad() before backward() or after step()",
    "window": "call zero_grad() right after step(), inside the same `if`",
}


def _violation(problem: Problem) -> Violation:
    first, last = problem.others[0], problem.others[-1]
    related = (
        (first.node, "computed here" if problem.kind == "between" else "the step that follows"),
        (last.node, "stepped here" if problem.kind == "between" else "added to here each time"),
    )
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind] + problem.reservation,
        problem.severity,
        _HINTS[problem.kind],
        related,
    )
