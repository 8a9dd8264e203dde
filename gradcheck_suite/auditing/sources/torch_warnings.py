"""What torch itself warns of while the program runs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.call_sites import call_site, is_user_code
from gradcheck_suite.auditing.events import NonLeafGradientRead
from gradcheck_suite.auditing.sources._base import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["TorchWarningSource"]

_NON_LEAF = "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"
# Not `showwarning`: whoever replaces that one is asked in another way, without the warning's
# source, and `catch_warnings` takes it out of force.
_SHOW = "_showwarnmsg"


class TorchWarningSource(Source):
    """Reads each warning on its way to where it is shown, recorded or logged.

    One that a filter of the program's keeps back, or has raised, is not seen.
    """

    kinds = (NonLeafGradientRead,)

    def install(self, patches: Patches) -> None:
        """Replace the function through which every warning goes."""
        show: Callable[[Any], None] | None = getattr(warnings, _SHOW, None)
        if show is not None:
            patches.replace(warnings, _SHOW, self._showing(show))

    def _showing(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def show(message: Any) -> None:
            recorder: Recorder = self.acting.recorder
            if recorder.running and str(message.message).startswith(_NON_LEAF):
                site = call_site()
                # Torch's own and libraries' looks are not the program's mistake.
                if site and is_user_code(site[0]) and site[0].co_filename == message.filename:
                    recorder.emit(NonLeafGradientRead(site))
            original(message)

        return show
