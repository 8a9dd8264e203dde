"""Custom Functions that are used as they were in old torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import LegacyFunctionCalled
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from gradcheck_suite._runtime.patches import Patches

__all__ = ["LegacyFunctionSource"]


class LegacyFunctionSource(EventSource):
    """Replaces the method that torch keeps in order to refuse ``Function()(x)``."""

    kinds = (LegacyFunctionCalled,)

    def install(self, patches: Patches) -> None:
        """Replace ``Function.__call__``, if this torch still has it."""
        refuse: Any = vars(torch.autograd.Function).get("__call__")
        if refuse is None:
            return

        @functools.wraps(refuse)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = self.acting.recorder
            if recorder.state.running and not is_compiling():
                recorder.bus.emit(LegacyFunctionCalled(type(function), call_site()))
            return refuse(function, *args, **kwargs)

        patches.replace(torch.autograd.Function, "__call__", call)
