"""States of optimizers that were loaded, and that no step of their parameters uses.

An optimizer gives out its state by the position of each parameter, and keeps it by the parameter
itself. Where the parameters of its groups are replaced after the load, as by copies in float32, the
state stays with those of before; where another optimizer is made for the same parameters, with the
first one; and where the parameters are in another order than in the optimizer that was saved, each
has the moments of another. Nothing tells: an entry that is not there is made anew.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    OptimizerStateLoaded,
    SessionEnded,
    StateLoaded,
    StateTaken,
    StepSummarized,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, written
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,  # noqa: TC004 - as above
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["LoadedMomentsDetector"]

_OF_A_LINE = 4
"""States of models given out, or taken in, on one line that are looked at. A bound on cost: a
target network is brought up to date so in each step."""

_MOST = 16
"""Loads of states, and orders of parameters, that are remembered. A bound on memory."""

_ENOUGH = 2
"""Steps of an optimizer that was made for what another was restored for. Chosen: one may be a
try."""


@dataclass(slots=True)
class _Load:
    """A state that an optimizer was given.

    Attributes:
        site: where.
        optimizer: what was given it.
        kind: its class.
        window: of this optimizer.
        steps: how many it had taken by then.
        parameters: those that have a state of it.
        other: the first optimizer to step these in its place, with its window.
        other_site: where that stepped.
    """

    site: CallSite | None
    optimizer: weakref.ref[Optimizer]
    kind: str
    window: AccumulationWindow
    steps: int
    parameters: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)
    other: tuple[str, AccumulationWindow] | None = None
    other_site: CallSite | None = None

    def owned_of(self, parameters: Iterable[Tensor]) -> int:
        """Return how many of these have a state of it."""
        known = ((each, self.parameters.get(id(each))) for each in parameters)
        return sum(reference is not None and reference() is each for each, reference in known)


class LoadedMomentsDetector:
    """Reports loaded-and-overwritten (GCS415) of the states of optimizers."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._loads: list[_Load] = []
        self._lines: dict[tuple[type, CallSite | None], int] = {}
        # By the names of an optimizer's parameters: the orders in which those that were saved had
        # them, and where.
        self._orders: dict[tuple[str, frozenset[str]], tuple[tuple[str, ...], CallSite | None]] = {}
        self._restored: list[weakref.ref[nn.Module]] = []
        self._found: dict[CallSite | None, Finding] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what is saved and loaded, and at the first step after it."""
        return {
            StateTaken: self._take,
            StateLoaded: self._restore,
            OptimizerStateLoaded: self._load,
            StepSummarized: self._end_step,
            SessionEnded: self._end,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that loads."""
        return list(self._found.values())

    def _is_often(self, event: StateTaken | StateLoaded) -> bool:
        key = (type(event), event.site)
        self._lines[key] = self._lines.get(key, 0) + 1
        return self._lines[key] > _OF_A_LINE

    def _take(self, event: StateTaken) -> None:
        """Remember in which order the optimizers have the parameters of a model that is saved."""
        if self._is_often(event) or len(self._orders) >= _MOST:
            return
        names = _names_of(event.module)
        for optimizer in self._recorder.optimizers.known():
            order = _order_of(optimizer, names)
            if order and optimizer.state:
                key = (type(optimizer).__name__, frozenset(order))
                self._orders.setdefault(key, (order, event.site))

    def _restore(self, event: StateLoaded) -> None:
        if not self._is_often(event) and len(self._restored) < _MOST:
            self._restored.append(weakref.ref(event.module))

    def _load(self, event: OptimizerStateLoaded) -> None:
        optimizer = event.optimizer
        stateful = [
            each
            for each, state in optimizer.state.items()
            if isinstance(state, dict) and any(map(_is_moment, state.values()))
        ]
        if not stateful or len(self._loads) >= _MOST:
            return
        window = self._windows.of(optimizer)
        window.is_followed = True
        self._loads.append(
            _Load(
                event.site,
                weakref.ref(optimizer),
                type(optimizer).__name__,
                window,
                window.steps,
                {id(each): weakref.ref(each) for each in stateful},
            )
        )

    def _end_step(self, event: StepSummarized) -> None:
        if not self._loads:
            return
        optimizer = event.step.optimizer
        window = self._windows.stepped
        for load in list(self._loads):
            if load.optimizer() is optimizer:
                self._loads.remove(load)
                self._used(load, optimizer, event.step.site)
            elif load.other is None:
                parameters = parameters_of(optimizer)
                if load.owned_of(parameters) * 2 > len(load.parameters):
                    load.other = type(optimizer).__name__, window
                    load.other_site = event.step.site

    def _used(self, load: _Load, optimizer: Optimizer, stepped: CallSite | None) -> None:
        """Look at the first step of what was restored."""
        parameters = parameters_of(optimizer)
        if not load.owned_of(parameters):
            # What was moved, or dropped on purpose, no longer stands there.
            if load.owned_of(optimizer.state) * 2 <= len(load.parameters):
                return
            self._tell(load, _replaced(load, len(parameters), stepped))
            return
        for reference in reversed(self._restored):
            module = reference()
            order = () if module is None else _order_of(optimizer, _names_of(module))
            saved, site = self._orders.get((load.kind, frozenset(order)), ((), None))
            if order and saved and saved != order:
                self._tell(load, _in_another_order(load, saved, order, site))
                return

    def _end(self, _event: SessionEnded) -> None:
        for load in self._loads:
            if load.other is not None and load.window.steps == load.steps:
                kind, window = load.other
                if window.steps >= _ENOUGH:
                    self._tell(load, _by_another(load, kind, window.steps))

    def _tell(self, load: _Load, finding: Finding) -> None:
        self._found.setdefault(load.site, finding)


