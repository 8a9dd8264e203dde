"""Report what of the linter itself failed on a file, so that it costs no other finding."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gradcheck_lint.unreadable import unreadable
from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED_CODE: Final = "GCS002"
FAILED_SLUG: Final = "internal-error"

WHOLE_FILE: Final = "the whole file"

_TOO_DEEP: Final = "its expressions or blocks are nested too deeply to read"
_MOST_NAMED: Final = 3
_LONGEST: Final = 300


class Failures:
    """The errors of ours that came up on one file, and what each of them costs.

    Everything that works on a file and may have a bug runs within ``costing``, or hands what it
    has caught to ``note``: what fails is told, and the rest of the file is linted.
    """

    def __init__(self) -> None:
        self.codes: set[str] = set()
        """The rules that were not applied to all of the file."""
        self._costs: dict[tuple[bool, str], dict[str, None]] = {}

    @contextmanager
    def costing(self, cost: str) -> Iterator[None]:
        """Let an error end the block and nothing more; ``cost`` is what is left out for it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a bug of ours may raise anything
            self.note(error, cost)

    def note(self, error: Exception, *costs: str) -> None:
        """Remember an error that was caught, once for each thing that it costs."""
        key = isinstance(error, RecursionError), _words(error)
        self._costs.setdefault(key, {}).update(dict.fromkeys(costs))
        if os.environ.get("GRADCHECK_SUITE_TRACEBACK"):
            import traceback  # noqa: PLC0415 - rare path

            traceback.print_exception(error, file=sys.stderr)

    def findings(self, path: str) -> tuple[Finding, ...]:
        """Return a finding for each error; deep nesting is the source's own."""
        return tuple(
            _too_deep(path, [*costs]) if is_too_deep else failed(path, words, *costs)
            for (is_too_deep, words), costs in self._costs.items()
        )


def _too_deep(path: str, costs: list[str]) -> Finding:
    if WHOLE_FILE in costs:
        return unreadable(path, _TOO_DEEP)
    return unreadable(path, f"{_TOO_DEEP}; left out: {_listed(costs)}", undone="linted whole")


def failed(path: str, what: str, *costs: str) -> Finding:
    """Return the finding for a failure of the linter itself on a file, and what it left out."""
    return Finding(
        code=FAILED_CODE,
        rule=FAILED_SLUG,
        severity=Severity.ERROR,
        message=f"internal error: {what}; left out: {_listed([*costs])}",
        detector="lint",
        location=Location(path, 1),
        hint="this is a bug in gradcheck-suite; please report it with what "
        "GRADCHECK_SUITE_TRACEBACK=1 makes it print",
    )


def _words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _listed(costs: list[str]) -> str:
    more = len(costs) - _MOST_NAMED
    named = ", ".join(costs[:_MOST_NAMED])
    return named if more <= 0 else f"{named} and {more} more"
