"""GCS702: eval() without train() in a training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.flow import Backward, Call, Event, Loop, ModeSwitch, Step
from gradcheck_lint.model.values import sites, through_all
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StuckInEval(Rule):
    """A loop puts the model in evaluation mode and trains on in it."""

    entry = catalogue.STUCK_IN_EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every eval() after which the next iteration trains."""
        if function.module.scopes.uses_engine:
            return
        for loop in function.loops():
            events = list(_inside(loop, function, frozenset({id(function.scope)})))
            switches = [known for known in events if isinstance(known[0], ModeSwitch)]
            steps = [index for index, (known, _) in enumerate(events) if isinstance(known, Step)]
            if not steps or any(
                isinstance(known, ModeSwitch) and known.training is not False
                for known, _ in switches
            ):
                continue
            trained = frozenset[int]().union(
                *(
                    through_all(known.values)
                    for known, owner in events
                    if isinstance(known, Backward) and owner is function
                )
            )
            for index, (known, owner) in enumerate(events):
                if (
                    isinstance(known, ModeSwitch)
                    and owner is function
                    and index > steps[0]
                    and sites(known.values) & trained
                    and known.arms == loop.arms
                    and not _is_last(loop, function)
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
    )


def _inside(
    loop: Loop, function: FunctionModel, seen: frozenset[int]
) -> Iterator[tuple[Event, FunctionModel]]:
    """Yield the events of a loop and of the functions of the file that it calls."""
    for event in loop.body.events():
        yield from _followed(event, function, seen)


def _followed(
    event: Event, function: FunctionModel, seen: frozenset[int]
) -> Iterator[tuple[Event, FunctionModel]]:
    yield event, function
    if isinstance(event, Call) and event.function is not None and id(event.function) not in seen:
        called = function.module.function(event.function)
        for inner in called.events():
            yield from _followed(inner, called, seen | {id(event.function)})


def _is_last(loop: Loop, function: FunctionModel) -> bool:
    """Tell whether the loop hands the model to what might call train() itself."""
    for event in loop.body.events():
        if (
            isinstance(event, Call)
            and event.function is None
            and not event.harmless
            and event.handed & function.holders
        ):
            return True
    return False
