"""Where autocast begins."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import AutocastEntered
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches

__all__ = ["AutocastSource"]


class AutocastSource(EventSource):
    """Replaces how autocast is entered.

    A region inside another shares its cache, and is not told of.
    """

    kinds = (AutocastEntered,)

    def install(self, patches: Patches) -> None:
        """Replace the method."""
        patches.replace(torch.autocast, "__enter__", self._entering(torch.autocast.__enter__))

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __enter__(context: Any) -> Any:  # noqa: N807
            source: AutocastSource = self.acting
            kind = context.device
            outermost = source.state.running and not is_compiling()
            outermost = outermost and not torch.is_autocast_enabled(kind)
            result = original(context)
            if outermost:
                source.recorder.bus.emit(AutocastEntered(kind, call_site()))
            return result

        return __enter__
