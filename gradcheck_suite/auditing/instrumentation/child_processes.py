"""Child processes that the program starts, in which nothing is watched."""

from __future__ import annotations

import functools
import os
import subprocess
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.distributed.children import is_of_user
from gradcheck_suite.auditing.instrumentation.base import EventSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ChildProcessSource"]


class ChildProcessSource(EventSource):
    """Counts them by what starts them: multiprocessing, subprocess or ``os.fork``.

    In the audit of a script, what multiprocessing starts is audited, where it has a target.
    Workers of a DataLoader are left out: they train nothing.
    """

    always = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # To start a process, multiprocessing may fork.
        self.starting = 0

    def install(self, patches: Patches) -> None:
        """Replace the two methods that start a process."""
        _WATCHING.append(self)
        patches.replace(BaseProcess, "start", self._starting(BaseProcess.start))
        opened = self._opened(subprocess.Popen.__init__)
        patches.replace(subprocess.Popen, "__init__", opened)

    def uninstall(self) -> None:
        """Count forks no more."""
        _WATCHING.remove(self)

    def _starting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(process: Any, *args: Any, **kwargs: Any) -> None:
            source: ChildProcessSource = self.acting
            # Once it runs, a process does not know its target any more.
            loads_data = _module_of_target(process).startswith("torch.utils.data.")
            target, children = getattr(process, "_target", None), source.recorder.children
            is_audited = children is not None and source.state.installed and is_of_user(target)
            if target is not None and children is not None and is_audited:
                process._target = children.audited(target)  # noqa: SLF001 - runs what it is given
            source.starting += 1
            try:
                original(process, *args, **kwargs)
            finally:
                source.starting -= 1
            if not (loads_data or is_audited):
                source.recorder.state.children["multiprocessing"] += 1

        return start

    def _opened(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(process: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            source: ChildProcessSource = self.acting
            source.starting += 1
            try:
                original(process, *args, **kwargs)
            finally:
                source.starting -= 1
            source.recorder.state.children["subprocess"] += 1

        return __init__


def _module_of_target(process: Any) -> str:
    return str(getattr(getattr(process, "_target", None), "__module__", ""))


_WATCHING: list[ChildProcessSource] = []


def _note_fork() -> None:
    for placed in _WATCHING:
        source: ChildProcessSource = placed.acting
        if not source.starting:
            source.recorder.state.children["os.fork"] += 1


if hasattr(os, "register_at_fork"):
    # In place of replacing os.fork, whose warnings name the line that calls it.
    os.register_at_fork(after_in_parent=_note_fork)
