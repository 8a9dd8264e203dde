"""What the command line, the configuration file and markers may say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gradcheck_suite.severity import Severity

__all__ = [
    "AUDIT_MARKER",
    "AuditMark",
    "add_options",
    "audit_mark",
    "fail_on",
    "register",
    "severity_from",
]

AUDIT_MARKER = "autograd_audit"

_MARKER_HELP = (
    "autograd_audit(fail_on='error'): audit the autograd use of the whole test, and fail it on "
    "findings at least this severe ('error', 'warning' or 'note')."
)
_FLAG = "--gradcheck-suite-fail-on"
_INI = "gradcheck_suite_fail_on"
_SEVERITIES = tuple(severity.value for severity in Severity)
_FAIL_ON = pytest.StashKey[Severity]()


@dataclass(frozen=True, slots=True)
class AuditMark:
    """What ``@pytest.mark.autograd_audit(...)`` on a test asks for; None where it doesn't say."""

    fail_on: Severity | None = None


def add_options(parser: pytest.Parser) -> None:
    """Add the flags and their twins for the configuration file."""
    group = parser.getgroup("gradcheck-suite", "mistakes in autograd use")
    group.addoption(
        _FLAG,
        choices=_SEVERITIES,
        dest=_INI,
        help="fail a test on findings that are at least this severe (default: error)",
    )
    parser.addini(
        _INI,
        f"fail a test on findings that are at least this severe: {', '.join(_SEVERITIES)}",
        default=Severity.ERROR.value,
    )


def register(config: pytest.Config) -> None:
    """Register the markers, and settle what the command line and the configuration file say.

    Raises:
        pytest.UsageError: the configuration file has an unknown severity.
    """
    config.addinivalue_line("markers", _MARKER_HELP)
    from_flag: str | None = config.getoption(_INI)
    config.stash[_FAIL_ON] = (
        Severity(from_flag)
        if from_flag is not None
        else severity_from(config.getini(_INI), subject=f"{_INI} in the configuration file")
    )


def severity_from(value: object, *, subject: str) -> Severity:
    """Turn ``value`` into a severity.

    Raises:
        pytest.UsageError: it is not the name of one.
    """
    if isinstance(value, Severity):
        return value
    if not isinstance(value, str) or value not in _SEVERITIES:
        expected = ", ".join(map(repr, _SEVERITIES))
        raise pytest.UsageError(f"{subject} must be one of {expected}; got {value!r}")
    return Severity(value)


def fail_on(item: pytest.Item) -> Severity:
    """Return what an audit in this test fails on: marker before flag before configuration."""
    mark = audit_mark(item)
    if mark is not None and mark.fail_on is not None:
        return mark.fail_on
    return item.config.stash[_FAIL_ON]


def audit_mark(item: pytest.Item) -> AuditMark | None:
    """Read the closest ``autograd_audit`` marker of a test.

    Raises:
        pytest.UsageError: its arguments are not those of the marker.
    """
    marker = item.get_closest_marker(AUDIT_MARKER)
    if marker is None:
        return None
    subject = f"{item.nodeid}: @pytest.mark.{AUDIT_MARKER}"
    if marker.args:
        raise pytest.UsageError(
            f"{subject} takes keyword arguments only, as in {AUDIT_MARKER}(fail_on='warning'); "
            f"got {', '.join(map(repr, marker.args))}"
        )
    unknown = sorted(marker.kwargs.keys() - {"fail_on"})
    if unknown:
        raise pytest.UsageError(
            f"{subject} has no argument {', '.join(map(repr, unknown))}; it knows 'fail_on'"
        )
    if "fail_on" not in marker.kwargs:
        return AuditMark()
    return AuditMark(severity_from(marker.kwargs["fail_on"], subject=f"fail_on of {subject}"))
