"""GCS304: gradients clipped where it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Clip
from gradcheck_lint.model.stepping import may_step_anywhere
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    dotted_name,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._protocol import problems
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._verdicts import Problem


class ClipMisplaced(Rule):
    """Clipping comes after the step, before backward, too often, or of an exhausted iterator."""

    entry = catalogue.CLIP_MISPLACED

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether gradients may be clipped there, or an optimizer may step in the file."""
        return may_step_anywhere(function.module) or _names_clipping(function)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)
        if not _names_clipping(function):
            return
        for event in function.events():
            if isinstance(event, Clip) and not event.expects_error:
                yield from _exhausted(function, event)

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
        Invalid(
            """\
import torch
from torch.nn.utils import clip_grad_norm_

def train(model, loader):
    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        clip_grad_norm_(trainable, 1.0)
        optimizer.step()

def fit(model, loader, optimizer):
    weights = (p for p in model.parameters() if p.ndim > 1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
""",
            lines=(10, 18),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch.nn.utils import clip_grad_norm_

def train(model, loader):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        weights = filter(lambda p: p.ndim > 1, trainable)
        clip_grad_norm_(weights, 1.0)
        clip_grad_norm_(trainable, 1.0)
        optimizer.step()
""",
            why="a list, or an iterator made anew each time",
        ),
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
        _MESSAGES[problem.kind] + problem.reservation,
        problem.severity,
        "clip once, between the last backward() and step()",
        tuple((event.node, _RELATED[problem.kind]) for event in problem.others[:1]),
    )


def _names_clipping(function: FunctionModel) -> bool:
    return any("clip_grad" in word for word in function.scope.words)


def _exhausted(function: FunctionModel, clip: Clip) -> Iterator[Violation]:
    """Yield a clipping of an iterator that an optimizer, or the clipping before, has used up."""
    assert isinstance(clip.node, cst.Call)
    handed = positional(clip.node)
    clipped = handed[0] if handed else keyword(clip.node, "parameters")
    if not isinstance(clipped, cst.Name):
        return
    name = clipped.value
    bound = function.bindings.get(name, frozenset())
    if len(bound) != 1:
        return
    (held,) = bound
    if not isinstance(held.node, cst.BaseExpression) or _is_iterator(held.node) is None:
        return
    nodes = list(walk(function.scope.node))
    order = {id(node): place for place, node in enumerate(nodes)}
    made = [
        (node, value)
        for node in nodes
        if type(node) in ASSIGNING
        for target, value in [assigned_once(node)]
        if isinstance(target, cst.Name) and target.value == name
    ]
    if len(made) != 1 or id(held.node) not in order:
        return
    ((node, value),) = made
    sure = _is_iterator(value)
    loops = held.loops
    if (
        sure is None
        or (not sure and held.kind is not Kind.PARAMETERS)
        or value is None
        or order[id(clip.node)] < order[id(node)]
    ):
        return
    users = [
        other
        for other in nodes
        if type(other) is cst.Call
        and order[id(node)] < order[id(other)] < order[id(clip.node)]
        and other.args
        and dotted_name(other.args[0].value) == name
        and function.module.makes_optimizer(other)
    ]
    by: cst.CSTNode
    if users:
        why, by, what = "the optimizer has used up: nothing", users[0], "used up here"
    elif clip.loops[: len(loops)] == loops and len(clip.loops) > len(loops):
        why = "can be gone through once: after the first iteration at the latest, nothing"
        by, what = node, "made once, outside the loop"
    else:
        return
    yield Violation(
        clip.node,
        f"`{name}` is an iterator, which {why} is clipped here",
        Severity.ERROR if sure else Severity.WARNING,
        f"make a list of it: `{name} = list(...)`",
        ((by, what),),
    )


def _is_iterator(node: cst.BaseExpression | None) -> bool | None:
    """Tell whether this can be gone through once; False where a class may have it otherwise."""
    if isinstance(node, cst.GeneratorExp):
        return True
    if not isinstance(node, cst.Call):
        return None
    if dotted_name(node.func) in {"filter", "map", "chain", "itertools.chain"}:
        return True
    is_parameters = isinstance(node.func, cst.Attribute) and node.func.attr.value == "parameters"
    return False if is_parameters else None
