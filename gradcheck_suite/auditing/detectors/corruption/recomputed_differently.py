"""A checkpoint that backward has computed anew, and not as forward had.

With other random numbers, in another mode, or with weights that a step has changed since; or that
has written to its buffers once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import RecomputedDifferently
from gradcheck_suite.auditing.source_analysis.assignments import switched_off_at
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["RecomputedDifferentlyDetector"]

_SHOWN = 3
"""Modules that a message lists. Chosen, for length."""


class RecomputedDifferentlyDetector:
    """Reports recomputed-differently (GCS613)."""

    def __init__(self) -> None:
        self._seen: Occurrences[tuple[CallSite | None, bool], RecomputedDifferently] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at each such recomputation."""
        return {RecomputedDifferently: self._note}

    def _note(self, event: RecomputedDifferently) -> None:
        self._seen.note((event.site, bool(event.buffers)), lambda: event)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return self._seen.findings(
            lambda seen, count: (_written_twice if seen.buffers else _finding)(seen, count)
        )


def _written_twice(seen: RecomputedDifferently, count: int) -> Finding:
    names = ", ".join(seen.buffers[:_SHOWN])
    more = f" and {len(seen.buffers) - _SHOWN} more" if len(seen.buffers) > _SHOWN else ""
    return Finding.of(
        catalogue.RECOMPUTED_DIFFERENTLY,
        f"backward() ran what is checkpointed here again, and that wrote to buffers of {names}"
        f"{more} a second time, {count} times: running statistics move twice for each batch; "
        "expected one update",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(seen.site),
        hint=(
            "leave layers that write to their buffers, such as batch norm, out of the checkpoint, "
            "or have them write in the first run alone"
        ),
        evidence={"count": count, "modules": list(seen.buffers)},
    )


def _finding(seen: RecomputedDifferently, count: int) -> Finding:
    what, hints = [], []
    checkpointed = location_of(seen.site)
    where = checkpointed
    if seen.drawn:
        alone = not seen.mode_changed and not seen.parameters_changed
        if alone and checkpointed is not None:
            where = switched_off_at("preserve_rng_state", checkpointed) or checkpointed
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
        f"backward() ran what is checkpointed {'here' if where is checkpointed else 'so'} again "
        f"{' and '.join(what)}, {count} times: the "
        "gradient is that of another function than the loss; expected both runs to be the same",
        detector="audit",
        severity=Severity.ERROR if seen.parameters_changed else Severity.WARNING,
        location=where,
        related=related((checkpointed, "checkpointed here"), apart_from=where),
        hint="; ".join(hints),
        evidence={
            "count": count,
            "generators": list(seen.drawn),
            "mode_changed": seen.mode_changed,
            "parameters_changed": seen.parameters_changed,
        },
    )
