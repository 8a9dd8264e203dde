"""A loss that is given as its own gradient: what is trained on is half of its square.

``loss.backward(loss)`` multiplies each gradient by the value of the loss, so that the steps shrink
as it falls. Of a residual with several elements the same call is the gradient of a sum of squares,
and is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.events import LossGivenAsGradient
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["LossGivenAsGradientDetector"]


class LossGivenAsGradientDetector:
    """Reports wrong-gradient (GCS601) of a loss that is its own incoming gradient."""

    def __init__(self) -> None:
        self._seen: Occurrences[CallSite | None, CallSite | None] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at each backward that is given what it starts from."""
        return {LossGivenAsGradient: self._note}

    def _note(self, event: LossGivenAsGradient) -> None:
        site = event.started.site
        self._seen.note(site, lambda: site)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return self._seen.findings(_finding)


def _finding(site: CallSite | None, count: int) -> Finding:
    return Finding.of(
        catalogue.WRONG_GRADIENT,
        f"backward() was given the loss itself as the gradient, {count} time"
        f"{'s' * (count > 1)}: each gradient is multiplied by the value of the loss, and is that "
        "of half of its square; expected no argument",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(site),
        hint="call loss.backward(), or write loss.square() / 2 where that is meant",
        evidence={"count": count},
    )
