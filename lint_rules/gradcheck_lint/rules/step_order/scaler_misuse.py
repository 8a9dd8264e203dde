"""GCS310: GradScaler calls that are missing, doubled or out of order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class ScalerMisuse(Rule):
    """Calls of a ``GradScaler`` are missing, doubled or out of order."""

    entry = catalogue.SCALER_MISUSE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every call of a scaler that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)


_MESSAGES = {
    "step": (
        "the loss was scaled, but the optimizer steps without the scaler: it uses gradients that "
        "are thousands of times too large"
    ),
    "unscaled-backward": (
        "the scaler makes the step, but backward() was called on a loss that it did not scale: "
        "gradients are divided by a factor that they don't have, or torch raises"
    ),
    "scaled-and-not": (
        "this adds the gradients of a loss that the scaler did not scale to those of one that it "
        "did: unscaling divides both, so what this adds is thousands of times too small"
    ),
    "another-scaler": (
        "this scaler makes the step, but another one has scaled the loss: torch raises, or the "
        "gradients are divided by a factor that they don't have"
    ),
    "no-update": (
        "no update() of the scaler follows this step before the next one: torch raises there"
    ),
    "unchecked-step": (
        "the optimizer steps without the scaler, which has unscaled its gradients: a step with "
        "infinite or NaN gradients isn't skipped"
    ),
    "unscale-each": (
        "unscale_() runs for each micro-batch, but the scaler steps once a window: the second "
        "call before update() raises"
    ),
    "update-first": (
        "update() comes before the scaler's step: it raises where nothing was unscaled, and the "
        "step divides gradients by a factor that they don't have"
    ),
    "update-each": (
        "update() runs for each micro-batch, but the scaler steps once a window: it raises where "
        "no step came before it"
    ),
    "unscale-twice": "unscale_() runs a second time before update(): torch raises here",
    "unscale-after-step": "unscale_() runs after the scaler's step: torch raises here",
}
_HINTS = {
    "step": "call `scaler.step(optimizer)` and then `scaler.update()`",
    "unscaled-backward": "call `scaler.scale(loss).backward()`",
    "scaled-and-not": "call `scaler.scale(loss).backward()`",
    "another-scaler": "scale, unscale, step and update with one scaler",
    "no-update": "call `scaler.update()` once, after all steps of the iteration",
    "unchecked-step": "call `scaler.step(optimizer)`",
    "unscale-each": "call it where the window ends, before clipping",
    "update-first": "call `scaler.update()` once, after all steps of the iteration",
    "update-each": "call it where the window ends, after the step",
    "unscale-twice": "call it once for each optimizer and step",
    "unscale-after-step": "call it between backward() and step()",
}


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind] + problem.reservation,
        problem.severity,
        _HINTS[problem.kind],
        tuple(
            (event.node, "together with this")
            for event in problem.others
            if event is not problem.event
        ),
    )
