"""Functional dropout that no ``eval()`` switches off: it was not told of the module's mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.events import DropoutRanInEval
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["DropoutIgnoresEvalDetector"]


class _Seen(NamedTuple):
    function: str
    module: str
    site: CallSite | None
    on_purpose: bool


class DropoutIgnoresEvalDetector:
    """Reports dropout-ignores-eval (GCS703)."""

    def __init__(self) -> None:
        self._seen: Occurrences[CallSite | None, _Seen] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at each such call."""
        return {DropoutRanInEval: self._note}

    def _note(self, event: DropoutRanInEval) -> None:
        module = type(event.module).__name__
        self._seen.note(
            event.site, lambda: _Seen(event.function, module, event.site, event.is_given)
        )

    def findings(self) -> Sequence[Finding]:
        """Return one finding for each line."""
        return self._seen.findings(_finding)


def _finding(seen: _Seen, count: int) -> Finding:
    return Finding.of(
        catalogue.DROPOUT_IGNORES_EVAL,
        f"{seen.function}() dropped values in {seen.module} in evaluation mode, {count} times: "
        "the function does not know the mode of the module; expected training=self.training",
        detector="audit",
        doubts=["it is asked for, by training=..."] if seen.on_purpose else [],
        location=location_of(seen.site),
        hint=f"F.{seen.function}(x, p, training=self.training), or nn.Dropout",
        evidence={"count": count, "function": seen.function},
    )
