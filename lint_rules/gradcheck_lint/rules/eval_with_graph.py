"""GCS204: an evaluation that records graphs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, Event, Forward, GradMode, ModeSwitch
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are, held_by, sites, through_all
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class EvalWithGraph(Rule):
    """A model runs in evaluation mode while graphs are recorded that nobody uses."""

    entry = catalogue.EVAL_WITH_GRAPH
    part = Part.EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the first recorded forward after eval() in a function that needs no gradient."""
        if function.mode not in {GradMode.AMBIENT, GradMode.ENABLED}:
            return
        if _is_unit_test(function):
            return
        events = list(function.events())
        switched: dict[str, ModeSwitch] = {}
        for event in events:
            if isinstance(event, ModeSwitch) and event.receiver:
                if event.training is False:
                    switched[event.receiver] = event
                else:
                    switched.pop(event.receiver, None)
            elif (
                isinstance(event, Forward)
                and (switch := _switched(event, switched)) is not None
                and (event.loops or _is_evaluation(function))
                and event.mode in {GradMode.AMBIENT, GradMode.ENABLED}
            ):
                if _needs_gradients(function, events, event):
                    return
                yield Violation(
                    event.node,
                    f"`{event.receiver}` is in evaluation mode and runs while operations are "
                    "recorded: graphs are built that nobody differentiates",
                    Severity.WARNING,
                    "run it inside `with torch.no_grad():` or `torch.inference_mode()`",
                    ((switch.node, "put in evaluation mode here"),),
                )
                return

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    for x, y in test_loader:
        print((model(x).argmax(dim=1) == y).sum().item())
""",
            lines=(14,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def evaluate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()
    model.train()
    return correct
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
from torch import nn

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()
for x, y in train_loader:
    optimizer.zero_grad()
    out = model(x)
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
""",
            why="trained with frozen statistics, on purpose",
        ),
        Valid(
            """\
import torch

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(model(x).sum().item() for x in loader)

@torch.inference_mode()
def predict(model, loader):
    model.eval()
    return [model(x) for x in loader]
""",
            why="nothing is recorded",
        ),
        Valid(
            """\
import torch

def saliency(model, loader):
    model.eval()
    for x in loader:
        x.requires_grad_()
        model(x).max().backward()
        yield x.grad
""",
            why="the gradients are what is wanted",
        ),
        Valid(
            """\
import torch

def accuracy(model, loader):
    model.eval()
    for x, y in loader:
        print((model(x).argmax(1) == y).sum().item())

def main(model, loader):
    with torch.no_grad():
        accuracy(model, loader)
""",
            why="its only caller records nothing",
        ),
    )


def _switched(forward: Forward, switched: dict[str, ModeSwitch]) -> ModeSwitch | None:
    """Return what put the model into evaluation mode, or the one that it's a wrapper of."""
    known = switched.get(forward.receiver)
    if known is not None or not all_are(forward.values, Kind.MODULE, Kind.INSTANCE):
        return known
    inside = held_by(forward.values)
    return next((event for event in switched.values() if sites(event.values) & inside), None)


def _is_unit_test(function: FunctionModel) -> bool:
    """Tell whether this is a unit test, which runs a model once or twice."""
    if not function.scope.name.rpartition(".")[2].startswith("test_"):
        return False
    if function.scope.owner is not None or b"pytest" in function.module.source:
        return True
    return any(isinstance(node, cst.Assert) for node in walk(function.scope.node))


def _is_evaluation(function: FunctionModel) -> bool:
    """Tell whether a function is named after what it evaluates, and is no unit test."""
    name = function.scope.name.rpartition(".")[2].lower()
    return b"unittest" not in function.module.source and _EVALUATES.search(name) is not None


def _needs_gradients(function: FunctionModel, events: list[Event], forward: Forward) -> bool:
    """Tell whether gradients may be used, or may be off for reasons that lie elsewhere."""
    if function.module.sets_mode_for_all:
        return True
    inside = {id(known) for known in function.scope.nested.values()}
    is_top = isinstance(function.scope.node, cst.Module)
    backwards = [event for event in events if isinstance(event, Backward)]
    if any(
        not event.values or id(forward.node) in through_all(event.values) for event in backwards
    ):
        return True
    for event in events:
        if isinstance(event, Call) and event.function is not None:
            if event.mentions & sites(forward.result) and _differentiates(
                function.module.function(event.function)
            ):
                return True
            if not is_top and id(event.function) in inside:
                return True
    around = _statements_around(function, backwards, forward)
    if around is None or any(_is_gradient_word(node) for node in walk(around)):
        return True
    modes = function.module.modes_of_callers(function.scope)
    return forward.mode is GradMode.AMBIENT and bool(modes) and GradMode.ENABLED not in modes


def _statements_around(
    function: FunctionModel, backwards: list[Backward], forward: Forward
) -> cst.CSTNode | None:
    """Return the function, or the outermost loop round a forward that trains nothing."""
    if not backwards:
        return function.scope.node
    training = {loop for backward in backwards for loop in backward.loops}
    for loop in function.loops():
        if loop.identity in forward.loops and loop.identity not in training:
            return loop.node
    return None


def _differentiates(called: FunctionModel) -> bool:
    """Tell whether a function of the file, or one that it calls, may use gradients."""
    memo = called.module.memo
    key = ("differentiates", id(called.scope))
    if key not in memo:
        memo[key] = False
        memo[key] = any(map(_is_gradient_word, walk(called.scope.node))) or any(
            _differentiates(called.module.function(event.function))
            for event in called.events()
            if isinstance(event, Call) and event.function is not None
        )
    return bool(memo[key])


def _is_gradient_word(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Attribute):
        if node.attr.value == "step":
            # `env.step(action)` trains nothing.
            return _TRAINS.search((dotted_name(node.value) or "optimizer").lower()) is not None
        return node.attr.value in _GRADIENT_WORDS
    return isinstance(node, cst.Name) and node.value in _GRADIENT_WORDS


_EVALUATES = re.compile("test|eval|valid|predict|infer")
_TRAINS = re.compile(r"opt|engine|accelerat|trainer|scaler|closure")
_GRADIENT_WORDS = frozenset(
    {
        "backward",
        "grad",
        "requires_grad",
        "requires_grad_",
        "enable_grad",
        "attack",
        "jacrev",
    }
)
