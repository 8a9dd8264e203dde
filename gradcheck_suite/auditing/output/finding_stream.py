"""Write findings to a file the moment they are known, so that a process that is killed loses none.

One JSON object a line, each written by one call of the system's, with nothing held back in a
buffer; ``reporting/schemas/stream-1.schema.json`` describes them.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcheck_suite._version import __version__
from gradcheck_suite.auditing.events import (
    BackwardFinished,
    SavedTensorCorrupted,
    SavedTensorModified,
    SessionEnded,
    StepFinished,
    StepMarked,
    WriteRefused,
)
from gradcheck_suite.findings import Finding, Report
from gradcheck_suite.reporting.json import plain, to_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["STREAM_SCHEMA_VERSION", "FindingStream", "LineFile", "subject_of"]

STREAM_SCHEMA_VERSION = 1
"""The number of ``reporting/schemas/stream-1.schema.json``, of which each line is an instance; it
grows where a reader of the lines has to change."""

# Whatever makes a mistake certain is one of these, or happens between two of them.
_MOMENTS = (
    BackwardFinished,
    StepFinished,
    StepMarked,
    WriteRefused,
    SavedTensorModified,
    SavedTensorCorrupted,
    SessionEnded,
)


class LineFile:
    """A file that lines are appended to; what can't be written waits and is tried again.

    Attributes:
        path: the file.
        waiting: how many lines are not written, or not whole.
        trouble: why the last attempt failed, or None.
    """

    def __init__(self, path: str, *, on_trouble: Callable[[str], object]) -> None:
        self.path = path
        self.trouble: str | None = None
        # The program may change its working directory.
        self._where = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
        self._on_trouble = on_trouble
        self._told = False
        self._unsent: list[bytes] = []
        self._file: int | None = None
        self._skip = self._pause = 0

    @property
    def waiting(self) -> int:
        """Return how many lines are not written, or not whole."""
        return len(self._unsent)

    def add(self, document: dict[str, Any]) -> None:
        """Have one line written, after those that wait, by the next ``send``."""
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        self._unsent.append(text.encode("ascii") + b"\n")

    def send(self, *, at_once: bool = False) -> None:
        """Write what waits; after each failure, pass by twice as many calls, save ``at_once``."""
        if not self._unsent:
            return
        if self._skip and not at_once:
            self._skip -= 1
            return
        try:
            if self._file is None:
                # Appended to: a run that is begun again keeps what is known of the one before.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._file = os.open(self._where, flags | getattr(os, "O_BINARY", 0), 0o666)
            while self._unsent:
                line = self._unsent[0]
                written = os.write(self._file, line)
                # A disk that is nearly full takes a part; the rest follows before anything else.
                if written == len(line):
                    self._unsent.pop(0)
                else:
                    self._unsent[0] = line[written:]
        except OSError as error:
            self._fail(error)
        else:
            self.trouble = None
            self._skip = self._pause = 0

    def _fail(self, error: OSError) -> None:
        self.trouble = error.strerror or str(error)
        self._pause = max(1, 2 * self._pause)
        self._skip = self._pause
        if not self._told:
            self._told = True
            self._on_trouble(f"cannot write the stream {self.path}: {self.trouble}")

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


@dataclass(slots=True)
class _Told:
    number: int
    finding: Finding
    step: int


class FindingStream:
    """Asks for the findings whenever there may be new ones, and writes those that are.

    It stands after the detectors in the order of subscription, so that they have heard already
    what it is told. In a forked child, which has the same file, it writes nothing.
    """

    def __init__(
        self,
        path: str,
        recorder: Recorder,
        *,
        findings: Callable[[], tuple[Finding, ...]],
        report: Callable[[], Report],
    ) -> None:
        self._recorder = recorder
        self._findings = findings
        self._report = report
        self._process = os.getpid()
        self._lines = LineFile(path, on_trouble=_warn)
        self._told: dict[tuple[object, ...], _Told] = {}
        self._numbers = 0
        self._begun = False
        self._ended_at: tuple[int, int] | None = None

    @property
    def trouble(self) -> str | None:
        """Return what to say of lines that could not be written, or None."""
        waiting = self._lines.waiting
        if not waiting or self._lines.trouble is None:
            return None
        lines = "1 line" if waiting == 1 else f"{waiting:,} lines"
        return f"the stream {self._lines.path}: {lines} not written ({self._lines.trouble})"

    def subscriptions(self) -> Subscriptions:
        """Look after everything that may make a mistake certain."""
        handlers: dict[type[Any], Callable[[Any], None]] = dict.fromkeys(_MOMENTS, self._look)
        return handlers | {SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return nothing: it only passes on what others find."""
        return []

    def begin(self) -> None:
        """Write the first line, once."""
        if self._begun:
            return
        self._begun = True
        self._add(
            "start",
            schema=STREAM_SCHEMA_VERSION,
            tool=self._report().tool,
            version=__version__,
        )
        self._lines.send(at_once=True)

    def _look(self, _event: object) -> None:
        if os.getpid() == self._process:
            self._tell(last=False)
            self._lines.send()

    def _tell(self, *, last: bool) -> None:
        known: dict[tuple[object, ...], int] = {}
        for finding in self._findings():
            subject = subject_of(finding)
            known[subject] = known.get(subject, 0) + 1
            self._consider((*subject, known[subject]), finding, last=last)
        if sum(known.values()) < len(self._told):
            for key in [key for key in self._told if key[-1] > known.get(key[:-1], 0)]:  # type: ignore[operator]  # the last is a count
                self._add("withdrawn", id=self._told.pop(key).number)

    def _consider(self, key: tuple[object, ...], finding: Finding, *, last: bool) -> None:
        step = self._recorder.state.step
        told = self._told.get(key)
        if told is None:
            self._numbers += 1
            told = self._told[key] = _Told(self._numbers, finding, step)
        elif told.finding == finding:
            return
        elif not (last or told.finding.severity is not finding.severity or step > 2 * told.step):
            # Counts grow with every step; a line for each would fill the disk.
            return
        told.finding, told.step = finding, step
        document = to_document(Report(tool="", findings=(finding,)))["findings"][0]
        self._add("finding", id=told.number, finding=document)

    def _end(self, _event: SessionEnded) -> None:
        if os.getpid() != self._process:
            return
        before = self._numbers if self._ended_at is None else self._ended_at[0]
        self._tell(last=True)
        step = self._recorder.state.step
        # A session that is entered for each step would end as often.
        if self._ended_at is None or self._numbers > before or step > 2 * self._ended_at[1]:
            self._ended_at = self._numbers, step
            document = to_document(self._report())
            self._add("end", not_covered=document["not_covered"], summary=document["summary"])
        self._lines.send(at_once=True)
        self._lines.close()

    def _ranks(self) -> dict[str, int]:
        job = self._recorder.job
        return {"rank": job.rank, "world_size": job.size} if job.look() else {}

    def _add(self, kind: str, **fields: Any) -> None:
        now = datetime.datetime.now(datetime.timezone.utc)
        self._lines.add(
            {
                "type": kind,
                "process": self._process,
                **self._ranks(),
                "time": now.isoformat(timespec="milliseconds"),
                "step": self._recorder.state.step,
                **fields,
            }
        )


def subject_of(finding: Finding) -> tuple[object, ...]:
    """Return what stays the same of a finding while its counts grow."""
    place = finding.location
    where = None if place is None else (place.path, place.line, place.function)
    parameters = finding.evidence.get("parameters")
    names = plain(parameters) if isinstance(parameters, (list, tuple)) else ()
    return finding.code, where, *map(str, names)


def _warn(trouble: str) -> None:
    """Tell of it once, without a warning that the user's filters could turn into an error."""
    stream = sys.stderr
    with suppress(OSError, ValueError, AttributeError):
        stream.write(
            f"gradcheck-suite: warning: {trouble}; the program runs on, and the report at its end "
            "has every finding\n"
        )
        stream.flush()
