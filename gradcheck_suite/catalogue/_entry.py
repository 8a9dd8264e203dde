"""The shape of a catalogue entry and of a family of entries."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_suite.severity import Severity

_PROSE = ("what", "why", "detection")


@dataclass(frozen=True, slots=True)
class Entry:
    """One mistake: its name, how bad it can be, and the texts that explain it.

        ``severity`` is the highest that a finding of this entry may have; a detector with less
    proof     reports less. ``in_source`` says that the mistake can be found in source text,
    ``at_run_time``     that it can be found in a running program; an entry with neither is
    ``planned``. ``title`` is     one line without a full stop, which names the mistake. ``what``,
    ``why`` and ``detection`` are Markdown paragraphs with an empty     line between them; line
    breaks inside a paragraph are dropped. ``example`` and ``instead`` are     Python source; where
    the mistake can be found in source, comments with the code mark its lines     in ``example``.
    ``fixable`` says that a correction can be written by machine.
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

    def __post_init__(self) -> None:
        for name in _PROSE:
            object.__setattr__(self, name, _unwrapped(getattr(self, name)))

    @property
    def planned(self) -> bool:
        """Whether nothing finds the mistake yet."""
        return not (self.in_source or self.at_run_time)


@dataclass(frozen=True, slots=True)
class Family:
    """Entries that belong together, and whose codes begin alike.

    ``prefix`` is what those codes begin with ("GCS3"), ``name`` is one word for options.
    """

    name: str
    prefix: str
    title: str


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).strip()
