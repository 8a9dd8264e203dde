"""A checkpoint that backward has computed anew, and not as forward had.

With other random numbers, in another mode, or with weights that a step has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.events import RecomputedDifferently
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["RecomputedDifferentlyDetector"]


class RecomputedDifferentlyDetector:
    """Reports recomputed-differently (GCS613)."""

    def __init__(self) -> None:
        self._seen: Occurrences[CallSite | None, RecomputedDifferently] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at each such recomputation."""
        return {RecomputedDifferently: self._note}

    def _note(self, event: RecomputedDifferently) -> None:
        self._seen.note(event.site, lambda: event)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return self._seen.findings(_finding)


def _finding(seen: RecomputedDifferently, count: int) -> Finding:
    what, hints = [], []
    if seen.drawn:
        what.append(f"with other random numbers ({' and '.join(seen.drawn)} generator)")
        hints.append(
            "leave preserve_rng_state=True"
            if all(each.startswith("torch's") for each in seen.drawn)
            else "draw with torch, whose generators checkpoint restores, or before the checkpoint"
        )
    if seen.mode_changed:
        what.append("in another mode (train() or eval() was called since)")
        hints.append("call backward() before the mode changes")
    if seen.parameters_changed:
        many = seen.parameters_changed
        what.append(f"with {many} parameter{'s' if many > 1 else ''} changed since")
        hints.append("call backward() before the step that changes what the checkpoint computes")
    return Finding.of(
        catalogue.RECOMPUTED_DIFFERENTLY,
        f"backward() ran what is checkpointed here again {' and '.join(what)}, {count} times: the "
        "gradient is that of another function than the loss; expected both runs to be the same",
        detector="audit",
        severity=Severity.ERROR if seen.parameters_changed else Severity.WARNING,
        location=location_of(seen.site),
        hint="; ".join(hints),
        evidence={
            "count": count,
            "generators": list(seen.drawn),
            "mode_changed": seen.mode_changed,
            "parameters_changed": seen.parameters_changed,
        },
    )
