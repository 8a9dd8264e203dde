"""Parts of a program in which saved tensors are somebody else's: torch.func, checkpoint."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._torch_compat import (
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    top_saved_tensors_hooks,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["HookRegions"]


class HookRegions(EventSource):
    """Steps aside for torch.func, and counts the regions under hooks of the program's own."""

    always = True

    def install(self, patches: Patches) -> None:
        """Replace what enters such a region."""
        graph = torch.autograd.graph
        patches.replace(
            graph,
            "disable_saved_tensors_hooks",
            self._stepping_aside(graph.disable_saved_tensors_hooks),
        )
        hooks = graph.saved_tensors_hooks
        patches.replace(hooks, "__enter__", self._counting(hooks.__enter__))

    def _stepping_aside(
        self, original: Callable[[str], AbstractContextManager[None]]
    ) -> Callable[[str], AbstractContextManager[None]]:
        # torch.func refuses to run under saved-tensors hooks. Ours make room for it, and come
        # back; where the user's own lie above them, torch refuses as it does without an audit.
        @contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            recorder: Recorder = self.acting.recorder
            hooks = recorder.hooks
            top = top_saved_tensors_hooks()
            aside = top is not None and top[0] is hooks[0]
            if aside:
                remove_saved_tensors_hooks(hooks)
                recorder.state.transform_regions += 1
            try:
                with original(error_message):
                    yield
            finally:
                if aside and recorder.state.running:
                    push_saved_tensors_hooks(*hooks)

        functools.update_wrapper(disable_saved_tensors_hooks, original)
        return disable_saved_tensors_hooks

    def _counting(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original)
        def __enter__(hooks: Any) -> None:  # noqa: N807 - the name that it stands in for
            self.acting.recorder.state.hook_regions += 1
            return original(hooks)

        return __enter__
