"""Training mode during validation.

A pass without recording, between steps of training, that enters dropout or batch norm in training
mode: told if the whole model is in training mode, is one that an optimizer trains, and was not put
into training mode on purpose since the last step. A pass that comes with every step (a teacher, a
momentum encoder, a search along a line) is part of the step.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import BATCH_NORMS, DROPOUTS
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import (
    LayerRanInTrainingMode,
    ModeChanged,
    WatchResumed,
)
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["TrainModeInEvalDetector", "names_of", "sensitive_layers"]

_STEPS_BETWEEN = 2
"""Steps of its optimizer since a model's last pass without recording. The least that tells
validation from a pass that comes with every step, which is part of the step."""


@dataclass(slots=True)
class _Pass:
    """The unrecorded passes of one model: after how many steps of its own the last one came."""

    steps: int
    trained_on_purpose: int = -1


@dataclass(slots=True)
class _Occurrence:
    model: str
    layers: str
    site: CallSite | None
    step: int
    last: int
    count: int = 1


class TrainModeInEvalDetector:
    """Reports train-mode-in-eval (GCS701)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._passes: weakref.WeakKeyDictionary[nn.Module, _Pass] = weakref.WeakKeyDictionary()
        self._occurrences: dict[object, _Occurrence] = {}

    def subscriptions(self) -> Subscriptions:
        """Watch modes being set, and layers that run in training mode without recording."""
        return {
            ModeChanged: self._change,
            LayerRanInTrainingMode: self._run,
            WatchResumed: self._begin_anew,
        }

    def _change(self, event: ModeChanged) -> None:
        if event.training:
            window = self._trainer_of(event.module)
            steps = 0 if window is None else window.steps
            seen = self._passes.setdefault(event.module, _Pass(steps=steps))
            seen.trained_on_purpose = steps

    def _begin_anew(self, _event: WatchResumed) -> None:
        # A pass may have come with the step that ends now, as with each.
        for seen in self._passes.values():
            seen.steps += 1

    def _trainer_of(self, model: nn.Module) -> AccumulationWindow | None:
        """Return the window of the optimizer that trains parameters of this model."""
        mine = set(map(id, model.parameters()))
        for window in self._windows.all():
            if not window.ids.isdisjoint(mine):
                return window
        return None

    def _run(self, event: LayerRanInTrainingMode) -> None:
        model = event.model
        seen = self._passes.get(model)
        if seen is not None and seen.steps < 0:
            return
        window = self._trainer_of(model)
        if window is None:
            return
        if seen is None:
            seen = self._passes[model] = _Pass(steps=0)
        since, seen.steps = window.steps - seen.steps, window.steps
        key = (id(model), event.site)
        known = self._occurrences.get(key)
        if known is not None and known.last == window.steps:
            return
        if since < _STEPS_BETWEEN or seen.trained_on_purpose == window.steps:
            return
        layers = sensitive_layers(model)
        if not model.training or not layers or not all(layer.training for layer in layers):
            return
        if known is not None:
            known.count += 1
            known.last = window.steps
            return
        words = names_of(layers)
        self._occurrences[key] = _Occurrence(
            type(model).__name__, words, event.site, event.step, window.steps
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each pass."""
        return [_finding(each) for each in self._occurrences.values()]


def sensitive_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that act differently in training mode."""
    return [
        layer
        for layer in model.modules()
        if (isinstance(layer, DROPOUTS) and float(getattr(layer, "p", 0.0)) > 0)
        or (
            isinstance(layer, BATCH_NORMS)
            and layer.track_running_stats
            and layer.momentum is not None
        )
        or (isinstance(layer, nn.RNNBase) and layer.dropout > 0)
    ]


def names_of(layers: list[nn.Module]) -> str:
    """Return the first few of their kinds, as words."""
    kinds = dict.fromkeys(type(layer).__name__ for layer in layers)
    return " and ".join(list(kinds)[:3])


def _finding(found: _Occurrence) -> Finding:
    return Finding.of(
        catalogue.TRAIN_MODE_IN_EVAL,
        f"{found.model} ran without recording gradients, between steps of training, with "
        f"{found.layers} in training mode; expected {found.model.lower()}.eval() before such a "
        f"pass and train() after it (first after step {found.last})"
        if found.count == 1
        else f"{found.model} ran without recording gradients, between steps of training, with "
        f"{found.layers} in training mode, {found.count} times; expected eval() before such a "
        "pass and train() after it",
        detector="audit",
        location=location_of(found.site),
        hint="call model.eval() before the pass and model.train() after it",
        evidence={
            "count": found.count,
            "step": found.step,
            "model": found.model,
            "layers": found.layers,
        },
    )
