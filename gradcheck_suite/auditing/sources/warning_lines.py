"""The lines that warnings of torch name, where a stand-in of ours lies between."""

from __future__ import annotations

import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from torch.amp import grad_scaler
from torch.nn.modules import module
from torch.optim import lr_scheduler

from gradcheck_suite._frames import Owner, owner_of_file
from gradcheck_suite.auditing.sources._base import Source

if TYPE_CHECKING:
    from types import FrameType

    from gradcheck_suite._patches import Patches

__all__ = ["WarningLineSource"]

_NAME = "warnings"
# The modules of torch that warn in the name of their caller, from functions that are replaced.
_WARNING = (lr_scheduler, grad_scaler, module)


class _Warnings(types.ModuleType):
    """Stand in for the module ``warnings``, and leave our frames out where callers are counted.

    Everything else is asked of the module itself, at the time: filters, what is recorded or
    raised, and which lines were warned of already are as they are without an audit.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    @staticmethod
    def warn(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **kwargs: Any
    ) -> None:
        """Do what ``warnings.warn`` does."""
        ours = _own_frames(sys._getframe(1), stacklevel - 1)  # noqa: SLF001 - the only way
        warnings.warn(message, category, stacklevel + 1 + ours, source, **kwargs)


def _own_frames(frame: FrameType | None, callers: int) -> int:
    """Return how many frames of ours lie between a frame and that many callers of it."""
    ours = 0
    while callers > 0 and frame is not None and (frame := frame.f_back) is not None:
        if owner_of_file(frame.f_code.co_filename) is Owner.US:
            ours += 1
        else:
            callers -= 1
    return ours


_STAND_IN = _Warnings(_NAME)


class WarningLineSource(Source):
    """Lets torch's warnings name the line that they would name if nothing of torch were replaced.

    It emits nothing.
    """

    always = True

    def install(self, patches: Patches) -> None:
        """Replace the name ``warnings`` in the modules that count callers."""
        for each in _WARNING:
            if vars(each).get(_NAME) is warnings:
                patches.replace(each, _NAME, _STAND_IN)
