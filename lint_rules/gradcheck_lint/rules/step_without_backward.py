"""GCS303: step() with no fresh gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.flow import Proof, Step, ZeroGrad
from gradcheck_lint.model.stepping import may_step
from gradcheck_lint.model.values import sites
from gradcheck_lint.rules._protocol import problems
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._verdicts import Problem


class StepWithoutBackward(Rule):
    """An optimizer steps with gradients that no backward has renewed."""

    entry = catalogue.STEP_WITHOUT_BACKWARD

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether an optimizer may step there."""
        return may_step(function.module, function.scope)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(G, D, loader):
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    for z, real in loader:
        opt_d.zero_grad()
        (D(G(z).detach()).mean() - D(real).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        loss = -D(G(z)).mean()
        opt_g.step()
""",
            lines=(12,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, criterion, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        optimizer.step()
        loss.backward()
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        optimizer.step()
""",
            lines=(8,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        optimizer.step()
""",
            lines=(8,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward
        optimizer.step()
""",
            lines=(9,),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train(G, D, loader):
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    for z, real in loader:
        opt_d.zero_grad()
        (D(G(z).detach()).mean() - D(real).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        (-D(G(z)).mean()).backward()
        opt_g.step()
""",
            why="each optimizer steps after its own backward",
        ),
        Valid(
            """\
import torch

class Composite(torch.optim.Optimizer):
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for key, opt in self.optimizers.items():
            opt.step()
        return loss
""",
            why="each optimizer of a collection steps once",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
            why="backward comes first",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer, engine):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        engine.backward(loss)
        optimizer.step()
""",
            why="somebody else calls backward",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        grads = torch.autograd.grad(model(x).mean(), list(model.parameters()))
        for p, g in zip(model.parameters(), grads):
            p.grad = g
        optimizer.step()
""",
            why="the gradients are put in by hand",
        ),
        Valid(
            """\
import torch

def fit(model, x, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        return loss
    for _ in range(20):
        optimizer.step(closure)
""",
            why="the closure calls backward",
        ),
        Valid(
            """\
import torch
from .engine import train_one_batch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = train_one_batch(model, x)
        optimizer.step()
""",
            why="a function of another file may call backward",
        ),
        Valid(
            """\
import torch

def warm_up(optimizer, scheduler, steps):
    optimizer.zero_grad()
    for _ in range(steps):
        scheduler.step()
""",
            why="only the schedule steps",
        ),
    )


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
