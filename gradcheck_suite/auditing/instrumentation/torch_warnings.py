"""What torch itself warns of while the program runs, and the lines that its warnings name."""

from __future__ import annotations

import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from torch.amp import grad_scaler
from torch.nn.modules import module
from torch.optim import lr_scheduler

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.auditing.call_sites import call_site, is_of_torch, is_user_code
from gradcheck_suite.auditing.events import NonLeafGradientRead, TorchWarned
from gradcheck_suite.auditing.instrumentation.base import EventSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["TorchWarningSource", "WarningLineSource"]

_NON_LEAF = "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"
# Not `showwarning`: whoever replaces that one is asked in another way, without the warning's
# source, and `catch_warnings` takes it out of force.
_SHOW = "_showwarnmsg"


class TorchWarningSource(EventSource):
    """Reads each warning on its way to where it is shown, recorded or logged.

    One that a filter of the program's keeps back, or has raised, is not seen.
    """

    kinds = (NonLeafGradientRead, TorchWarned)

    def install(self, patches: Patches) -> None:
        """Replace the function through which every warning goes."""
        show: Callable[[Any], None] | None = getattr(warnings, _SHOW, None)
        if show is not None:
            patches.replace(warnings, _SHOW, self._showing(show))

    def _showing(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def show(message: Any) -> None:
            recorder: Recorder = self.acting.recorder
            if recorder.state.running:
                _tell(recorder, message)
            original(message)

        return show


def _tell(recorder: Recorder, message: Any) -> None:
    """Tell of a warning, with the line of the user's that has led to it."""
    text = str(message.message)
    site = call_site()
    if text.startswith(_NON_LEAF):
        # Torch's own and libraries' looks are not the program's mistake.
        if site and is_user_code(site[0]) and site[0].co_filename == message.filename:
            recorder.bus.emit(NonLeafGradientRead(site))
    else:
        recorder.bus.emit(TorchWarned(text, _is_from_torch(text), site))


def _is_from_torch(text: str) -> bool:
    """Return whether torch has raised the warning that is being shown, as far as can be seen."""
    if "(Triggered internally at " in text:
        return True
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way
    while frame is not None:
        code = frame.f_code
        if code.co_filename != warnings.__file__ and owner_of_file(code.co_filename) != Owner.US:
            return is_of_torch(code)
        frame = frame.f_back
    return False


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


class WarningLineSource(EventSource):
    """Lets torch's warnings name the line that they would name if nothing of torch were replaced.

    It emits nothing.
    """

    always = True

    def install(self, patches: Patches) -> None:
        """Replace the name ``warnings`` in the modules that count callers."""
        for each in _WARNING:
            if vars(each).get(_NAME) is warnings:
                patches.replace(each, _NAME, _STAND_IN)
