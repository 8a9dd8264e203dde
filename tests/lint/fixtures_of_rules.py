"""Read the fixtures of the rules: programs with a mistake, and correct ones that look like it.

``fixtures/<slug>/invalid/*.py`` say on a line what is found there: ``# GCS301`` is an error,
``# GCS301 warning`` a warning, ``# GCS902, GCS902`` two errors. What all fixes make of
``name.py`` is ``name.fixed.py``, and what ``--fix`` alone makes of it, where that differs,
``name.safely-fixed.py``. ``fixtures/<slug>/valid/*.py`` are named by why they are correct.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gradcheck_suite.severity import Severity

FOLDER: Final = Path(__file__).with_name("fixtures")
_EXPECTED: Final = re.compile(r"  # (GCS\d{3}(?: \w+)?(?:, GCS\d{3}(?: \w+)?)*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding that a fixture must have."""

    code: str
    line: int
    severity: Severity


@dataclass(frozen=True, slots=True)
class Fixture:
    """A program without the comments that say what is found in it."""

    name: str
    source: str
    expected: tuple[Expected, ...] = ()
    fixed: str | None = None
    safely_fixed: str | None = None

    @property
    def has_fix(self) -> bool:
        """Return whether a fix changes it."""
        return self.fixed is not None or self.safely_fixed is not None


@dataclass(frozen=True, slots=True)
class Fixtures:
    """All fixtures of one rule."""

    invalid: tuple[Fixture, ...]
    valid: tuple[Fixture, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Return all programs, with and without the mistake."""
        return tuple(fixture.source for fixture in (*self.invalid, *self.valid))


@cache
def fixtures_of(slug: str) -> Fixtures:
    """Return the fixtures of the rule with this slug."""
    return Fixtures(
        invalid=tuple(map(_read, _programs(FOLDER / slug / "invalid"))),
        valid=tuple(map(_read, _programs(FOLDER / slug / "valid"))),
    )


def fixture_of(name: str, text: str) -> Fixture:
    """Return the program of a text that says what is found in it."""
    return Fixture(name, _EXPECTED.sub("", text), tuple(_expected(text)))


def _programs(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if "." not in path.stem]


def _read(path: Path) -> Fixture:
    fixture = fixture_of(path.stem, path.read_text("utf-8"))
    fixed, safely_fixed = (
        beside.read_text("utf-8") if beside.exists() else None
        for beside in (path.with_suffix(".fixed.py"), path.with_suffix(".safely-fixed.py"))
    )
    return Fixture(fixture.name, fixture.source, fixture.expected, fixed, safely_fixed)


def _expected(text: str) -> list[Expected]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = _EXPECTED.search(line)
        for item in comment[1].split(", ") if comment else ():
            code, _, severity = item.partition(" ")
            found.append(Expected(code, number, Severity(severity or "error")))
    return found
