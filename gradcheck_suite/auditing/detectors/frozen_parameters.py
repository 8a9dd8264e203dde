"""Parameters that were frozen and that a step moves nevertheless.

A parameter required grad when its optimizer was made or stepped, and does so no longer. It still
has a gradient, and a step changes its contents: the gradient itself, or momentum and weight decay
where that is zero. A parameter that never required grad is left alone, as some programs put
gradients there themselves.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.checksums import fingerprint, same_content
from gradcheck_suite.auditing.detectors._gradients import is_zero
from gradcheck_suite.auditing.events import (
    Attention,
    OptimizerConstructed,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.names import listed
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.checksums import Fingerprint
    from gradcheck_suite.auditing.detectors._windows import Window, Windows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.names import ParameterNames

__all__ = ["FrozenParameterDetector"]

_ENOUGH = 2
_MOST = 16
_EACH_OF_THE_FIRST = 8
_EVERY = 32


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    site: CallSite | None
    names: tuple[str, ...]
    parameters: int
    is_zero: bool
    step: int
    count: int = 1


class FrozenParameterDetector:
    """Reports frozen-but-changed (GCS409) of parameters that no longer require grad."""

    def __init__(self, windows: Windows, names: ParameterNames) -> None:
        self._windows = windows
        self._names = names
        self._required: weakref.WeakKeyDictionary[Window, frozenset[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._before: list[tuple[Tensor, Fingerprint]] = []
        self._occurrences: dict[object, _Occurrence] = {}

    def subscriptions(self) -> Subscriptions:
        """Compare what is frozen before and after steps."""
        return {
            OptimizerConstructed: self._construct,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
        }

    def _construct(self, event: OptimizerConstructed) -> None:
        self._look(self._windows.of(event.optimizer))

    def _look(self, window: Window) -> list[Tensor]:
        """Return the parameters that are frozen now, and remember those that are not."""
        parameters = window.parameters()
        frozen = [each for each in parameters if not each.requires_grad]
        if not frozen:
            self._required[window] = window.ids
        elif len(frozen) < len(parameters):
            required = {id(each) for each in parameters if each.requires_grad}
            self._required[window] = self._required.get(window, frozenset()) | required
        return frozen

    def _begin_step(self, event: StepStarted) -> Attention | int | None:
        self._before = []
        window = self._windows.stepped
        frozen = self._look(window)
        if not frozen:
            return event.number + _EVERY if event.number >= _EACH_OF_THE_FIRST else None
        required = self._required.get(window, frozenset())
        for parameter in frozen:
            if parameter.grad is not None and id(parameter) in required:
                content = fingerprint(parameter)
                if content is not None:
                    self._before.append((parameter, content))
                if len(self._before) == _MOST:
                    break
        return Attention.AWAKE if self._before else None

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._before:
            return Attention.ASLEEP
        moved = [each for each, content in self._before if not same_content(content, each)]
        self._before = []
        if not moved:
            return None
        known = self._occurrences.get(event.site)
        if known is not None:
            known.count += 1
            return None
        self._occurrences[event.site] = _Occurrence(
            optimizer=type(event.optimizer).__name__,
            site=event.site,
            names=tuple(name for each in moved if (name := self._names.of(each)) is not None),
            parameters=len(moved),
            is_zero=all(is_zero(each.grad) for each in moved),
            step=event.number,
        )
        return None

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return [_finding(each) for each in self._occurrences.values() if each.count >= _ENOUGH]


def _finding(occurrence: _Occurrence) -> Finding:
    number = plural(occurrence.parameters, "parameter")
    named = f" ({listed(occurrence.names)})" if occurrence.names else ""
    why = (
        "their gradients, all zero, are still there, and momentum or weight decay makes updates of "
        "them"
        if occurrence.is_zero
        else "the gradients from before they were frozen are still there"
    )
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"{occurrence.optimizer}.step() moved {number}{named} that no longer require grad, "
        f"{occurrence.count} times: {why}; expected frozen parameters to stay",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(occurrence.site),
        hint="set .grad to None where you freeze, as zero_grad(set_to_none=True) does, or leave "
        "frozen parameters out of the optimizer",
        evidence={
            "count": occurrence.count,
            "first_step": occurrence.step,
            "optimizer": occurrence.optimizer,
            "parameters": occurrence.parameters,
            "names": list(occurrence.names),
        },
    )
