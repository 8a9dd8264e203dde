"""Functional dropout that is on where the module that calls it is in evaluation mode."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn import functional

from gradcheck_suite.auditing.call_sites import call_site, variables_of
from gradcheck_suite.auditing.events import DropoutRanInEval
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gradcheck_suite._runtime.patches import Patches

__all__ = ["FunctionalDropoutSource"]

_NAMES = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_FRAMES = 3
"""Frames, from the caller on, in which the module that calls is looked for. A bound on cost: a
helper function or two may stand between."""
_RATE = 1
"""The place of ``p`` among the arguments of each; no default is 0."""
_TRAINING = 2
"""The place of ``training`` among the arguments of each, whose default is True."""


class FunctionalDropoutSource(EventSource):
    """Replaces the functions of ``torch.nn.functional``, as ``F.dropout`` finds them there."""

    kinds = (DropoutRanInEval,)

    def install(self, patches: Patches) -> None:
        """Replace the functions."""
        for name in _NAMES:
            patches.replace(functional, name, self._calling(getattr(functional, name)))

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(*args: Any, **kwargs: Any) -> Any:
            given = len(args) > _TRAINING or "training" in kwargs
            is_on = args[_TRAINING] if len(args) > _TRAINING else kwargs.get("training", True)
            rate = args[_RATE] if len(args) > _RATE else kwargs.get("p", 1.0)
            source: FunctionalDropoutSource = self.acting
            if is_on and rate and source.state.running and not is_compiling():
                frame = sys._getframe(1)  # noqa: SLF001 - the module that calls
                module = _module_of(frame)
                if module is not None and not module.training:
                    source.recorder.bus.emit(
                        DropoutRanInEval(original.__name__, module, given, call_site(frame))
                    )
            return original(*args, **kwargs)

        return dropout


def _module_of(frame: FrameType | None) -> nn.Module | None:
    """Return the module whose method runs in this frame, or calls what runs there."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = variables_of(frame).get("self")
        if isinstance(found, nn.Module):
            return found
        frame = frame.f_back
    return None