def _is_moment(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _names_of(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in module.named_parameters()}


def _order_of(optimizer: Optimizer, names: dict[int, str]) -> tuple[str, ...]:
    """Return the names of its parameters, in its order; none where one is not of this module."""
    order = tuple(names.get(id(each), "") for each in parameters_of(optimizer))
    return order if all(order) else ()


def _replaced(load: _Load, count: int, stepped: CallSite | None) -> Finding:
    where = location_of(load.site)
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{load.kind} was given the states of {plural(len(load.parameters), 'parameter')}, none of "
        f"which it owned any more at its first step after that: its {count} had been put in their "
        "place, and began without a state; expected the states to go with them",
        detector="audit",
        location=where,
        related=related((location_of(stepped), "it steps others here"), apart_from=where),
        hint="replace the parameters first and load afterwards, or move each state to its new "
        "parameter: optimizer.state[new] = optimizer.state.pop(old)",
        evidence={"optimizer": load.kind, "states": len(load.parameters)},
    )


def _by_another(load: _Load, kind: str, steps: int) -> Finding:
    where = location_of(load.site)
    doubts = [f"it is a {kind} that steps them, not a {load.kind}"] if kind != load.kind else []
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{load.kind} was given a state and never stepped after that: another {kind} took "
        f"{plural(steps, 'step')} of its parameters, and began without a state; expected the one "
        "that was restored to step",
        detector="audit",
        location=where,
        doubts=doubts,
        related=related(
            (location_of(load.other[1].constructed_at) if load.other else None, "made here"),
            (location_of(load.other_site), "stepped here"),
            apart_from=where,
        ),
        hint="load the state into the optimizer that steps",
        evidence={"optimizer": load.kind, "stepped": kind, "steps": steps},
    )


def _in_another_order(
    load: _Load, saved: tuple[str, ...], order: tuple[str, ...], site: CallSite | None
) -> Finding:
    moved = [(new, old) for new, old in zip(order, saved, strict=True) if new != old]
    names = tuple(written(new) for new, _ in moved)
    where = location_of(load.site)
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{load.kind} takes its state by position, and has its parameters in another order than "
        f"the one whose model was saved: {listed(names)} got the moments of "
        f"{listed([written(old) for _, old in moved])}; expected one order in both runs",
        detector="audit",
        location=where,
        related=related((location_of(site), "saved here"), apart_from=where),
        hint="make the layers, or the groups, in an order that does not depend on the data",
        evidence={"optimizer": load.kind, "parameters": names},
    )
