"""Gradient clipping, by whatever name the program has imported it."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from gradcheck_suite._torch_compat import clipping_internals
from gradcheck_suite.auditing.call_sites import exact_call_site
from gradcheck_suite.auditing.events import GradientsClipped
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gradcheck_suite._runtime.patches import Patches

__all__ = ["ClippingSource"]


class ClippingSource(EventSource):
    """Replaces the functions that ``clip_grad_norm_`` and ``clip_grad_value_`` call.

    Programs import those two by name, often before the audit begins; what they look up in their
    own module is looked up at each call.
    """

    kinds = (GradientsClipped,)

    def install(self, patches: Patches) -> None:
        """Replace the inner functions, or the public ones where there are none."""
        by_norm, grouping = clipping_internals()
        clip = self._by_norm(getattr(clip_grad, by_norm))
        patches.replace(clip_grad, by_norm, clip)
        if by_norm.startswith("_"):
            patches.replace(torch.nn.utils, by_norm[1:], clip)
        if grouping is None:
            value = self._by_value(clip_grad.clip_grad_value_)
            patches.replace(clip_grad, "clip_grad_value_", value)
            patches.replace(torch.nn.utils, "clip_grad_value_", value)
        else:
            patches.replace(clip_grad, grouping, self._grouping(getattr(clip_grad, grouping)))

    def _by_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, (torch.Tensor, list, tuple)):
                parameters = list(parameters)
            result = original(parameters, *args, **kwargs)
            given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            limit = args[0] if args else kwargs.get("max_norm")
            self.acting.tell("clip_grad_norm_", (each.grad for each in given), given, limit)
            return result

        return clip

    def _grouping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def group(lists: Any, *args: Any, **kwargs: Any) -> Any:
            refused = True
            try:
                groups = original(lists, *args, **kwargs)
                refused = False
            finally:  # it refuses an empty list, as where there is no gradient yet
                caller = sys._getframe(1)  # noqa: SLF001 - the others call this too
                if caller.f_code.co_name == "clip_grad_value_":
                    self.acting.tell("clip_grad_value_", lists[0], refused=refused)
            return groups

        return group

    def _by_value(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, (torch.Tensor, list, tuple)):
                parameters = list(parameters)
            result = original(parameters, *args, **kwargs)
            given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            self.acting.tell("clip_grad_value_", (each.grad for each in given), given)
            return result

        return clip

    def tell(
        self,
        function: Any,
        gradients: Iterable[Any],
        given: Sequence[Any] | None = None,
        limit: object = None,
        *,
        refused: bool = False,
    ) -> None:
        """Tell of a call of ``function``."""
        if self.recorder.state.running and not is_compiling():
            self.recorder.bus.emit(
                GradientsClipped(
                    function=function,
                    gradients=tuple(gradient for gradient in gradients if gradient is not None),
                    parameters=None if given is None else len(given),
                    site=exact_call_site(),
                    given=tuple(given or ()),
                    limit=float(limit) if isinstance(limit, (int, float)) else None,
                    refused=refused,
                )
            )
