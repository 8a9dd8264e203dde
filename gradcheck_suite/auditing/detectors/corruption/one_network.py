"""A reference or target network that is the very network that is trained.

``self.reference = model`` and ``copy.copy(model)`` copy no parameter. Each call of a trained model
is heard in its first turns, with the expressions by which the running lines reach it. One that is
called by one name with a graph, and by another name of the same object or function without, step
after step and with results of one shape, is compared with itself.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import ForwardFinished
from gradcheck_suite.auditing.object_names.expressions import Way, ways_to
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["OneNetworkDetector"]

_MOST_LOOKS = 12
"""Calls of one line that are looked at, the first. A bound on cost: each takes some 50 us."""

_MOST_LINES = 256
"""Lines whose calls are looked at. A bound on memory."""

_ENOUGH = 3
"""Turns with calls by both names. Chosen: evaluation by another name comes once in many."""


@dataclass(slots=True)
class _Calls:
    """Calls by one name.

    Attributes:
        way: the name.
        site: the line of the first.
        turns: the shapes of their results in each turn.
        modes: in which modes the network was.
        made: where that name is assigned to, as far as that is known.
    """

    way: Way
    site: CallSite | None
    turns: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    modes: set[bool] = field(default_factory=set)
    made: Location | None = None


@dataclass(slots=True)
class _Network:
    """The parameters that one or several modules have, and the calls of these.

    Attributes:
        kind: the class of the module.
        modules: the modules that have just these parameters.
        recorded: the calls that recorded a graph, by whose name it was and by the name.
        bare: those that recorded none.
    """

    kind: str
    modules: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)
    recorded: dict[tuple[int, str], _Calls] = field(default_factory=dict)
    bare: dict[tuple[int, str], _Calls] = field(default_factory=dict)

    def has_two_names(self) -> bool:
        """Return whether one of its names may be the second of a pair."""
        return len(self.recorded.keys() | self.bare.keys()) > 1


class OneNetworkDetector:
    """Reports kept-by-reference (GCS111) of networks."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._classes: set[type[nn.Module]] = set()
        self._known: weakref.WeakKeyDictionary[nn.Module, _Network] = weakref.WeakKeyDictionary()
        # How many calls of a module on a line, with grad mode on or off, were looked at.
        self._looks: dict[tuple[object, ...], int] = {}
        self._networks: dict[frozenset[int], _Network] = {}

    def subscriptions(self) -> Subscriptions:
        """Ask for each call of the models that are met in the first steps."""
        return {ForwardFinished: self._meet}

    def _meet(self, event: ForwardFinished) -> None:
        kind = type(event.module)
        if kind in self._classes or isinstance(event.module, torch.jit.ScriptModule):
            return
        if any(each.requires_grad for each in event.module.parameters()):
            self._classes.add(kind)
            self._recorder.module_calls.listen_to_models(kind, self._after_call)
            self._after_call(event.module, event.output, ())

    def _after_call(self, module: nn.Module, output: Any, _given: tuple[Any, ...]) -> None:
        # This runs in each call of a model: what was looked at often enough is left out first.
        site = call_site()
        place = (None, 0) if site is None else (id(site[0]), site[1])
        line = (id(module), torch.is_grad_enabled(), *place)
        looks = self._looks.get(line, 0)
        if looks >= _MOST_LOOKS or (not looks and len(self._looks) >= _MOST_LINES):
            return
        state = self._recorder.state
        result = next(_tensors_of(output), None)
        if not state.running or result is None:
            return
        self._looks[line] = looks + 1
        network = self._network_of(module)
        recorded = result.requires_grad
        calls = network.recorded if recorded else network.bare
        turn, shape = state.optimizer_steps, tuple(result.shape)
        for way in ways_to(lambda value: value in network.modules if _is_module(value) else False):
            known = calls.get((way.holder, way.text))
            if known is None:
                known = calls[way.holder, way.text] = _Calls(way, site)
            is_new = turn not in known.turns
            known.turns.setdefault(turn, set()).add(shape)
            known.modes.add(module.training)
            # Now: a script's module is gone when its findings are asked for.
            if is_new and len(known.turns) == _ENOUGH and network.has_two_names():
                known.made = way.assigned_at()

    def _network_of(self, module: nn.Module) -> _Network:
        network = self._known.get(module)
        if network is None:
            # A shallow copy has the same parameters.
            key = frozenset(map(id, module.parameters())) or frozenset({id(module)})
            network = self._networks.get(key)
            if network is None or not network.modules:
                network = self._networks[key] = _Network(type(module).__name__)
            self._known[module] = network
            network.modules.add(module)
        return network

    def findings(self) -> list[Finding]:
        """Return one finding for each second name of a network."""
        return [
            _finding(network, first, second)
            for network in self._networks.values()
            for first, second in _pairs(network)
        ]


def _is_module(value: object) -> bool:
    return issubclass(type(value), nn.Module)


def _tensors_of(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for each in output.values():
            yield from _tensors_of(each)
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors_of(each)


def _pairs(network: _Network) -> Iterator[tuple[_Calls, _Calls]]:
    """Yield the calls by two names of which the second never trains, or may be detached."""
    recorded = list(network.recorded.items())
    bare = [each for each in network.bare.items() if each[0] not in network.recorded]
    # Parts of a module that are one are tied, as a rule.
    detached = [each for each in recorded[1:] if not each[1].way.of_module]
    for (holder, text), second in (*bare, *detached):
        for (other, name), first in recorded:
            if (other, name) == (holder, text):
                break
            if other == holder and _go_together(first, second):
                yield first, second
                break


def _go_together(first: _Calls, second: _Calls) -> bool:
    """Return whether most turns had calls by both names, with results of one shape."""
    common = [
        turn for turn, shapes in first.turns.items() if shapes & second.turns.get(turn, set())
    ]
    return len(common) >= _ENOUGH and 2 * len(common) >= len(first.turns)


def _finding(network: _Network, first: _Calls, second: _Calls) -> Finding:
    called = location_of(second.site)
    location = second.made or called
    is_bare = (second.way.holder, second.way.text) in network.bare
    how = f", as `{first.way.text}` with a graph and as `{second.way.text}` without" * is_bare
    doubts = []
    if first.modes.isdisjoint(second.modes):
        doubts.append("it was in another mode then")
    one, other = first.way.text, second.way.text
    turns = len(first.turns.keys() & second.turns.keys())
    return Finding.of(
        catalogue.KEPT_BY_REFERENCE,
        f"`{other}` has the parameters of `{one}` themselves: in {turns} of {len(first.turns)} "
        f"steps looked at, {network.kind} was called by both names{how}; each step of the one "
        "changes the other; expected a copy",
        detector="audit",
        severity=Severity.WARNING if is_bare else Severity.NOTE,
        doubts=doubts,
        location=location,
        related=related(
            (location_of(first.site), f"called as `{one}` here"),
            (called, f"called as `{other}` here"),
            apart_from=location,
        ),
        hint=f"{other} = copy.deepcopy({one})",
        evidence={"names": [one, other], "steps": turns, "module": network.kind},
    )
