"""GCS702: eval() without train() in a training loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_lint.analyses.hidden_effects import TRAINING, may_act_unseen
from gradcheck_lint.analyses.intervals import come_round
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
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.paths import bound_parameters, in_caller
from gradcheck_lint.model.values import sites, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


class StuckInEval(Rule):
    """A loop puts the model in evaluation mode and trains on in it."""

    entry = catalogue.STUCK_IN_EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every eval() after which the next iteration trains."""
        is_near = function.module.near.has(function.scope, BACKWARD)
        if not is_near or function.runs_in_engine:
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
            # Who trains in evaluation mode from the start of each iteration on means to.
            is_meant = any(isinstance(item.event, ModeSwitch) for item in events[: steps[0]])
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
                        Severity.NOTE if is_meant else Severity.WARNING,
                        f"call `{known.receiver}.train()` at the start of each iteration",
                        ((loop.node, "the loop that goes on training"),),
                    )
                    break


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
