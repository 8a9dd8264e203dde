"""GCS702: eval() without train() in a training loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_lint.analyses.dispatched_calls import as_given, dispatched
from gradcheck_lint.analyses.hidden_effects import TRAINING, may_act_unseen
from gradcheck_lint.analyses.intervals import come_round
from gradcheck_lint.model.flow import (
    Backward,
    Block,
    Call,
    Event,
    Forward,
    GradMode,
    Loop,
    ModeSwitch,
    Step,
    can_repeat,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.paths import bound_parameters, in_caller
from gradcheck_lint.model.values import NOTHING, sites, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


class StuckInEval(Rule):
    """A loop puts the model in evaluation mode and trains on in it."""

    entry = catalogue.STUCK_IN_EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every eval() that training goes on in."""
        is_near = function.module.near.has(function.scope, BACKWARD)
        if not is_near or function.runs_in_engine:
            return
        yield from _undone(function)
        for loop in function.loops():
            events = list(_followed_all(loop.body, function))
            switches = [item.event for item in events if isinstance(item.event, ModeSwitch)]
            steps = [index for index, item in enumerate(events) if isinstance(item.event, Step)]
            if not steps or any(known.training is not False for known in switches):
                continue
            trained = _trained(events)
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


def _trained(events: Sequence[_Happening]) -> frozenset[Hashable]:
    """Return the models of the loop's function that are differentiated, run by a method or not."""
    found: set[Hashable] = set()
    through: set[int] = set()
    for item in events:
        if isinstance(item.event, Backward):
            reached = through_all(item.event.values)
            through |= reached
            found |= item.in_loop(reached)
    for item in events:
        if isinstance(item.event, Forward) and sites(item.event.values) & through:
            found |= item.in_loop(sites(item.event.values))
    return frozenset(found)


def _undone(function: FunctionModel) -> Iterator[Violation]:
    """Yield every eval() between a train() of a model and the pass that the model trains by.

    As a helper leaves behind that attacks the model, or scores with it. Where a train() comes
    later, or another pass before, the modes are changed on purpose.
    """
    module = function.module
    if not module.mentions(b".eval(", b"train(False") or not module.mentions(b".train("):
        return
    undone = _Modes()
    for item in _followed_all(function.block, function):
        if _may_switch_back(item):
            return
        undone.follow(item)
    told: set[int] = module.memo.setdefault("undone train()", set())
    for train, switch, backward in undone.found.values():
        if id(switch.event.node) in told:
            continue
        told.add(id(switch.event.node))
        assert isinstance(switch.event, ModeSwitch)
        yield Violation(
            switch.event.node,
            f"`{switch.event.receiver}` is put in training mode and, before it trains, back in "
            "evaluation mode here: it trains without dropout and with frozen batch statistics",
            Severity.WARNING,
            f"call `{switch.event.receiver}.train()` again once this mode has served",
            ((train.event.node, "undone by this"), (backward.event.node, "it trains by this")),
        )


@dataclass(slots=True)
class _Modes:
    """The modes that models are put in along one way, and what they train in.

    ``switched`` are the last two switches of each model, ``passed`` those that each forward came
    after, ``found`` a train(), an eval() and the backward of a pass after them.
    """

    switched: dict[Hashable, list[_Happening]] = field(default_factory=dict)
    passed: dict[int, dict[Hashable, list[_Happening]]] = field(default_factory=dict)
    found: dict[Hashable, list[_Happening]] = field(default_factory=dict)

    def follow(self, item: _Happening) -> None:
        """Take note of one more event."""
        event = item.event
        if isinstance(event, ModeSwitch):
            for key in item.in_loop(sites(event.values)):
                self.switched[key] = [*self.switched.get(key, [])[-1:], item]
                if event.training is not False:
                    self.found.pop(key, None)
        elif isinstance(event, Forward) and event.mode is not GradMode.DISABLED:
            keys = item.in_loop(sites(event.values)) & self.switched.keys()
            self.passed[id(event.node)] = {key: self.switched[key] for key in keys}
            # A train() that a pass came after has served.
            self.switched.update({key: [] for key in keys if _trains(self.switched[key])})
        elif isinstance(event, Backward):
            for forward in through_all(event.values) & self.passed.keys():
                for key, switches in self.passed[forward].items():
                    if _undoes(switches, item):
                        self.found.setdefault(key, [*switches, item])


def _trains(switches: Sequence[_Happening]) -> bool:
    last = switches[-1].event if switches else None
    return isinstance(last, ModeSwitch) and last.training is not False


def _undoes(switches: Sequence[_Happening], backward: _Happening) -> bool:
    """Tell whether two switches are train() and eval(), on each way to a backward."""
    if len(switches) < 2:  # noqa: PLR2004 - one and its opposite
        return False
    train, switch = switches
    assert isinstance(train.event, ModeSwitch)
    assert isinstance(switch.event, ModeSwitch)
    if train.event.training is not True or switch.event.training is not False:
        return False
    return all(
        item.leading.arms == backward.leading.arms[: len(item.leading.arms)]
        and not any(inner.arms for inner in (*item.calls, item.event)[1:])
        for item in switches
    )


@dataclass(frozen=True, slots=True)
class _Happening:
    """An event in a loop or in a function of the file that the loop calls.

    ``calls`` lead there, outermost first, and ``owners`` are what they call. ``binding`` says which
    objects of the loop's function the parameters stand for.
    """

    event: Event
    owner: FunctionModel
    calls: tuple[Call, ...]
    binding: Mapping[int, frozenset[int]]
    owners: tuple[FunctionModel, ...] = ()

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
        if self.leading.arms[: len(loop.arms)] != loop.arms:
            return False
        own = self.leading.arms[len(loop.arms) :]
        return come_round(own, loop.body, loop.node) and all(
            come_round(event.arms, owner.block, owner.scope.node)
            for event, owner in zip((*self.calls, self.event)[1:], self.owners, strict=True)
        )


def _followed_all(block: Block, function: FunctionModel) -> Iterator[_Happening]:
    """Yield the events of a block and of the functions of the file that it calls."""
    for event in block.events():
        yield from _followed(_Happening(event, function, (), {}))


def _followed(item: _Happening) -> Iterator[_Happening]:
    event = item.event
    methods = [] if not isinstance(event, Call) else dispatched(event, item.owner, item.calls)
    if not methods:
        yield item
    if not isinstance(event, Call) or event.referenced or len(item.calls) >= _MOST_CALLS:
        return
    own = [] if event.function is None else [event.function]
    for scope in methods or own:
        if any(owner.scope is scope for owner in item.owners):
            continue
        called = item.owner.module.function(scope)
        # A decorator that is not known may put the mode back.
        if called is item.owner or called.mode is GradMode.UNKNOWN:
            continue
        binding = {**item.binding, **_bound(event, called, item)}
        calls, owners = (*item.calls, event), (*item.owners, called)
        for inner in called.events():
            yield from _followed(_Happening(inner, called, calls, binding, owners))


def _bound(call: Call, called: FunctionModel, item: _Happening) -> dict[int, frozenset[int]]:
    """Return what the parameters of a called function, ``self`` as well, are to the loop."""
    given = bound_parameters(call, called)
    if call.function is None:
        given = as_given(call, called, item.owner)
    found = {site: item.sites_in_loop(each) for site, each in given.items()}
    first = called.scope.first_parameter
    if call.on and called.scope.owner is not None and first and not call.is_constructor:
        own = sites(called.bindings.get(first, NOTHING))
        found.update(dict.fromkeys(own, item.sites_in_loop(call.on)))
    return found


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
