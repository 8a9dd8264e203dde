"""GCS304: gradients clipped where it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.rules._protocol import problems
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._verdicts import Problem


class ClipMisplaced(Rule):
    """Clipping comes after the step, before backward, or on each micro-batch of a window."""

    entry = catalogue.CLIP_MISPLACED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            lines=(8,),
        ),
        Invalid(
            """\
import torch
from torch.nn.utils import clip_grad_value_

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        clip_grad_value_(model.parameters(), 0.5)
        loss.backward()
        optimizer.step()
""",
            lines=(8,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    for i, x in enumerate(loader):
        model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
            lines=(6,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
            why="between backward and step",
        ),
        Valid(
            """\
import torch

def train(a, b, loader, opt_a, opt_b):
    for x in loader:
        opt_a.zero_grad()
        opt_b.zero_grad()
        (a(x) + b(x)).mean().backward()
        torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
        opt_a.step()
        torch.nn.utils.clip_grad_norm_(b.parameters(), 1.0)
        opt_b.step()
""",
            why="each comes before the step of its own optimizer",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        print(norm)
""",
            why="with no limit it only measures",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for i, x in enumerate(loader):
        model(x).mean().backward()
        if i % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
            why="once for each window",
        ),
    )


_MESSAGES = {
    "after-step": (
        "the gradients are clipped after the step that uses them, so the clipping has no effect"
    ),
    "before-backward": (
        "the gradients are clipped before backward() computes them, so what the step uses is not "
        "clipped"
    ),
    "micro-batch": (
        "the gradients are clipped on every micro-batch while more are added before the step: "
        "the sum is not clipped, and early micro-batches count less"
    ),
}
_RELATED = {
    "after-step": "the step that has used them",
    "before-backward": "computed here",
    "micro-batch": "added to here again",
}


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind],
        Severity.ERROR if problem.certain else Severity.WARNING,
        "clip once, between the last backward() and step()",
        tuple((event.node, _RELATED[problem.kind]) for event in problem.others[:1]),
    )
