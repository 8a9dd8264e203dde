"""Layers that act differently in training mode, when they run without recording."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._torch_compat import BATCH_NORMS, DROPOUTS, module_call_frames
from gradcheck_suite.auditing.call_sites import call_site, variables_of
from gradcheck_suite.auditing.events import LayerRanInTrainingMode
from gradcheck_suite.auditing.sources._base import Source, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gradcheck_suite._patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ModeLayerSource"]

_, _CALL = module_call_frames()


class ModeLayerSource(Source):
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
                if recorder.running:
                    model, site_frame = _outermost(layer)
                    site = call_site(site_frame)
                    recorder.emit(LayerRanInTrainingMode(layer, model, recorder.step, site))
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
