"""Parameters on one memory that are stepped as if they were two.

``nn.Parameter(encoder.weight.t())`` ties nothing: it is another parameter on the same memory. Both
get a gradient of their own, and an optimizer writes an update of each to the memory that both have:
with a momentum or a scale for each, that is not the step of one tied parameter; and a copy of the
model, or a checkpoint that is loaded, separates them. Looked for once, at an optimizer's first
step. Parameters that are views of one buffer, each of its own part, share no element.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_frames
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import Attention, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.source_analysis.assignments import leaf_made_anew
from gradcheck_suite.findings import Finding, Location, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames

__all__ = ["SharedMemoryDetector", "have_elements_in_common"]

_SUM = "SGD without momentum adds up both updates, as it would for one parameter"
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_OPTIMIZERS = 64
"""Optimizers that are looked at. A bound on cost where each task of many has one of its own."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two parameters with elements in common."""

    names: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    optimizers: tuple[str, str]
    made: Location | None
    site: CallSite | None
    adds_up: bool


class SharedMemoryDetector:
    """Reports parameter-in-two-optimizers (GCS312) of two parameters on one memory."""

    def __init__(self, optimizers: Optimizers, names: ParameterNames) -> None:
        self._optimizers = optimizers
        self._names = names
        # By identity: an optimizer may define equality.
        self._seen: dict[int, weakref.ref[Optimizer]] = {}
        self._pairs: list[_Pair] = []

    def subscriptions(self) -> Subscriptions:
        """Look at the first step of each optimizer."""
        return {StepStarted: self._begin_step}

    def _begin_step(self, event: StepStarted) -> Attention:
        if not self._has_seen(event.optimizer) and len(self._seen) < _MOST_OPTIMIZERS:
            self._seen[id(event.optimizer)] = weakref.ref(event.optimizer)
            self._look(event)
        waits = not all(map(self._has_seen, self._optimizers.known()))
        return Attention.AWAKE if waits else Attention.ASLEEP

    def _has_seen(self, optimizer: Optimizer) -> bool:
        known = self._seen.get(id(optimizer))
        return known is not None and known() is optimizer

    def _look(self, event: StepStarted) -> None:
        stepped = {id(each) for each in parameters_of(event.optimizer)}
        by_memory: dict[int, list[tuple[Tensor, Optimizer]]] = {}
        for reference in self._seen.values():
            optimizer = reference()
            if optimizer is None:
                continue
            for parameter in parameters_of(optimizer):
                # A subclass may have no memory of its own.
                plain = type(parameter) in _PLAIN and parameter.layout is torch.strided
                if plain and parameter.grad is not None and is_readable(parameter):
                    address = parameter.untyped_storage().data_ptr()
                    by_memory.setdefault(address, []).append((parameter, optimizer))
        for sharing in by_memory.values():
            for index, (one, first) in enumerate(sharing[1:], 1):
                for other, second in sharing[:index]:
                    mine = id(one) in stepped or id(other) in stepped
                    if one is not other and mine and have_elements_in_common(one, other):
                        self._note(event, (other, one), (second, first))

    def _note(
        self,
        event: StepStarted,
        parameters: tuple[Tensor, Tensor],
        optimizers: tuple[Optimizer, Optimizer],
    ) -> None:
        known = {
            id(parameter): name
            for module in self._names.modules()
            for name, parameter in module.named_parameters()
        }
        names = known.get(id(parameters[0])), known.get(id(parameters[1]))
        running = [frame.f_code for frame in user_frames()]
        lines = (leaf_made_anew(name, running) for name in names[::-1] if name is not None)
        self._pairs.append(
            _Pair(
                names,
                (tuple(parameters[0].shape), tuple(parameters[1].shape)),
                (type(optimizers[0]).__name__, type(optimizers[1]).__name__),
                next((line for line in lines if line is not None), None),
                event.site,
                all(map(_adds_up, optimizers)),
            )
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes such parameters, or steps them."""
        groups: dict[object, list[_Pair]] = {}
        for pair in self._pairs:
            groups.setdefault(pair.made or pair.site, []).append(pair)
        return [_finding(pairs) for pairs in groups.values()]


def have_elements_in_common(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one storage have elements in common, for certain."""
    (begin, end), (first, last) = _range(one), _range(other)
    # One that leaves elements out may lie between those of the other.
    dense = one.nbytes == end - begin and other.nbytes == last - first
    return dense and max(begin, first) < min(end, last)


def _range(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte in the storage that a tensor has, and the one after the last."""
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + span * tensor.element_size() if tensor.numel() else begin


def _adds_up(optimizer: Optimizer) -> bool:
    """Return whether each update is a multiple of the gradient, and nothing else."""
    return type(optimizer) is torch.optim.SGD and not any(
        group.get("momentum") or group.get("weight_decay") for group in optimizer.param_groups
    )


def _finding(pairs: list[_Pair]) -> Finding:
    first = pairs[0]
    location = first.made or location_of(first.site)
    one, other = (
        f"a parameter of {'x'.join(map(str, shape)) or 'one element'}"
        if name is None
        else f"`{name}`"
        for name, shape in zip(first.names, first.shapes, strict=True)
    )
    more = f", as {plural(len(pairs) - 1, 'more pair')} do" if len(pairs) > 1 else ""
    optimizer, second = first.optimizers
    by = optimizer if optimizer == second else f"{optimizer} and {second}"
    return Finding.of(
        catalogue.PARAMETER_IN_TWO_OPTIMIZERS,
        f"{one} and {other} are two parameters on one memory{more}: each gets a gradient of its "
        f"own, and {by} writes an update for each to the same elements; expected one parameter "
        "that both layers use",
        detector="audit",
        severity=Severity.WARNING,
        doubts=[_SUM] if first.adds_up else [],
        location=location,
        related=related((location_of(first.site), "this step writes both"), apart_from=location),
        hint="assign the parameter itself, decoder.weight = encoder.weight, or compute with it: "
        "F.linear(x, encoder.weight.t())",
        evidence={
            "pairs": len(pairs),
            "names": [name for pair in pairs for name in pair.names if name is not None],
            "optimizers": list(first.optimizers),
        },
    )
