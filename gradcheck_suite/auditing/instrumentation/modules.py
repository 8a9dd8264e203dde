"""Modules: which mode they and their layers are in, and when the outermost of them is called."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._torch_compat import BATCH_NORMS, DROPOUTS, module_call_frames
from gradcheck_suite.auditing.call_sites import call_site, variables_of
from gradcheck_suite.auditing.events import (
    ForwardFinished,
    LayerRanInTrainingMode,
    ModeChanged,
    StateTaken,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["FIRST_STEPS", "ForwardSource", "ModeLayerSource", "ModeSource", "StateSource"]

FIRST_STEPS = 8
"""In so many first steps each forward is told of: those in which each graph is looked through
(``_EVERY_ITERATION_UNTIL`` of ``graph_lifetime``). A bound on cost: a call of a module that is
watched takes a quarter of a microsecond more, and large models make thousands in a step."""


class ModeSource(EventSource):
    """Replaces ``Module.train``, which ``eval`` calls too."""

    kinds = (ModeChanged,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the method."""
        patches.replace(nn.Module, "train", self._training(nn.Module.train))

    def _training(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: ModeSource = self.acting
            was_training = getattr(module, "training", None)
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            if not source.inside:
                recorder = source.recorder
                if module.training is not was_training:
                    recorder.resume()
                if recorder.state.running:
                    recorder.bus.emit(ModeChanged(module, module.training, call_site()))
            return result

        return train


class StateSource(EventSource):
    """Replaces ``Module.state_dict``, which calls that of each child."""

    kinds = (StateTaken,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the method."""
        patches.replace(nn.Module, "state_dict", self._taking(nn.Module.state_dict))

    def _taking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: StateSource = self.acting
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            if not source.inside and source.state.running and not is_compiling():
                source.recorder.bus.emit(StateTaken(module, result, call_site()))
            return result

        return state_dict


class ForwardSource(EventSource):
    """Replaces ``Module.__call__`` in the first steps, and is gone after them.

    Each call begins a birth, by which graphs are told apart that no backward goes through.
    """

    kinds = (ForwardFinished,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the method that a call of a module runs."""
        patches.replace(nn.Module, "__call__", self._calling(nn.Module.__call__))

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: ForwardSource = self.acting
            state = source.state
            if state.step >= FIRST_STEPS:
                if not (self.is_kept or source.inside) and nn.Module.__call__ is call:
                    nn.Module.__call__ = original  # type: ignore[method-assign]
                return original(module, *args, **kwargs)
            if source.inside or not state.running or is_compiling():
                return original(module, *args, **kwargs)
            source.recorder.generations.begin_call(state.saved)
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            source.recorder.bus.emit(
                ForwardFinished(
                    module,
                    result,
                    torch.is_grad_enabled(),
                    torch.is_inference_mode_enabled(),
                    call_site(),
                )
            )
            return result

        return call


_, _CALL = module_call_frames()


class ModeLayerSource(EventSource):
    """Gives dropout and batch norm a ``__call__`` of their own; other modules cost nothing more.

    Functional dropout, and layers of other libraries, are not seen.
    """

    kinds = (LayerRanInTrainingMode,)

    def install(self, patches: Patches) -> None:
        """Replace the method that a call of such a layer runs."""
        for owner in (*DROPOUTS, *BATCH_NORMS):
            patches.replace(owner, "__call__", self._calling())

    def _calling(self) -> Callable[..., Any]:
        is_recording = torch.is_grad_enabled
        module_class = nn.Module

        @functools.wraps(module_class.__call__)
        def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_recording() and layer.training and not is_compiling():
                recorder: Recorder = self.acting.recorder
                if recorder.state.running:
                    model, site_frame = _outermost(layer)
                    site = call_site(site_frame)
                    recorder.bus.emit(
                        LayerRanInTrainingMode(layer, model, recorder.state.step, site)
                    )
            # Looked up each time: torch.fx replaces it while it traces.
            return module_class.__call__(layer, *args, **kwargs)

        return call


def _outermost(layer: nn.Module) -> tuple[nn.Module, FrameType]:
    """Return the outermost module that is being called, and the frame in which it runs."""
    here = frame = sys._getframe(2)  # noqa: SLF001 - the caller of the layer
    outermost: FrameType | None = None
    while frame is not None:
        if frame.f_code is _CALL:
            outermost = frame
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    if outermost is None:
        return layer, here
    model: Any = variables_of(outermost)["self"]
    return model, outermost
