"""Running statistics that move while everything else of their layer is frozen.

Told where none of the layer's own parameters requires grad, though it has some, and they stay the
same while the statistics change and other parameters of the model are trained. So it is not told of
layers without parameters, of a teacher whose parameters follow a student's, of models that nothing
trains, and of layers that adapt their parameters and their statistics together.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _NormBase

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.checksums import Fingerprint, fingerprint, same_content
from gradcheck_suite.auditing.events import StepStarted
from gradcheck_suite.auditing.names import listed
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import nn

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.names import ParameterNames

__all__ = ["FrozenStatisticsDetector"]

_NEXT_LOOKS = (3, 8)
_EVERY = 64
_STEPS_BETWEEN = 2


@dataclass(slots=True)
class _Layer:
    """A frozen layer as it was when it was first seen."""

    layer: weakref.ref[_NormBase]
    statistics: Fingerprint | None
    parameters: list[Fingerprint | None]
    step: int


@dataclass(slots=True)
class _Occurrence:
    model: str
    site: CallSite | None
    names: list[str]
    step: int


class FrozenStatisticsDetector:
    """Reports frozen-but-changed (GCS409) of running statistics."""

    def __init__(self, names: ParameterNames) -> None:
        self._names = names
        self._layers: dict[int, _Layer] = {}
        self._occurrences: dict[object, _Occurrence] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the models of a few steps."""
        return {StepStarted: self._begin_step}

    def _begin_step(self, event: StepStarted) -> int:
        for model in self._names.modules():
            if model.training and event.site not in self._occurrences:
                self._look(model, event)
        later = [step for step in _NEXT_LOOKS if step > event.number]
        return later[0] if later else event.number + _EVERY

    def _look(self, model: nn.Module, event: StepStarted) -> None:
        frozen = [
            (name, each)
            for name, each in model.named_modules()
            if isinstance(each, _NormBase) and _is_frozen(each)
        ]
        if not frozen or not any(each.requires_grad for each in model.parameters()):
            return
        names = [name for name, layer in frozen if self._has_drifted(layer, event.number)]
        if names:
            name = type(model).__name__
            self._occurrences[event.site] = _Occurrence(name, event.site, names, event.number)

    def _has_drifted(self, layer: _NormBase, step: int) -> bool:
        """Return whether its statistics are others than some steps before, and nothing else."""
        known = self._layers.get(id(layer))
        if known is None or known.layer() is not layer:
            self._layers[id(layer)] = _Layer(
                weakref.ref(layer),
                None if layer.running_mean is None else fingerprint(layer.running_mean),
                [fingerprint(each) for each in layer.parameters(recurse=False)],
                step,
            )
            return False
        if step - known.step < _STEPS_BETWEEN:
            return False
        statistics = layer.running_mean
        if statistics is None or known.statistics is None:
            return False
        parameters = list(layer.parameters(recurse=False))
        stays = len(parameters) == len(known.parameters) and all(
            content is not None and same_content(content, each)
            for content, each in zip(known.parameters, parameters, strict=True)
        )
        return stays and not same_content(known.statistics, statistics)

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return [_finding(occurrence) for occurrence in self._occurrences.values()]


def _is_frozen(layer: nn.Module) -> bool:
    parameters = list(layer.parameters(recurse=False))
    return (
        layer.training and bool(parameters) and not any(each.requires_grad for each in parameters)
    )


def _finding(occurrence: _Occurrence) -> Finding:
    layers = f"{plural(len(occurrence.names), 'frozen layer')} ({listed(occurrence.names)})"
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"the running statistics of {layers} of {occurrence.model} change in training mode, while "
        "their parameters stay the same and others are trained; expected frozen layers in "
        "evaluation mode",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(occurrence.site),
        hint="call eval() on the frozen layers after each train()",
        evidence={
            "names": list(occurrence.names),
            "model": occurrence.model,
            "step": occurrence.step,
        },
    )
