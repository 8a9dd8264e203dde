"""Updates that are lost to rounding, where parameters are kept in 16 bits.

A bfloat16 has 8 bits for its digits: an update below 1/512 of an element leaves it as it was,
however often it comes. A few elements of each such parameter are compared before and after the
steps of an optimizer that are powers of two, from the eighth on, as a schedule may begin with tiny
rates. An optimizer that keeps what rounding loses, or a copy in float32, is none of torch's own.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    ModuleConverted,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["LostUpdatesDetector"]

_HALF = frozenset({torch.bfloat16, torch.float16})
_FIRST = 8
"""The first step of an optimizer that is looked at. Chosen: the first ones of a warm-up are tiny in
any run."""
_ENOUGH = 3
"""Steps, each twice as far as the one before, in which updates were lost. Chosen: the third comes
after 32 steps."""
_NEARLY_ALL = 0.75
"""Of the elements with a gradient, so many that stay unchanged are a warning. Chosen."""
_MOST = 0.5
"""So many are a note. Chosen."""
_PARAMETERS = 8
"""Parameters that are compared in a step, the largest. A bound on cost."""
_SAMPLED = 1024
"""Elements of each that are compared. A bound on cost and memory."""
_CONVERSIONS = 16
"""Conversions of modules to 16 bits that are remembered, the last. A bound on memory."""
_KEPT = "an optimizer that is none of torch's own may keep what rounding loses"


@dataclass(slots=True)
class _Lost:
    """What was seen of an optimizer: of each step looked at, the part that was left as it was."""

    optimizer: str
    is_of_torch: bool
    dtype: str
    made: CallSite | None
    converted: CallSite | None
    site: CallSite | None
    parts: dict[int, float] = field(default_factory=dict)


class LostUpdatesDetector:
    """Reports step-without-effect (GCS313) of most elements of parameters in 16 bits."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._lost: weakref.WeakKeyDictionary[AccumulationWindow, _Lost] = (
            weakref.WeakKeyDictionary()
        )
        self._all: list[_Lost] = []
        self._converted: deque[tuple[weakref.ref[nn.Module], CallSite | None]] = deque(
            maxlen=_CONVERSIONS
        )

    def subscriptions(self) -> Subscriptions:
        """Compare before and after a few steps."""
        return {
            ModuleConverted: self._convert,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
        }

    def _convert(self, event: ModuleConverted) -> None:
        if any(each.dtype in _HALF for each in event.module.parameters()):
            self._converted.append((weakref.ref(event.module), event.site))

    def _converted_at(self, parameter: Tensor) -> CallSite | None:
        """Return where the module of a parameter was last given its type, if that was seen."""
        for reference, site in reversed(self._converted):
            module = reference()
            if module is not None and any(parameter is each for each in module.parameters()):
                return site
        return None

    def _begin_step(self, event: StepStarted) -> Attention | int:
        self._before = []
        window = self._windows.stepped
        half = [each for each in window.parameters() if each.dtype in _HALF]
        if not half:
            alone = self._windows.is_alone()
            return Attention.ASLEEP if alone else event.number + _FIRST
        number = window.steps + 1
        if number < _FIRST or number & (number - 1) or ops_are_recorded():
            wanted = max(_FIRST, 1 << number.bit_length())
            return event.number + (wanted - number if self._windows.is_alone() else 1)
        largest = sorted(half, key=torch.Tensor.numel, reverse=True)[:_PARAMETERS]
        without_user_modes(self._sample, largest)
        return Attention.AWAKE

    def _sample(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            gradient = parameter.grad
            was = sample_of(parameter, _SAMPLED)
            slope = None if gradient is None else sample_of(gradient, _SAMPLED)
            if was is not None and slope is not None and was.shape == slope.shape:
                self._before.append((parameter, was, slope != 0))

    def _end_step(self, event: StepFinished) -> Attention | None:
        before, self._before = self._before, []
        if not before:
            return Attention.ASLEEP
        window = self._windows.stepped
        lost = self._lost.get(window)
        if lost is None:
            kind = type(event.optimizer)
            is_of_torch = kind.__module__.startswith("torch.optim.")
            dtype = str(before[0][0].dtype).removeprefix("torch.")
            made, converted = window.constructed_at, self._converted_at(before[0][0])
            lost = _Lost(kind.__name__, is_of_torch, dtype, made, converted, event.site)
            self._lost[window] = lost
            self._all.append(lost)
        part = without_user_modes(_unchanged, before)
        if part is not None:
            lost.parts[window.steps] = part
        return Attention.ASLEEP

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer."""
        return [
            _finding(lost)
            for lost in self._all
            if len(lost.parts) >= _ENOUGH and min(lost.parts.values()) >= _MOST
        ]


def _unchanged(before: list[tuple[Tensor, Tensor, Tensor]]) -> float | None:
    """Return the part of the elements with a gradient that are what they were; None for none."""
    with torch.no_grad():
        counts = []
        for parameter, was, asked in before:
            now = sample_of(parameter, _SAMPLED)
            if now is not None and now.shape == was.shape:
                counts.append(torch.stack([((now == was) & asked).sum(), asked.sum()]).cpu())
        if not counts:
            return None
        same, total = torch.stack(counts).sum(0).tolist()
    return same / total if total else None


def _finding(lost: _Lost) -> Finding:
    least = min(lost.parts.values())
    steps = ", ".join(map(str, lost.parts))
    where = location_of(lost.converted) or location_of(lost.site)
    return Finding.of(
        catalogue.STEP_WITHOUT_EFFECT,
        f"{least:.0%} or more of the elements with a gradient were after {lost.optimizer}.step() "
        f"what they were before, in each step looked at ({steps}): the parameters are in "
        f"{lost.dtype}, and an update that is smaller than its rounding is lost; expected "
        "parameters in float32, with autocast around the forward",
        detector="audit",
        severity=Severity.WARNING if least >= _NEARLY_ALL else Severity.NOTE,
        doubts=() if lost.is_of_torch else (_KEPT,),
        location=where,
        related=related(
            (location_of(lost.made), f"{lost.optimizer} is made here"),
            (location_of(lost.site), f"{lost.optimizer} steps here"),
            apart_from=where,
        ),
        hint='keep the model in float32 and compute under torch.autocast("cuda", torch.bfloat16)',
        evidence={
            "steps": tuple(lost.parts),
            "unchanged": tuple(round(part, 3) for part in lost.parts.values()),
            "optimizer": lost.optimizer,
            "dtype": lost.dtype,
        },
    )
