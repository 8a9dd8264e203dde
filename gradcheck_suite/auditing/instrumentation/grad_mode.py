"""Where grad mode is switched off and on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import GradModeChanged
from gradcheck_suite.auditing.instrumentation.base import EventSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["GradModeSource"]

_CONTEXTS: tuple[Any, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    torch.set_grad_enabled,
)


class GradModeSource(EventSource):
    """Replaces how the contexts are entered and left, and the call of ``set_grad_enabled``.

    What an optimizer does inside its ``step()`` is not told; what other parts of torch do on their
    own behalf is, with the user's line that led to it.
    """

    kinds = (GradModeChanged,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # Entering ``no_grad`` sets grad mode, too.
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        for context in _CONTEXTS:
            kind = context.__name__
            for name, entered in (("__enter__", True), ("__exit__", False)):
                original = getattr(context, name)
                patches.replace(context, name, self._watched(original, kind, entered=entered))
        name = "__init__"
        original = torch.set_grad_enabled.__init__
        watched = self._watched(original, "set_grad_enabled", entered=True)
        patches.replace(torch.set_grad_enabled, name, watched)

    def _watched(
        self, original: Callable[..., Any], kind: Any, *, entered: bool
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(context: Any, *args: Any, **kwargs: Any) -> Any:
            source: GradModeSource = self.acting
            source.inside += 1
            try:
                result = original(context, *args, **kwargs)
            finally:
                source.inside -= 1
            recorder = source.recorder
            if recorder.write_log.listening and not source.inside:
                enabled = torch.is_grad_enabled()
                recorder.bus.emit(GradModeChanged(kind, entered, enabled, call_site()))
            return result

        return watched
