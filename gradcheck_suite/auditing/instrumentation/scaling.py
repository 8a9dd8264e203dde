"""The gradient scaler of mixed-precision training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler

from gradcheck_suite.auditing.call_sites import exact_call_site
from gradcheck_suite.auditing.events import (
    GradientsUnscaled,
    LossScaled,
    ScalerStepped,
    ScalerUpdated,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource
from gradcheck_suite.auditing.object_names.optimizers import innermost_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ScalingSource"]


class ScalingSource(EventSource):
    """Replaces the four methods of ``GradScaler`` that a training loop calls."""

    kinds = (LossScaled, GradientsUnscaled, ScalerStepped, ScalerUpdated)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # ``step`` calls ``unscale_`` where the program has not, and ``scale`` calls itself.
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        patches.replace(GradScaler, "scale", self._scaling(GradScaler.scale))
        patches.replace(GradScaler, "unscale_", self._unscaling(GradScaler.unscale_))
        patches.replace(GradScaler, "step", self._stepping(GradScaler.step))
        patches.replace(GradScaler, "update", self._updating(GradScaler.update))

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method, and note that it is being called."""
        self.inside += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.inside -= 1

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            source: ScalingSource = self.acting
            result = source.run(original, scaler, outputs)
            if not source.inside:
                source.recorder.bus.emit(LossScaled(scaler, result, exact_call_site()))
            return result

        return scale

    def _unscaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> Any:
            source: ScalingSource = self.acting
            failed = True
            try:
                result = source.run(original, scaler, optimizer)
                failed = False
            finally:
                if not source.inside:
                    site = exact_call_site()
                    inner = innermost_optimizer(optimizer)
                    source.recorder.bus.emit(GradientsUnscaled(scaler, inner, failed, site))
            return result

        return unscale_

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            source: ScalingSource = self.acting
            recorder = source.recorder
            before = recorder.state.optimizer_steps
            failed = True
            try:
                result = source.run(original, scaler, optimizer, *args, **kwargs)
                failed = False
            finally:
                stepped = recorder.state.optimizer_steps > before
                inner = innermost_optimizer(optimizer)
                recorder.bus.emit(ScalerStepped(scaler, inner, stepped, failed, exact_call_site()))
            return result

        return step

    def _updating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            source: ScalingSource = self.acting
            failed = True
            try:
                result = source.run(original, scaler, *args, **kwargs)
                failed = False
            finally:
                source.recorder.bus.emit(ScalerUpdated(scaler, failed, exact_call_site()))
            return result

        return update
