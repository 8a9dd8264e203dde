"""Training mode during validation, and evaluation mode during training.

A pass without recording, between steps of training, that enters dropout or batch norm in training
mode: told if the whole model is in training mode, is one that an optimizer trains, and was not put
into training mode on purpose since the last step. A pass that comes with every step (a teacher, a
momentum encoder, a search along a line) is part of the step.

Training goes on in evaluation mode: after steps in training mode, ``eval()`` was called on all
that the optimizer trains, and steps follow. Freezing a part, or batch norm alone, does not do so.
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
    Attention,
    LayerRanInTrainingMode,
    ModeChanged,
    StepFinished,
    WatchResumed,
)
from gradcheck_suite.findings import Finding, Related

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
        StepSummary,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ModeDetector"]

_STEPS_BETWEEN = 2
_ENOUGH_STUCK = 2


@dataclass(slots=True)
class _Pass:
    """The unrecorded passes of one model: after how many steps of its own the last one came."""

    steps: int
    trained_on_purpose: int = -1


@dataclass(slots=True)
class _Evaluated:
    module: weakref.ref[nn.Module]
    site: CallSite | None
    steps: dict[int, int]
    stuck: int = 0


@dataclass(slots=True)
class _Unswitched:
    model: str
    layers: str
    site: CallSite | None
    step: int
    last: int
    count: int = 1


@dataclass(slots=True)
class _Stuck:
    model: str
    layers: str
    site: CallSite | None
    step_site: CallSite | None
    step: int
    count: int


class ModeDetector:
    """Reports train-mode-in-eval (GCS701) and stuck-in-eval (GCS702)."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._passes: weakref.WeakKeyDictionary[nn.Module, _Pass] = weakref.WeakKeyDictionary()
        self._evaluated: list[_Evaluated] = []
        self._unswitched: dict[object, _Unswitched] = {}
        self._stuck: dict[object, _Stuck] = {}

    def subscriptions(self) -> Subscriptions:
        """Watch modes being set, and layers that run in training mode without recording."""
        return {
            ModeChanged: self._change,
            LayerRanInTrainingMode: self._run,
            StepFinished: self._end_step,
            WatchResumed: self._begin_anew,
        }

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
            window = self._trainer_of(event.module)
            steps = 0 if window is None else window.steps
            seen = self._passes.setdefault(event.module, _Pass(steps=steps))
            seen.trained_on_purpose = steps
        elif any(window.steps for window in self._windows.all()):
            known = [each for each in self._evaluated if each.module() is event.module]
            if not known:
                taken = {id(window): window.steps for window in self._windows.all()}
                self._evaluated.append(_Evaluated(weakref.ref(event.module), event.site, taken))
            return Attention.AWAKE
        return None

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
        known = self._unswitched.get(key)
        if known is not None and known.last == window.steps:
            return
        if since < _STEPS_BETWEEN or seen.trained_on_purpose == window.steps:
            return
        layers = _sensitive_layers(model)
        if not model.training or not layers or not all(layer.training for layer in layers):
            return
        if known is not None:
            known.count += 1
            known.last = window.steps
            return
        words = _words(layers)
        self._unswitched[key] = _Unswitched(
            type(model).__name__, words, event.site, event.step, window.steps
        )

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
        stuck = [
            (each, module)
            for each in self._evaluated
            if each.steps.get(id(window), 0) and (module := each.module()) is not None
        ]
        covered: set[int] = set()
        concerned = []
        for each, module in stuck:
            mine = set(map(id, module.parameters()))
            if not window.ids.isdisjoint(mine):
                covered |= mine
                concerned.append((each, module))
        if not concerned or not window.ids <= covered:
            return
        for each, module in concerned:
            layers = _sensitive_layers(module)
            if not layers or any(layer.training for layer in layers):
                continue
            each.stuck += 1
            if each.stuck >= _ENOUGH_STUCK:
                known = self._stuck.get(each.site)
                if known is not None:
                    known.count += 1
                    continue
                self._stuck[each.site] = _Stuck(
                    type(module).__name__,
                    _words(layers),
                    each.site,
                    summary.site,
                    event.number,
                    each.stuck,
                )

    def findings(self) -> list[Finding]:
        """Return one finding for each pass, and for each ``eval()``."""
        return [
            *(_unswitched_finding(each) for each in self._unswitched.values()),
            *(_stuck_finding(each) for each in self._stuck.values()),
        ]


def _is_evaluating(evaluated: _Evaluated) -> bool:
    module = evaluated.module()
    return module is not None and not module.training


def _sensitive_layers(model: nn.Module) -> list[nn.Module]:
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


def _words(layers: list[nn.Module]) -> str:
    kinds = dict.fromkeys(type(layer).__name__ for layer in layers)
    return " and ".join(list(kinds)[:3])


def _unswitched_finding(found: _Unswitched) -> Finding:
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


def _stuck_finding(found: _Stuck) -> Finding:
    step = location_of(found.step_site)
    return Finding.of(
        catalogue.STUCK_IN_EVAL,
        f"{found.model} was put into evaluation mode after steps in training mode, and "
        f"{found.count} steps followed without train(): its {found.layers} acted as in "
        "evaluation; expected train() before training goes on",
        detector="audit",
        location=location_of(found.site),
        related=() if step is None else (Related(step, "this step followed"),),
        hint="call model.train() before the next training step",
        evidence={
            "count": found.count,
            "step": found.step,
            "model": found.model,
            "layers": found.layers,
        },
    )
