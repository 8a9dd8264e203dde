"""Tensors of an optimizer's state that are the memory of something else.

``state["previous"] = p.grad`` and ``state["slow"] = p.data`` are no copies: what was kept is what
it is to be compared with. ``load_state_dict(other.state_dict())`` copies no tensor that fits, so
that each of two optimizers writes the moments of the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.step_order.shared_memory import have_elements_in_common
from gradcheck_suite.auditing.events import OptimizerStateLoaded, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.source_analysis.assignments import kept_by_reference_at
from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["SharedStateDetector"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

_ENOUGH = 2
"""Steps that found it. Chosen: what is replaced before it is used is found by one."""

_MOST_OPTIMIZERS = 64
"""Optimizers whose states are compared. A bound on cost where each task of many has its own."""


@dataclass(slots=True)
class _Shared:
    """Entries of the states of an optimizer that are the memory of something else.

    Attributes:
        optimizer: its class.
        keys: the names of the entries in the state of a parameter.
        tensors: which these are, by their address.
        made: where the entry was set, or the state loaded; None where that is not known.
        site: the line of the first step that found it.
        steps: how many have.
        of: the identities of the optimizers whose steps have.
    """

    optimizer: str
    made: Location | None
    site: CallSite | None
    keys: list[str] = field(default_factory=list)
    tensors: set[int] = field(default_factory=set)
    steps: int = 0
    of: set[int] = field(default_factory=set)

    def add(self, key: str, tensor: Tensor) -> None:
        self.tensors.add(tensor.data_ptr())
        if key not in self.keys:
            self.keys.append(key)

    def count(self, optimizer: Optimizer) -> None:
        self.steps += 1
        self.of.add(id(optimizer))


class SharedStateDetector:
    """Reports kept-by-reference (GCS111) of the states of optimizers."""

    def __init__(self, optimizers: Optimizers, windows: AccumulationWindows) -> None:
        self._optimizers = optimizers
        self._windows = windows
        self._followed: dict[tuple[type, str, str], _Shared] = {}
        self._common: dict[object, _Shared] = {}
        # By identity: an optimizer may define equality.
        self._loaded: dict[int, tuple[weakref.ref[Optimizer], CallSite | None]] = {}
        self._due: set[int] = set()

    def subscriptions(self) -> Subscriptions:
        """Look at the steps of an optimizer that are powers of two, and after its state is set."""
        return {OptimizerStateLoaded: self._load, StepStarted: self._begin_step}

    def _load(self, event: OptimizerStateLoaded) -> None:
        key = id(event.optimizer)
        self._loaded[key] = weakref.ref(event.optimizer), event.site
        self._due.add(key)

    def _begin_step(self, event: StepStarted) -> None:
        steps = self._windows.stepped.steps
        if steps & (steps - 1) and id(event.optimizer) not in self._due:
            return
        self._due.discard(id(event.optimizer))
        entries = list(_entries(event.optimizer))
        self._look_at_own(event, entries)
        known = self._optimizers.known()
        if entries and 1 < len(known) <= _MOST_OPTIMIZERS:
            self._look_at_others(event, entries, known)

    def _look_at_own(self, event: StepStarted, entries: list[tuple[Tensor, str, Tensor]]) -> None:
        """Look for what is the memory of its parameter, or of the gradient of that."""
        found: dict[int, _Shared] = {}
        for parameter, key, tensor in entries:
            for what, other in (("parameter", parameter), ("gradient", parameter.grad)):
                # The parameter itself is kept to be reached, not as it was.
                if other is None or tensor is parameter or not _is_one_memory(tensor, other):
                    continue
                kind = type(event.optimizer), key, what
                shared = self._followed.get(kind)
                if shared is None:
                    made = kept_by_reference_at(key, type(event.optimizer))
                    shared = _Shared(type(event.optimizer).__name__, made, event.site)
                    self._followed[kind] = shared
                shared.add(key, tensor)
                found[id(shared)] = shared
        for shared in found.values():
            shared.count(event.optimizer)

    def _look_at_others(
        self, event: StepStarted, entries: list[tuple[Tensor, str, Tensor]], known: list[Optimizer]
    ) -> None:
        """Look for what the states of other optimizers have as well."""
        own = {id(parameter) for parameter, _, _ in entries}
        by_memory = {_storage(tensor): (key, tensor) for _, key, tensor in entries}
        for other in known:
            if other is event.optimizer:
                continue
            shared = None
            for parameter, _, tensor in _entries(other):
                key, mine = by_memory.get(_storage(tensor), ("", None))
                # Of one parameter, it may be the state of what a wrapper wraps.
                if mine is None or id(parameter) in own or not _is_one_memory(mine, tensor):
                    continue
                shared = shared or self._common_of(event, other)
                shared.add(key, mine)
            if shared is not None:
                shared.count(event.optimizer)
                # It may be there to be copied from, and never step again.
                if id(other) not in shared.of:
                    self._due.add(id(other))

    def _common_of(self, event: StepStarted, other: Optimizer) -> _Shared:
        site = self._load_of(event.optimizer) or self._load_of(other)
        pair = site or frozenset((id(event.optimizer), id(other)))
        if pair not in self._common:
            name = type(event.optimizer).__name__
            self._common[pair] = _Shared(name, location_of(site), event.site)
        return self._common[pair]

    def _load_of(self, optimizer: Optimizer) -> CallSite | None:
        reference, site = self._loaded.get(id(optimizer), (None, None))
        return site if reference is not None and reference() is optimizer else None

    def findings(self) -> list[Finding]:
        """Return one finding for each entry, and one for each line that loads a state."""
        followed = [
            _followed(shared, what)
            for (_, _, what), shared in self._followed.items()
            if shared.steps >= _ENOUGH
        ]
        common = [_in_common(each) for each in self._common.values() if len(each.of) >= _ENOUGH]
        return followed + common


def _entries(optimizer: Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield the tensors in the states of an optimizer's parameters, with their names there."""
    states = optimizer.state
    if not isinstance(states, Mapping):
        return
    for parameter in parameters_of(optimizer):
        state = states.get(parameter)
        for key, value in list(state.items()) if isinstance(state, Mapping) else ():
            if _has_memory(value):
                yield parameter, str(key), value


