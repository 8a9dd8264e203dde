"""GCS305: scaled gradients that are clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.stepping import may_step_anywhere
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.rules._protocol import problems
from gradcheck_lint.rules._rule import Fix, Insertion, Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._verdicts import Problem


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while a ``GradScaler`` has still scaled them."""

    entry = catalogue.CLIP_BEFORE_UNSCALE

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether an optimizer may step anywhere in the file."""
        return may_step_anywhere(function.module)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
            lines=(10,),
            fixed="""\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
            why="unscaled before",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
            why="only the scaled path unscales",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
            why="a scaler that is switched off",
        ),
    )


def _violation(problem: Problem) -> Violation:
    backward, step = problem.others
    return Violation(
        problem.event.node,
        "the gradients are still multiplied by the scaler when they are clipped, so the limit is "
        "thousands of times too low and the scaler undoes it only after that",
        Severity.ERROR,
        "call `scaler.unscale_(optimizer)` before clipping",
        ((backward.node, "scaled here"), (step.node, "unscaled only here, by the step")),
        fix=_fix(problem.event.node, step),
    )


def _fix(clip: cst.CSTNode, step: Event) -> Fix | None:
    call = step.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    scaler, optimizer = dotted_name(call.func.value), None
    if len(call.args) == 1:
        optimizer = dotted_name(call.args[0].value)
    if scaler is None or optimizer is None:
        return None
    insertion = Insertion(clip, f"{scaler}.unscale_({optimizer})")
    return Fix((insertion,), "Call unscale_() before clipping", safe=True)
