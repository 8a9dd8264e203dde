"""The markers: what ``pytest --markers`` shows of each, and how it is read.

A marker of ours that asks for what can't be makes its test an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gradcheck_suite.options import nearest, settings_of, severity_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.severity import Severity

__all__ = [
    "MARKERS",
    "AuditMarker",
    "LeakMarker",
    "allowed_codes",
    "audit_marker",
    "check_marker",
    "fail_on",
    "leak_marker",
    "problem_with_markers",
]


class AuditMarker(NamedTuple):
    """The arguments of ``autograd_audit`` markers; ``fail_on`` is None where none gives it."""

    fail_on: Severity | None
    allow: frozenset[str]


class LeakMarker(NamedTuple):
    """How often ``no_graph_leak`` runs the body, and how many graphs may outlive it."""

    steps: int = 1
    limit: int = 0


def audit_marker(item: pytest.Item) -> AuditMarker | None:
    """Read the ``autograd_audit`` markers of a test: the closest ``fail_on``, and all allowed."""
    severity: Severity | None = None
    allow: set[str] = set()
    marked = False
    for marker, subject in _markers(
        item, "autograd_audit", ("fail_on", "allow"), "fail_on='warning'"
    ):
        marked = True
        if severity is None and "fail_on" in marker.kwargs:
            severity = severity_from(marker.kwargs["fail_on"], subject=f"fail_on of {subject}")
        allow |= allowed_codes(marker.kwargs.get("allow", ()), subject=f"allow of {subject}")
    return AuditMarker(severity, frozenset(allow)) if marked else None


def leak_marker(item: pytest.Item) -> LeakMarker | None:
    """Read the closest ``no_graph_leak`` marker of a test."""
    for marker, subject in _markers(item, "no_graph_leak", ("steps", "limit"), "steps=3"):
        for name, least in (("steps", 1), ("limit", 0)):
            value = marker.kwargs.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise pytest.UsageError(
                    f"{name} of {subject} must be a whole number of at least {least}; got {value!r}"
                )
        return LeakMarker(**marker.kwargs)
    return None


def check_marker(item: pytest.Item) -> dict[str, Any] | None:
    """Return the options that ``gradient_check`` markers give, the closest before the others."""
    if item.get_closest_marker("gradient_check") is None:
        return None
    from gradcheck_suite.examples import CHECK_OPTIONS  # noqa: PLC0415 - for those who mark

    options: dict[str, Any] = {}
    for marker, subject in _markers(item, "gradient_check", ("fail_on", *CHECK_OPTIONS), "order=2"):
        if "fail_on" in marker.kwargs:
            severity_from(marker.kwargs["fail_on"], subject=f"fail_on of {subject}")
        options = {**marker.kwargs, **options}
    return options


class _Marker(NamedTuple):
    usage: str
    read: Callable[[pytest.Item], object]


MARKERS = {
    "autograd_audit": _Marker(
        "(fail_on='error', allow=[]): audit the autograd use of the whole test, and fail it on "
        "findings at least this severe ('error', 'warning' or 'note'), save for those allowed by "
        "slug or code.",
        audit_marker,
    ),
    "no_graph_leak": _Marker(
        "(steps=1, limit=0): run the body of the test so many times, and fail it if more than "
        "limit autograd graphs outlive it.",
        leak_marker,
    ),
    "gradient_check": _Marker(
        "(fail_on='error', **options): options of check_gradients for the fixture gradient_check "
        "in this test.",
        check_marker,
    ),
}


def problem_with_markers(item: pytest.Item) -> str | None:
    """Say which argument of our markers on a test is unknown or makes no sense, if one is."""
    try:
        for marker in MARKERS.values():
            marker.read(item)
    except pytest.UsageError as error:
        return str(error)
    return None


def fail_on(item: pytest.Item) -> Severity:
    """Return how severe a finding in this test must be to fail it."""
    marker = audit_marker(item)
    if marker is not None and marker.fail_on is not None:
        return marker.fail_on
    return severity_from(settings_of(item.config).fail_on, subject="fail_on")


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
