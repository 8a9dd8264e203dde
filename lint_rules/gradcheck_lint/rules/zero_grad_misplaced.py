"""GCS302: zero_grad() that discards gradients no step has used."""

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


class ZeroGradMisplaced(Rule):
    """``zero_grad()`` comes between backward and step, or on each micro-batch of a window."""

    entry = catalogue.ZERO_GRAD_MISPLACED

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether an optimizer may step anywhere in the file."""
        return may_step_anywhere(function.module)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every reset that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader, criterion, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())

    def update(self, x):
        self.model(x).mean().backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
""",
            lines=(10,),
        ),
        Invalid(
            """\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def update(self):
        self.optimizer.zero_grad()
        self.optimizer.step()

    def fit(self, loader):
        for x in loader:
            self.model(x).mean().backward()
            self.update()
""",
            lines=(9,),
        ),
        Invalid(
            """\
import torch

def train(model, loader, optimizer, steps):
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x).mean() / steps
        loss.backward()
        if (i + 1) % steps == 0:
            optimizer.step()
""",
            lines=(5,),
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
        optimizer.step()
""",
            why="the order that torch documents",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
            why="a bad batch is skipped as a whole",
        ),
        Valid(
            """\
import torch

def train(G, D, loader, opt_g, opt_d):
    for x in loader:
        opt_d.zero_grad()
        D(x).mean().backward()
        opt_g.zero_grad()
        opt_d.step()
        D(G(x)).mean().backward()
        opt_g.step()
""",
            why="the reset is of another optimizer",
        ),
        Valid(
            """\
import torch

def learn(agent, q_optimizer, actor_optimizer, data, policy_frequency):
    for step, x in enumerate(data):
        q_optimizer.zero_grad()
        agent.q(x).mean().backward()
        q_optimizer.step()
        if step % policy_frequency == 0:
            actor_optimizer.zero_grad()
            agent.actor(x).mean().backward()
            actor_optimizer.step()
""",
            why="reset, backward and step are all rarer",
        ),
        Valid(
            """\
import torch

def sam(model, loader, base, loss_of):
    for x in loader:
        loss_of(model(x)).backward()
        first = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        loss_of(model(x)).backward()
        base.step()
        base.zero_grad()
""",
            why="a second backward follows the reset",
        ),
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
