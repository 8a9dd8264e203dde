"""Steps inside one autocast region: every forward after the first step uses the weights before it.

Autocast casts each parameter once and keeps the copy until the outermost region is left. An
optimizer that steps inside the region changes the parameter and not the copy.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import AutocastEntered, StepFinished, WatchResumed
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["StepInsideAutocastDetector"]

_CACHED_FROM = torch.float32
"""Parameters of this dtype alone are cast and kept: what is narrow already, or float64, is not."""


class _Seen(NamedTuple):
    entered: CallSite | None
    stepped: CallSite | None
    optimizer: str


class StepInsideAutocastDetector:
    """Reports step-inside-autocast (GCS314)."""

    def __init__(self) -> None:
        self._entered: dict[str, CallSite | None] = {}
        # By device: the steps in the region that is open.
        self._steps: dict[str, int] = {}
        self._seen: Occurrences[tuple[CallSite | None, CallSite | None], _Seen] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Count the steps in each region."""
        return {
            AutocastEntered: self._enter,
            StepFinished: self._end_step,
            WatchResumed: self._begin_anew,
        }

    def _enter(self, event: AutocastEntered) -> None:
        self._entered[event.device] = event.site
        self._steps[event.device] = 0

    def _begin_anew(self, _event: WatchResumed) -> None:
        self._entered.clear()

    def _end_step(self, event: StepFinished) -> None:
        for device, entered in self._entered.items():
            if not (torch.is_autocast_enabled(device) and torch.is_autocast_cache_enabled()):
                continue
            if not any(_is_cast(each, device) for each in parameters_of(event.optimizer)):
                continue
            self._steps[device] += 1
            if self._steps[device] > 1:
                key = entered, event.site
                self._seen.note(key, partial(_Seen, *key, type(event.optimizer).__name__))

    def findings(self) -> Sequence[Finding]:
        """Return one finding for each region and step."""
        return self._seen.findings(_finding)


def _is_cast(parameter: torch.Tensor, device: str) -> bool:
    return parameter.device.type == device and parameter.dtype == _CACHED_FROM


def _finding(seen: _Seen, count: int) -> Finding:
    return Finding.of(
        catalogue.STEP_INSIDE_AUTOCAST,
        f"{seen.optimizer}.step() ran after another step inside one autocast region, {count} "
        "times: the region casts each parameter once and keeps the copy until it is left, so that "
        "forwards use the parameters from before its first step; expected a region for each "
        "forward",
        detector="audit",
        location=location_of(seen.entered),
        related=related((location_of(seen.stepped), "stepped here, inside the region")),
        hint="enter autocast in the loop, around forward and loss alone",
        evidence={"count": count, "optimizer": seen.optimizer},
    )
