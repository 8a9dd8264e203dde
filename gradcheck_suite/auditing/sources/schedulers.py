"""Learning-rate schedulers."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer, lr_scheduler

from gradcheck_suite.auditing.call_sites import exact_call_site
from gradcheck_suite.auditing.events import SchedulerStepped
from gradcheck_suite.auditing.sources._base import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["SchedulerSource"]


class SchedulerSource(Source):
    """Replaces ``step`` of every scheduler class of torch that has its own.

    A scheduler of the program's own is seen as far as its ``step`` calls the one it inherits.
    """

    kinds = (SchedulerStepped,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # A chained scheduler steps those that it is made of.
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        for thing in list(vars(lr_scheduler).values()):
            if inspect.isclass(thing) and issubclass(thing, lr_scheduler.LRScheduler):
                own = vars(thing).get("step")
                if inspect.isfunction(own):
                    patches.replace(thing, "step", self._stepping(own))

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            source: SchedulerSource = self.acting
            source.inside += 1
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                source.inside -= 1
            caller = sys._getframe(1)  # noqa: SLF001 - the constructor steps once itself
            if not source.inside and caller.f_code.co_name not in _OF_THE_CONSTRUCTOR:
                optimizer = getattr(scheduler, "optimizer", None)
                known = optimizer if isinstance(optimizer, Optimizer) else None
                source.recorder.emit(SchedulerStepped(scheduler, known, exact_call_site()))
            return result

        return step


_OF_THE_CONSTRUCTOR = frozenset({"_initial_step", "__init__"})
