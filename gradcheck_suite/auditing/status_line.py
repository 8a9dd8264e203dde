"""Say on a terminal, while the program runs, how far the audit has come."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.events import BackwardFinished, SessionEnded, StepFinished
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.shared_line import open_shared_line
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gradcheck_suite.auditing.events import Detector, Event, Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.shared_line import SharedLine
    from gradcheck_suite.findings import Finding

__all__ = ["StatusLine", "status_line"]

_FIRST_SECONDS = 2.0
_EVERY_SECONDS = 0.5
_CALIBRATED = 200


def status_line(
    recorder: Recorder, findings: Callable[[], tuple[Finding, ...]]
) -> StatusLine | None:
    """Return a status line for an audit, or None where there is no terminal to draw it on."""
    line = open_shared_line()
    return None if line is None else StatusLine(line, recorder, findings)


class StatusLine:
    """Draws step, findings and overhead at most twice a second, from the program's own steps.

    No thread of ours does it: a program with one more thread forks in another way.
    """

    def __init__(
        self,
        line: SharedLine,
        recorder: Recorder,
        findings: Callable[[], tuple[Finding, ...]],
    ) -> None:
        self._line = line
        self._recorder = recorder
        self._findings = findings
        self._began = perf_counter()
        self._due = self._began + _FIRST_SECONDS
        self._measured = 0.0
        self._emit = recorder.emit
        self._per_save = seconds_per_save(recorder)
        # Clocked only where somebody looks on.
        recorder.emit = self._timed_emit  # type: ignore[method-assign]
        recorder.subscribe([self])

    def subscriptions(self) -> Subscriptions:
        """Draw after what a step consists of."""
        return {BackwardFinished: self._draw, StepFinished: self._draw, SessionEnded: self._pause}

    def findings(self) -> list[Finding]:
        """Return nothing: it only tells of what others find."""
        return []

    def close(self) -> None:
        """Take the line away and put everything back."""
        self._line.close()
        if "emit" in vars(self._recorder):
            del self._recorder.emit

    def text(self) -> str:
        """Return what the line says now.

        The overhead is what the audit has measured of its own work, against the rest of the time:
        the cost of what runs between two clocks, which is not all of it.
        """
        recorder = self._recorder
        saved = recorder.saved_tensors
        ours = self._measured + saved.checksum_seconds + saved.saved * self._per_save
        rest = max(perf_counter() - self._began - ours, 1e-9)
        parts = [
            f"step {recorder.step:,}" if recorder.step else f"backward {recorder.backwards:,}",
            _count(self._findings()),
            f"overhead about {100 * ours / rest:.0f} %",
        ]
        return f"gradcheck-suite audit: {', '.join(parts)}"

    def _draw(self, _event: object) -> None:
        if perf_counter() >= self._due:
            self._line.show(self.text())
            self._due = perf_counter() + _EVERY_SECONDS

    def _pause(self, _event: object) -> None:
        self._line.erase()

    def _timed_emit(self, event: Event, only: Collection[Detector] | None = None) -> None:
        began = perf_counter()
        self._emit(event, only)
        self._measured += perf_counter() - began


def seconds_per_save(recorder: Recorder) -> float:
    """Return what it costs, apart from checksums, to keep a saved tensor and to hand it back."""
    plain = AuditOptions(checksum_first_steps=0, checksum_every=0)
    scratch = type(recorder)(plain).saved_tensors
    pack: Callable[[Any], Any]
    pack, unpack = scratch.hooks
    tensor = torch.zeros(1)
    began = perf_counter()
    for _ in range(_CALIBRATED):
        unpack(pack(tensor))
    return (perf_counter() - began) / _CALIBRATED


def _count(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "no findings"
    counts = [
        (sum(finding.severity is severity for finding in findings), severity.value)
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    ]
    return ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts if n)
