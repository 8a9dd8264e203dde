"""What the markers on a test ask for; the test is an error where that makes no sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gradcheck_suite.severity import Severity
from pytest_gradcheck_suite.options import AUDIT, CHECK, LEAK
from pytest_gradcheck_suite.settings import nearest, settings_of, severity_from

__all__ = [
    "AUDIT",
    "CHECK",
    "LEAK",
    "AuditMark",
    "LeakMark",
    "allowed_codes",
    "audit_mark",
    "check_mark",
    "fail_on",
    "leak_mark",
    "what_is_wrong_with_the_marks_of",
]


@dataclass(frozen=True, slots=True)
class AuditMark:
    """What ``@pytest.mark.autograd_audit(...)`` asks for; ``fail_on`` is None if it doesn't say."""

    fail_on: Severity | None = None
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LeakMark:
    """How often ``no_graph_leak`` runs the body, and how many graphs may outlive it."""

    steps: int = 1
    limit: int = 0


def what_is_wrong_with_the_marks_of(item: pytest.Item) -> str | None:
    """Say which argument of our markers on a test is unknown or makes no sense, if one is."""
    try:
        for read in (audit_mark, leak_mark, check_mark):
            read(item)
    except pytest.UsageError as error:
        return str(error)
    return None


def fail_on(item: pytest.Item) -> Severity:
    """Return what a finding in this test must be to fail it."""
    mark = audit_mark(item)
    if mark is not None and mark.fail_on is not None:
        return mark.fail_on
    return settings_of(item.config).fail_on


def audit_mark(item: pytest.Item) -> AuditMark | None:
    """Read the ``autograd_audit`` markers of a test: the closest that says it, and all allowed."""
    severity: Severity | None = None
    allow: set[str] = set()
    marked = False
    for marker, subject in _markers(item, AUDIT, ("fail_on", "allow"), "fail_on='warning'"):
        marked = True
        if severity is None and "fail_on" in marker.kwargs:
            severity = severity_from(marker.kwargs["fail_on"], subject=f"fail_on of {subject}")
        allow |= allowed_codes(marker.kwargs.get("allow", ()), subject=f"allow of {subject}")
    return AuditMark(severity, frozenset(allow)) if marked else None


def leak_mark(item: pytest.Item) -> LeakMark | None:
    """Read the closest ``no_graph_leak`` marker of a test."""
    for marker, subject in _markers(item, LEAK, ("steps", "limit"), "steps=3"):
        for name, least in (("steps", 1), ("limit", 0)):
            value = marker.kwargs.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise pytest.UsageError(
                    f"{name} of {subject} must be a whole number of at least {least}; got {value!r}"
                )
        return LeakMark(**marker.kwargs)
    return None


def check_mark(item: pytest.Item) -> dict[str, Any] | None:
    """Return the options that ``gradient_check`` markers give, the closest before the others."""
    if item.get_closest_marker(CHECK) is None:
        return None
    from gradcheck_suite.examples import CHECK_OPTIONS  # noqa: PLC0415 - for those who mark

    options: dict[str, Any] = {}
    for marker, subject in _markers(item, CHECK, ("fail_on", *CHECK_OPTIONS), "order=2"):
        if "fail_on" in marker.kwargs:
            severity_from(marker.kwargs["fail_on"], subject=f"fail_on of {subject}")
        options = {**marker.kwargs, **options}
    return options


def allowed_codes(names: object, *, subject: str) -> frozenset[str]:
    """Turn slugs and codes into codes.

    Raises:
        pytest.UsageError: something is neither the slug nor the code of a mistake.
    """
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise pytest.UsageError(f"{subject} must be a list of slugs or codes; got {names!r}")
    if not names:
        return frozenset()
    from gradcheck_suite import catalogue  # noqa: PLC0415 - for those who allow

    codes = set()
    for name in names:
        entry = catalogue.find(name) if isinstance(name, str) else None
        if entry is None:
            near = catalogue.suggest(name) if isinstance(name, str) else ()
            advice = f"did you mean {near[0]!r}?" if near else "see: gradcheck-suite rules"
            raise pytest.UsageError(f"{subject} has no mistake {name!r}; {advice}")
        codes.add(entry.code)
    return frozenset(codes)


def _markers(
    item: pytest.Item, name: str, known: tuple[str, ...], example: str
) -> list[tuple[pytest.Mark, str]]:
    """Return the markers of this name, closest first, each with how to speak of it."""
    found = []
    for marker in item.iter_markers(name):
        subject = f"@pytest.mark.{name}"
        if marker.args:
            raise pytest.UsageError(
                f"{subject} takes keyword arguments only, as in {name}({example}); "
                f"got {', '.join(map(repr, marker.args))}"
            )
        for argument in marker.kwargs:
            if argument not in known:
                raise pytest.UsageError(
                    f"{subject} has no argument {argument!r}; {nearest(argument, known)}"
                )
        found.append((marker, subject))
    return found
