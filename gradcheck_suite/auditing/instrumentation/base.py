"""What every source of events has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["EventSource", "is_compiling"]

is_compiling = torch.compiler.is_compiling


class EventSource(ABC):
    """Watches one part of torch while an audit runs.

    What it puts into torch may stay there from audit to audit, and then acts for the source of
    the audit that runs: it asks for ``acting`` whenever it is called, and keeps to the answer
    until it returns.

    Attributes:
        kinds: the events that it emits; it is installed only if one of them is read.
        always: install it in any case, since it keeps the recorder's own count.
        recorder: of the audit that this source is made for.
        state: its run state, which is asked for in each call of a module.
        acting: the source, of the same class, that is told of what happens now; only what is in
            place has one.
        is_kept: whether it stays in place from audit to audit.
    """

    kinds: ClassVar[tuple[type[Any], ...]] = ()
    always: ClassVar[bool] = False
    acting: Any
    is_kept = False

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.state = recorder.state

    @abstractmethod
    def install(self, patches: Patches) -> None:
        """Put everything in place; what ``patches`` replaces is put back without further ado."""

    def uninstall(self) -> None:  # noqa: B027 - most have nothing to take away
        """Take away what ``patches`` does not know of."""
