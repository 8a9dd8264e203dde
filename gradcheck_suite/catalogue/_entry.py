"""The shape of a catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_suite.severity import Severity


@dataclass(frozen=True, slots=True)
class Entry:
    """One mistake: its name, how bad it can be, and the texts that explain it.

    ``severity`` is the highest that a finding of this entry may have; a detector with less proof
    reports less. ``in_source`` says that the mistake can be found in source text, ``at_run_time``
    that it can be found in a running program. ``title`` is one line without a full stop, which
    names the mistake. ``what``, ``why`` and ``detection`` are Markdown paragraphs; ``example`` and
    ``instead`` are Python source.
    """

    code: str
    slug: str
    severity: Severity
    in_source: bool
    at_run_time: bool
    title: str
    what: str
    why: str
    example: str
    instead: str
    detection: str
    fixable: bool = False
