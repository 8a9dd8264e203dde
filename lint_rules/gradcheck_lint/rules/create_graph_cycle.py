"""GCS206: backward(create_graph=True)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.flow import Backward, ZeroGrad
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.rules._hidden_acts import ZEROING, may_act_elsewhere
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class CreateGraphCycle(Rule):
    """``backward(create_graph=True)`` leaves parameters and gradients that hold each other."""

    entry = catalogue.CREATE_GRAPH_CYCLE
    part = Part.BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such call after which nothing drops the gradients."""
        events = list(function.events())
        for index, event in enumerate(events):
            if not isinstance(event, Backward) or not event.creates_graph:
                continue
            if any(isinstance(other, ZeroGrad) for other in events[index + 1 :]):
                continue
            if event.loops and any(isinstance(other, ZeroGrad) for other in events):
                continue
            if may_act_elsewhere(function, ZEROING):
                continue
            yield Violation(
                event.node,
                "backward(create_graph=True) lets each parameter and its gradient hold each other: "
                "the graph stays in memory until the gradients are set to None",
                Severity.WARNING,
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`",
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

def penalized_step(model: nn.Module, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward(create_graph=True)
    penalty = sum(p.grad.pow(2).sum() for p in model.parameters())
    penalty.backward()
    optimizer.step()
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def gradient_norm(model, criterion, x, y):
    loss = criterion(model(x), y)
    torch.autograd.backward([loss], create_graph=True)
    return sum(p.grad.square().sum() for p in model.parameters())
""",
            lines=(5,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def curvature(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward(create_graph=True)
        optimizer.step()

def penalty(model, x):
    loss = model(x).mean()
    grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    return sum(g.pow(2).sum() for g in grads)
""",
            why="dropped in each iteration, or never stored",
        ),
    )
