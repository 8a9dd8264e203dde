"""The gradient scaler of mixed-precision training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler

from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import (
    GradientsUnscaled,
    LossScaled,
    ScalerStepped,
    ScalerUpdated,
)
from gradcheck_suite.auditing.sources._base import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from gradcheck_suite.auditing.patches import Patches

__all__ = ["ScalingSource"]


class ScalingSource(Source):
    """Replaces the four methods of ``GradScaler`` that a training loop calls."""

    kinds = (LossScaled, GradientsUnscaled, ScalerStepped, ScalerUpdated)

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        # ``step`` calls ``unscale_`` where the program has not, and ``scale`` calls itself.
        self._inside = 0
        patches.replace(GradScaler, "scale", self._scaling(GradScaler.scale))
        patches.replace(GradScaler, "unscale_", self._unscaling(GradScaler.unscale_))
        patches.replace(GradScaler, "step", self._stepping(GradScaler.step))
        patches.replace(GradScaler, "update", self._updating(GradScaler.update))

    def _run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._inside -= 1

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            result = self._run(original, scaler, outputs)
            if not self._inside:
                self.recorder.emit(LossScaled(scaler, result, call_site()))
            return result

        return scale

    def _unscaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> Any:
            failed = True
            try:
                result = self._run(original, scaler, optimizer)
                failed = False
            finally:
                if not self._inside:
                    site = call_site()
                    self.recorder.emit(GradientsUnscaled(scaler, optimizer, failed, site))
            return result

        return unscale_

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = recorder.optimizer_steps
            failed = True
            try:
                result = self._run(original, scaler, optimizer, *args, **kwargs)
                failed = False
            finally:
                stepped = recorder.optimizer_steps > before
                recorder.emit(ScalerStepped(scaler, optimizer, stepped, failed, call_site()))
            return result

        return step

    def _updating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            failed = True
            try:
                result = self._run(original, scaler, *args, **kwargs)
                failed = False
            finally:
                self.recorder.emit(ScalerUpdated(scaler, failed, call_site()))
            return result

        return update
