"""A part of a function that is computed without recording, and differentiated by its input.

The derivative of an energy by positions, of a field by its coordinates, of a critic by its input:
what was computed of the input under ``no_grad`` counts for the value and not for the derivative,
and nothing shows it. Masks and indices have no slope and may be computed so; a whole network may be
left out on purpose, as guidance by a cheaper gradient does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_frames
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import GradientsReturned
from gradcheck_suite.auditing.source_analysis.loss_terms import left_out_of_derivative
from gradcheck_suite.auditing.source_analysis.source import function_at
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.source_analysis.flow_cut import Cut

__all__ = ["DerivativeLeftOutDetector"]

_LOOKED_AT = 2
"""Calls of one line whose source is followed. A bound on cost: the second may be another caller."""
_MOST_LINES = 16
"""Lines with ``autograd.grad`` that are looked at. A bound on cost."""


class DerivativeLeftOutDetector:
    """Reports forward-under-no-grad (GCS402) of what is differentiated by an input."""

    def __init__(self) -> None:
        self._looks: dict[CallSite | None, int] = {}
        self._found: dict[Cut, tuple[str, bool, CallSite | None]] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the first calls of each ``autograd.grad``."""
        return {GradientsReturned: self._look_at}

    def _look_at(self, event: GradientsReturned) -> None:
        site = event.finished.site
        looks = self._looks.get(site, 0)
        if looks >= _LOOKED_AT or (not looks and len(self._looks) >= _MOST_LINES):
            return
        self._looks[site] = looks + 1
        frames = list(user_frames())
        for cut, (name, has_others) in left_out_of_derivative(frames).items() if frames else ():
            self._found.setdefault(cut, (name, has_others, site))

    def findings(self) -> list[Finding]:
        """Return one finding for each line that switches recording off."""
        return [_finding(cut, *found) for cut, found in self._found.items()]


def _finding(cut: Cut, name: str, has_others: bool, site: CallSite | None) -> Finding:
    where = Location(cut.path, cut.line, function=function_at(cut.path, cut.line))
    return Finding.of(
        catalogue.FORWARD_UNDER_NO_GRAD,
        f"what is computed here from `{name}` is part of what autograd.grad() differentiates by "
        f"`{name}`, and recording is off: the derivative leaves it out; expected a derivative of "
        "the whole",
        detector="audit",
        severity=Severity.WARNING,
        doubts=["it depends on parameters too, as a network that is left out on purpose"]
        if has_others
        else [],
        location=where,
        related=related((location_of(site), f"it is differentiated by `{name}` here")),
        hint="record it, unless it is to count as a constant",
        evidence={"input": name},
    )
