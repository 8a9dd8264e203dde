"""What audits put in place in torch, for one of them or for many, one after another."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._torch_compat import leave_uncompiled, trace_original_of
from gradcheck_suite.auditing.event_bus import EventBus
from gradcheck_suite.auditing.instrumentation.autocast import AutocastSource
from gradcheck_suite.auditing.instrumentation.backward import BackwardSource
from gradcheck_suite.auditing.instrumentation.checkpoints import CheckpointSource
from gradcheck_suite.auditing.instrumentation.child_processes import ChildProcessSource
from gradcheck_suite.auditing.instrumentation.clipping import ClippingSource
from gradcheck_suite.auditing.instrumentation.computed_weights import ComputedWeightSource
from gradcheck_suite.auditing.instrumentation.exchanges import ExchangeSource
from gradcheck_suite.auditing.instrumentation.functional_dropout import FunctionalDropoutSource
from gradcheck_suite.auditing.instrumentation.grad_mode import GradModeSource
from gradcheck_suite.auditing.instrumentation.hook_regions import HookRegions
from gradcheck_suite.auditing.instrumentation.legacy_functions import LegacyFunctionSource
from gradcheck_suite.auditing.instrumentation.modules import (
    ConversionSource,
    ForwardHookSource,
    ForwardSource,
    ModeSource,
    StateSource,
)
from gradcheck_suite.auditing.instrumentation.optimizers import OptimizerSource, SchedulerSource
from gradcheck_suite.auditing.instrumentation.random_state import RandomStateSource
from gradcheck_suite.auditing.instrumentation.replacements import InPlaceReplacements
from gradcheck_suite.auditing.instrumentation.scaling import ScalingSource
from gradcheck_suite.auditing.instrumentation.torch_warnings import (
    TorchWarningSource,
    WarningLineSource,
)
from gradcheck_suite.auditing.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.auditing.instrumentation.base import EventSource

__all__ = ["Installation", "installation", "kept_in_place"]

_SOURCES: Sequence[type[EventSource]] = (
    HookRegions,
    BackwardSource,
    OptimizerSource,
    ClippingSource,
    ScalingSource,
    SchedulerSource,
    ModeSource,
    StateSource,
    ForwardSource,
    ForwardHookSource,
    ConversionSource,
    ComputedWeightSource,
    AutocastSource,
    FunctionalDropoutSource,
    CheckpointSource,
    GradModeSource,
    RandomStateSource,
    TorchWarningSource,
    LegacyFunctionSource,
    WarningLineSource,
    ChildProcessSource,
    ExchangeSource,
)


class _HiddenPatches(Patches):
    """Replacements in whose place ``torch.compile`` sees what they replace."""

    def replace(self, owner: Any, name: str, value: object) -> None:
        trace_original_of(value)
        super().replace(owner, name, value)


@functools.cache
def _leave_ourselves_uncompiled() -> None:
    """Let no function of ours be compiled where torch.compile takes up each frame that runs.

    Those that verification has compiled itself, around the user's, are.
    """
    package = __name__.partition(".")[0]
    leave_uncompiled(package, but=f"{package}.verification", with_all_below=(EventBus, Recorder))


class Installation:
    """Sources of events and stand-ins for in-place functions, acting for one audit at a time.

    Args:
        idle: stands in for the recorder of an audit while none runs, and leaves everything in
            place then; without it, everything is taken away when an audit ends.
    """

    def __init__(self, idle: Recorder | None = None) -> None:
        self._idle = idle
        self._patches = _HiddenPatches()
        self._placed: dict[type[EventSource], EventSource] = {}
        self._replacements = InPlaceReplacements()

    def begin(self, recorder: Recorder) -> None:
        """Put in place what this audit needs and is not there yet, and let all act for it."""
        _leave_ourselves_uncompiled()
        for kind in _SOURCES:
            if kind.always or recorder.bus.wants_any(kind.kinds):
                placed = self._placed.get(kind)
                if placed is None:
                    placed = self._placed[kind] = kind(self._idle or recorder)
                    placed.acting = placed
                    placed.is_kept = self._idle is not None
                    placed.install(self._patches)
                placed.acting = kind(recorder)
        if recorder.options.name_writers:
            self._replacements.begin(recorder.write_log, self._patches)

    def end(self) -> None:
        """Let nothing act for the audit any more."""
        self._replacements.end()
        if self._idle is None:
            self.remove()
        for placed in self._placed.values():
            placed.acting = placed

    def remove(self) -> None:
        """Take everything away."""
        for source in self._placed.values():
            source.uninstall()
        self._placed.clear()
        self._patches.restore()
        self._replacements.forget()


_KEPT: list[Installation] = []


def installation() -> Installation:
    """Return what the next audit is to use."""
    return _KEPT[-1] if _KEPT else Installation()


@contextmanager
def kept_in_place(idle: Recorder) -> Iterator[None]:
    """Leave everything in place between the audits inside, which then begin and end sooner.

    For runs of many short audits, such as one for each test. Replacing a method of a class like
    ``nn.Module`` costs more than hundreds of its calls: Python forgets what it knows of all the
    classes beneath, and must look everything up again. While no audit runs, calls pass through
    unseen. Does nothing inside itself.
    """
    if _KEPT:
        yield
        return
    kept = Installation(idle)
    _KEPT.append(kept)
    try:
        yield
    finally:
        _KEPT.remove(kept)
        kept.remove()
