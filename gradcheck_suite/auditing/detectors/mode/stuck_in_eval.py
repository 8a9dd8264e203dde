"""Evaluation mode during training.

Training goes on in evaluation mode: after steps in training mode, ``eval()`` was called on all
that the optimizer trains, and steps follow. Freezing a part, or batch norm alone, does not do so.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.mode.train_mode_in_eval import names_of, sensitive_layers
from gradcheck_suite.auditing.events import Attention, ModeChanged, StepFinished
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
        StepSummary,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["StuckInEvalDetector"]

_ENOUGH = 2
"""Steps of an optimizer in evaluation mode before it is told. Chosen: the least that shows it goes
on; a single one may be meant."""


@dataclass(slots=True)
class _Evaluated:
    """A module that was put into evaluation mode; ``steps`` had been taken by then, by window."""

    module: weakref.ref[nn.Module]
    site: CallSite | None
    steps: dict[int, int]
    stuck: int = 0


@dataclass(slots=True)
class _Occurrence:
    model: str
    layers: str
    site: CallSite | None
    step_site: CallSite | None
    step: int


class StuckInEvalDetector:
    """Reports stuck-in-eval (GCS702)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._evaluated: list[_Evaluated] = []
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Watch modes being set, and steps that follow."""
        return {ModeChanged: self._change, StepFinished: self._end_step}

    def _change(self, event: ModeChanged) -> Attention | None:
        if event.training:
            self._evaluated = [
                each
                for each in self._evaluated
                if (module := each.module()) is not None
                and not module.training
                # Whoever trains a part of it leaves the rest as it is on purpose.
                and not any(part is event.module for part in module.modules())
            ]
            return None
        if not any(window.steps for window in self._windows.all()):
            return None
        if not any(each.module() is event.module for each in self._evaluated):
            taken = {id(window): window.steps for window in self._windows.all()}
            self._evaluated.append(_Evaluated(weakref.ref(event.module), event.site, taken))
        return Attention.AWAKE

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._evaluated:
            return Attention.ASLEEP
        window = self._windows.stepped
        if window.summary is not None and window.summary.fills:
            self._look_for_stuck(window, window.summary, event)
        return None

    def _look_for_stuck(
        self, window: AccumulationWindow, summary: StepSummary, event: StepFinished
    ) -> None:
        self._evaluated = [each for each in self._evaluated if _is_evaluating(each)]
        covered: set[int] = set()
        concerned: list[tuple[_Evaluated, nn.Module]] = []
        for each in self._evaluated:
            module = each.module()
            if module is not None and each.steps.get(id(window), 0):
                mine = set(map(id, module.parameters()))
                if not window.ids.isdisjoint(mine):
                    covered |= mine
                    concerned.append((each, module))
        if not concerned or not window.ids <= covered:
            return
        for each, module in concerned:
            layers = sensitive_layers(module)
            if not layers or any(layer.training for layer in layers):
                continue
            each.stuck += 1
            if each.stuck >= _ENOUGH:
                describe = partial(
                    _Occurrence,
                    type(module).__name__,
                    names_of(layers),
                    each.site,
                    summary.site,
                    event.number,
                )
                self._occurrences.note(each.site, describe, times=each.stuck)

    def findings(self) -> list[Finding]:
        """Return one finding for each ``eval()``."""
        return self._occurrences.findings(_finding)


def _is_evaluating(evaluated: _Evaluated) -> bool:
    module = evaluated.module()
    return module is not None and not module.training


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    return Finding.of(
        catalogue.STUCK_IN_EVAL,
        f"{occurrence.model} was put into evaluation mode after steps in training mode, and "
        f"{count} steps followed without train(): its {occurrence.layers} acted as in "
        "evaluation; expected train() before training goes on",
        detector="audit",
        location=location_of(occurrence.site),
        related=related((location_of(occurrence.step_site), "this step followed")),
        hint="call model.train() before the next training step",
        evidence={
            "count": count,
            "step": occurrence.step,
            "model": occurrence.model,
            "layers": occurrence.layers,
        },
    )
