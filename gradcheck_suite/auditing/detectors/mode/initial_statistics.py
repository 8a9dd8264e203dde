"""Batch norm that evaluates with the statistics that it was made with.

A copy of a model whose parameters follow those of the model, as a moving average, a teacher or a
target network does, and whose buffers nobody copies: it only ever runs in evaluation mode, so that
its running mean stays 0 and its running variance 1, and the activations are normalized by neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import BATCH_NORMS
from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import ModeChanged, SessionEnded
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.auditing.source_analysis.source import only_call_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["InitialStatisticsDetector"]

_MOST = 32
"""Modules that are followed. A bound on cost."""
_CALLS = 1024
"""Calls of a module in which it is listened to after each ``eval()``; those whose number is a power
of two are looked at. A bound on cost: meanwhile the call of any module takes a little longer."""
_SAMPLED = 64
"""Elements of a parameter that show whether the weights were written. A bound on cost."""
_LAYERS = 4
"""Layers of a module that are looked at. A bound on cost; whoever copies one copies all."""


@dataclass(slots=True, eq=False)
class _Evaluating:
    """A module that was put into evaluation mode.

    Attributes:
        module: the module.
        layers: some of its batch norm layers.
        name: what the user calls it.
        site: where ``eval()`` was called.
        weights: some elements of a parameter then.
        sequence: when that was.
        calls: how often it was called with the statistics that it was made with, and with weights
            that had been written since.
        first: the line of the first such call.
        written_at: the line that last wrote the weights, by then.
    """

    module: weakref.ref[nn.Module]
    layers: list[weakref.ref[nn.Module]]
    name: str
    site: CallSite | None
    weights: Tensor | None
    sequence: int
    calls: int = 0
    looked_at: int = 0
    first: CallSite | None = None
    written_at: CallSite | None = None
    stop: Callable[[], None] | None = field(default=None, repr=False)

    def end(self) -> None:
        """Listen to its calls no more."""
        if self.stop is not None:
            self.stop()
            self.stop = None


class InitialStatisticsDetector:
    """Reports initial-statistics (GCS704)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._followed: list[_Evaluating] = []

    def subscriptions(self) -> Subscriptions:
        """Look at what is put into evaluation mode."""
        return {ModeChanged: self._change, SessionEnded: self._end}

    def _end(self, _event: SessionEnded) -> None:
        for each in self._followed:
            each.end()

    def _change(self, event: ModeChanged) -> None:
        known = next((each for each in self._followed if each.module() is event.module), None)
        if event.training:
            if known is not None:
                known.end()
            return
        if known is None:
            known = self._follow(event)
        if known is not None and known.stop is None and not known.calls:
            known.looked_at = 0
            self._listen(event.module, known)

    def _follow(self, event: ModeChanged) -> _Evaluating | None:
        layers = _batch_norms(event.module)
        if not layers or len(self._followed) >= _MOST or ops_are_recorded():
            return None
        known = _Evaluating(
            weakref.ref(event.module),
            list(map(weakref.ref, layers)),
            variable_of(event.module) or type(event.module).__name__,
            event.site,
            without_user_modes(_sampled, event.module),
            self._recorder.state.clock.tick(),
        )
        self._followed.append(known)
        return known

    def _listen(self, module: nn.Module, known: _Evaluating) -> None:
        def look(module: nn.Module, _output: Any) -> None:
            known.looked_at += 1
            number = known.looked_at
            if module.training or known.weights is None or number > _CALLS:
                known.end()
                return
            if number & (number - 1) or ops_are_recorded():
                return
            if without_user_modes(_is_unchanged, module, known.weights):
                return  # a new model that is tried before anything trains it
            if self._is_trained(module):
                known.end()
                return
            if not self._is_initial(known):
                known.calls = 0
                known.end()
                return
            if not known.calls:
                known.first = call_site()
                known.written_at = self._last_write(module, known.sequence)
            known.calls += 1

        known.stop = self._recorder.module_calls.listen(module, look)

    def _is_initial(self, known: _Evaluating) -> bool:
        layers = [layer for each in known.layers if (layer := each()) is not None]
        return bool(layers) and without_user_modes(_are_initial, layers)

    def _last_write(self, module: nn.Module, sequence: int) -> CallSite | None:
        parameter = next(module.parameters(), None)
        writes = [] if parameter is None else self._recorder.write_log.since(sequence, parameter)
        return writes[-1].site if writes else None

    def findings(self) -> list[Finding]:
        """Return one finding for each model."""
        return [_finding(each) for each in self._followed if each.calls]

    def _is_trained(self, module: nn.Module) -> bool:
        """Return whether an optimizer trains it in evaluation mode: that is GCS702's to tell."""
        parameter = next(module.parameters(), None)
        return parameter is not None and bool(self._recorder.optimizers.owners(parameter))


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    found = (
        layer
        for layer in module.modules()
        if isinstance(layer, BATCH_NORMS)
        and layer.track_running_stats
        and layer.running_mean is not None
    )
    return [layer for layer, _ in zip(found, range(_LAYERS), strict=False)]


def _sampled(module: nn.Module) -> Tensor | None:
    """Return some elements of its first parameter; None where it has none that can be read."""
    parameter = next(module.parameters(), None)
    return None if parameter is None else sample_of(parameter, _SAMPLED)


def _is_unchanged(module: nn.Module, before: Tensor) -> bool:
    now = _sampled(module)
    return now is None or now.device != before.device or torch.equal(now, before)


def _are_initial(layers: list[nn.Module]) -> bool:
    pairs = [(each.get_buffer("running_mean"), each.get_buffer("running_var")) for each in layers]
    if not all(is_readable(mean) and is_readable(variance) for mean, variance in pairs):
        return False
    with torch.no_grad():
        asked = [torch.eq(mean, 0).all() & torch.eq(variance, 1).all() for mean, variance in pairs]
        return bool(torch.stack(asked).all())


def _finding(each: _Evaluating) -> Finding:
    where = location_of(each.written_at) or location_of(each.first)
    return Finding.of(
        catalogue.INITIAL_STATISTICS,
        f"the weights of `{each.name}` are written here, and its batch norm evaluates with the "
        f"running mean 0 and variance 1 that it was made with, in {each.calls} calls or more: "
        "nothing is normalized; expected its buffers to be copied with its parameters",
        detector="audit",
        location=where,
        related=related(
            (only_call_of(where), "from here"),
            (location_of(each.first), "called in evaluation mode here"),
            (location_of(each.site), "put into evaluation mode here"),
            apart_from=where,
        ),
        hint="for t, s in zip(target.buffers(), source.buffers()): t.copy_(s)",
        evidence={"calls": each.calls, "model": each.name},
    )