def _has_memory(value: object) -> bool:
    # A subclass may have no memory of its own.
    return type(value) in _PLAIN and value.layout is torch.strided and is_readable(value)  # type: ignore[attr-defined, arg-type]  # a tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_one_memory(tensor: Tensor, other: Tensor) -> bool:
    return (
        _has_memory(other)
        and _storage(tensor) == _storage(other)
        and have_elements_in_common(tensor, other)
    )


def _followed(shared: _Shared, what: str) -> Finding:
    when = "each step" if what == "parameter" else "each backward"
    location = shared.made or location_of(shared.site)
    key = shared.keys[0]
    return Finding.of(
        catalogue.KEPT_BY_REFERENCE,
        f'`state["{key}"]` of {shared.optimizer} is the memory of the {what} itself, of '
        f"{plural(len(shared.tensors), 'parameter')}: {when} writes to it, and it never differs "
        f"from the {what}; expected a copy, as it was when it was kept",
        detector="audit",
        location=location,
        related=related((location_of(shared.site), "this step finds it"), apart_from=location),
        hint=f'state["{key}"] = ....detach().clone()',
        evidence={"key": key, "tensors": len(shared.tensors), "steps": shared.steps},
    )


def _in_common(shared: _Shared) -> Finding:
    location = shared.made or location_of(shared.site)
    names = ", ".join(f"`{key}`" for key in shared.keys)
    tensors = plural(len(shared.tensors), "tensor")
    return Finding.of(
        catalogue.KEPT_BY_REFERENCE,
        f"two optimizers of different parameters have {tensors} of their states in common "
        f"({names} of {shared.optimizer}): each step of one writes to what the other goes by; "
        "expected a state of its own for each",
        detector="audit",
        location=location,
        related=related((location_of(shared.site), "stepped here"), apart_from=location),
        hint="optimizer.load_state_dict(copy.deepcopy(other.state_dict()))",
        evidence={"keys": list(shared.keys), "tensors": len(shared.tensors)},
    )
