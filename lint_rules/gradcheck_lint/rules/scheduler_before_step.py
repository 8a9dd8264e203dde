"""GCS306: a scheduler that steps before its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.stepping import may_step_anywhere
from gradcheck_lint.rules._protocol import problems
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._verdicts import Problem


class SchedulerBeforeStep(Rule):
    """A learning rate scheduler steps before its optimizer does."""

    entry = catalogue.SCHEDULER_BEFORE_STEP

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether something steps there, and an optimizer anywhere in the file."""
        return "step" in function.scope.words and may_step_anywhere(function.module)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every scheduler that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        scheduler.step()
        optimizer.step()
""",
            lines=(9,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(epochs):
        scheduler.step()
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
""",
            why="after the epoch's steps",
        ),
        Valid(
            """\
import torch

def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(epochs):
        if epoch > 0:
            scheduler.step()
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
""",
            why="not in the first epoch",
        ),
    )


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        "the scheduler steps before the optimizer's first step: the first value of the schedule is "
        "skipped, and torch warns at run time" + problem.reservation,
        problem.severity,
        "call it after `optimizer.step()`",
        tuple((event.node, "the optimizer steps here, afterwards") for event in problem.others),
    )
