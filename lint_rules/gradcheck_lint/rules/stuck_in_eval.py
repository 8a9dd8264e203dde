"""GCS702: eval() without train() in a training loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Event,
    GradMode,
    Loop,
    ModeSwitch,
    Step,
    can_repeat,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.nearness import CALLS_BACKWARD, STEP
from gradcheck_lint.model.paths import bound_parameters, in_caller
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.stepping import may_step_anywhere
from gradcheck_lint.model.values import sites, through_all
from gradcheck_lint.rules._hidden_acts import TRAINING, may_act_unseen
from gradcheck_lint.rules._intervals import come_round
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


class StuckInEval(Rule):
    """A loop puts the model in evaluation mode and trains on in it."""

    entry = catalogue.STUCK_IN_EVAL
    part = Part.LOOP

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function, or what it calls, differentiates and steps."""
        near = function.module.near
        return (
            may_step_anywhere(function.module)
            and near.has(function.scope, STEP)
            and near.has(function.scope, CALLS_BACKWARD)
        )

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every eval() after which the next iteration trains."""
        if function.runs_in_engine:
            return
        for loop in function.loops():
            events = list(_inside(loop, function))
            switches = [item.event for item in events if isinstance(item.event, ModeSwitch)]
            steps = [index for index, item in enumerate(events) if isinstance(item.event, Step)]
            if not steps or any(known.training is not False for known in switches):
                continue
            trained = frozenset[Hashable]().union(
                *(
                    item.in_loop(through_all(item.event.values))
                    for item in events
                    if isinstance(item.event, Backward)
                )
            )
            for index, item in enumerate(events):
                known = item.event
                if (
                    isinstance(known, ModeSwitch)
                    and index > steps[0]
                    and item.in_loop(sites(known.values)) & trained
                    and can_repeat(loop, item.leading)
                    and item.keeps_happening(loop)
                    and not any(map(_may_switch_back, events))
                    and not may_act_unseen(function, TRAINING)
                ):
                    yield Violation(
                        known.node,
                        f"`{known.receiver}` is put in evaluation mode in this loop and never "
                        "back: from the next iteration on it trains without dropout and with "
                        "frozen batch statistics",
                        Severity.WARNING,
                        f"call `{known.receiver}.train()` at the start of each iteration",
                        ((loop.node, "the loop that goes on training"),),
                    )
                    break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
import torch.nn.functional as F

def fit(model, optimizer, loader, validation, epochs=2):
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in validation:
                print(F.cross_entropy(model(x), y).item())
""",
            lines=(11,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def evaluate(loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x) - y).square().mean().item() for x, y in loader)

def fit(loader, validation, epochs):
    model.train()
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        print(evaluate(validation))
""",
            lines=(8,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train_epoch(net, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    return sum(F.cross_entropy(net(x), y).item() for x, y in loader)

def main(model, optimizer, loader, validation):
    model.train()
    for epoch in range(10):
        train_epoch(model, optimizer, loader)
        print(evaluate(model, validation))
""",
            lines=(12,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def fit(model, optimizer, loader, validation):
    model.train()
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                print(model(validation).mean().item())

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        return sum(self.model(x).mean().item() for x in loader)

    def fit(self, loader, validation, epochs):
        self.model.train()
        for epoch in range(epochs):
            for x in loader:
                self.optimizer.zero_grad()
                self.model(x).mean().backward()
                self.optimizer.step()
            print(self.validate(validation))
""",
            lines=(10, 21),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
import torch.nn.functional as F

def fit(model, teacher, optimizer, loader, validation, epochs=2):
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in validation:
                print(F.cross_entropy(model(x), y).item())
""",
            why="train() comes round again",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def evaluate(model, loader):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss = sum(F.cross_entropy(model(x), y).item() for x, y in loader)
    model.train(was_training)
    return loss

def test(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in loader)

def train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

def fit(model, optimizer, loader, validation, epochs):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(evaluate(model, validation))

def main(model, optimizer, loader, validation, epochs):
    for _ in range(epochs):
        train(model, optimizer, loader)
        test(model, validation)
""",
            why="the mode is put back, or set anew by the function that trains",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in loader)

def fit(model, averaged, optimizer, loader, validation, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(evaluate(averaged, validation))
        if epoch == epochs - 1:
            print(evaluate(model, validation))
""",
            why="the average of the model; the model itself in the last epoch alone",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def distil(model, teacher, optimizer, loader, epochs=2):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), teacher(x).detach()).backward()
            optimizer.step()
        teacher.eval()
""",
            why="another model",
        ),
        Valid(
            """\
import torch

def fit(model, optimizer, loader, validation, epochs, most):
    for epoch in range(epochs):
        model.train()
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if (step + 1) % len(loader) == 0:
                model.eval()
                print(model(validation).mean().item())

def fit_until(model, optimizer, loader, validation):
    model.train()
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if (step + 1) % 1000 == 0:
            model.eval()
            return model(validation).mean().item()
""",
            why="after the last iteration alone",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Happening:
    """An event in a loop or in a function of the file that the loop calls.

    ``calls`` lead there, outermost first. ``binding`` says which objects of the loop's function the
    parameters stand for.
    """

    event: Event
    owner: FunctionModel
    calls: tuple[Call, ...]
    binding: Mapping[int, frozenset[int]]

    @property
    def leading(self) -> Event:
        """Return the event of the loop's function that leads to this one."""
        return self.calls[0] if self.calls else self.event

    def in_loop(self, found: frozenset[int]) -> frozenset[Hashable]:
        """Return what the sites are in the loop's function; ``self.model`` is one in all methods.

        A method that is called in between may bind it anew, but hardly to another model.
        """
        on_self = self.owner.module.on_self
        return frozenset(on_self(site) or site for site in self.sites_in_loop(found))

    def sites_in_loop(self, found: frozenset[int]) -> frozenset[int]:
        """Return the sites of the loop's function that these are."""
        return frozenset().union(*(in_caller(site, self.binding, self.owner) for site in found))

    def keeps_happening(self, loop: Loop) -> bool:
        """Tell whether only branches taken every so often lie between the loop and the event."""
        way = (*self.calls, self.event)
        if way[0].arms[: len(loop.arms)] != loop.arms or any(known.arms for known in way[1:]):
            return False
        return come_round(way[0].arms[len(loop.arms) :], loop)


def _inside(loop: Loop, function: FunctionModel) -> Iterator[_Happening]:
    """Yield the events of a loop and of the functions of the file that it calls."""
    for event in loop.body.events():
        yield from _followed(_Happening(event, function, (), {}))


def _followed(item: _Happening) -> Iterator[_Happening]:
    yield item
    event = item.event
    if not isinstance(event, Call) or event.function is None or event.referenced:
        return
    if len(item.calls) >= _MOST_CALLS or any(
        call.function is event.function for call in item.calls
    ):
        return
    called = item.owner.module.function(event.function)
    # A decorator that is not known may put the mode back.
    if called is item.owner or called.mode is GradMode.UNKNOWN:
        return
    binding = {
        **item.binding,
        **{
            site: item.sites_in_loop(found)
            for site, found in bound_parameters(event, called).items()
        },
    }
    for inner in called.events():
        yield from _followed(_Happening(inner, called, (*item.calls, event), binding))


_MOST_CALLS = 4


def _may_switch_back(item: _Happening) -> bool:
    """Tell whether this hands the model to what might call train() itself."""
    event = item.event
    return (
        isinstance(event, Call)
        and event.function is None
        and not event.harmless
        and bool(event.handed & item.owner.holders)
    )
