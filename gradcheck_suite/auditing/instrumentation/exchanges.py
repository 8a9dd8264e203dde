"""What goes from rank to rank, and what is kept from going."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from gradcheck_suite._torch_compat import communicating_methods
from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches

__all__ = ["ExchangeSource"]


class ExchangeSource(EventSource):
    """Notes what process groups send, ``no_sync()``, and samplers that share data among ranks.

    In a process of its own, it replaces nothing.
    """

    always = True

    def install(self, patches: Patches) -> None:
        """Replace the methods, where there are other ranks."""
        if not self.recorder.job.look() or not dist.is_available():
            return
        for name in communicating_methods():
            original = getattr(dist.ProcessGroup, name)
            patches.replace(dist.ProcessGroup, name, self._sending(original))
        no_sync = self._suspending(DistributedDataParallel.no_sync)
        patches.replace(DistributedDataParallel, "no_sync", no_sync)
        sampling = self._sampling(DistributedSampler.__iter__)
        patches.replace(DistributedSampler, "__iter__", sampling)

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def send(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                self.acting.recorder.exchanges.note(args[1:])
            return original(*args, **kwargs)

        return send

    def _suspending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def no_sync(module: Any) -> Any:
            self.acting.recorder.exchanges.suspended_at = call_site()
            return original(module)

        return no_sync

    def _sampling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __iter__(sampler: Any) -> Any:  # noqa: N807
            self.acting.recorder.exchanges.samples_by_rank = True
            return original(sampler)

        return __iter__
