"""The flags, their twins in pytest's configuration, and the markers: all that pytest's start needs.

Everything here runs at the start of every pytest in an environment that has this plugin, so it is
made of plain tuples, and what was said is read elsewhere (``settings``) if anything was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AUDIT",
    "CHECK",
    "IN_USE",
    "LEAK",
    "MARKERS",
    "MARKER_NAMES",
    "OPTIONS",
    "REPORT_SUFFIXES",
    "SEVERITIES",
    "UPDATE",
    "add_options",
    "ini_name",
    "ini_value",
    "pyproject_text",
    "says_anything",
]

AUDIT = "autograd_audit"
LEAK = "no_graph_leak"
CHECK = "gradient_check"

MARKERS = (
    (
        f"{AUDIT}(fail_on='error', allow=[]): audit the autograd use of the whole test, and fail "
        "it on findings at least this severe ('error', 'warning' or 'note'), save for those "
        "allowed by slug or code."
    ),
    (
        f"{LEAK}(steps=1, limit=0): run the body of the test so many times, and fail it if more "
        "than limit autograd graphs outlive it."
    ),
    (
        f"{CHECK}(fail_on='error', **options): options of check_gradients for the fixture "
        "gradient_check in this test."
    ),
)
MARKER_NAMES = (AUDIT, LEAK, CHECK)

SEVERITIES = ("error", "warning", "note")
REPORT_SUFFIXES = (".json", ".sarif", ".html", ".xml")
UPDATE = "gradcheck_suite_update_snapshots"
IN_USE = pytest.StashKey[bool]()
"""Kept by the configuration: whether any test of the run has a use for this plugin."""

_NOTHING: tuple[object, ...] = (None, "", [])

OPTIONS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "fail-on",
        f"fail a test on findings that are at least this severe: {', '.join(SEVERITIES)}",
        "string",
        {"choices": SEVERITIES},
    ),
    (
        "audit",
        (
            "audit every test, and fail it on findings that are at least this severe (error if no "
            "severity is given)"
        ),
        "string",
        {"nargs": "?", "const": "error", "metavar": "SEVERITY"},
    ),
    (
        "modules",
        "make a test of every example of a module or autograd.Function in these packages",
        "linelist",
        {"action": "append", "metavar": "PACKAGE"},
    ),
    (
        "seed",
        "the seed of every random draw of gradcheck-suite, together with the test's id (default 0)",
        "string",
        {"metavar": "N"},
    ),
    (
        "report",
        f"write all findings to this file: {', '.join(REPORT_SUFFIXES)}",
        "string",
        {"metavar": "FILE"},
    ),
    (
        "summary",
        "tell at the end of findings that failed no test (on unless told otherwise)",
        "bool",
        {"action": "store_false", "default": None},
    ),
)
"""Each setting's name, help, type in pytest's configuration, and arguments of its flag."""


def ini_name(name: str) -> str:
    """Return how pytest's configuration calls a setting."""
    return f"gradcheck_suite_{name.replace('-', '_')}"


def ini_value(config: pytest.Config, name: str) -> Any:
    """Return what pytest's configuration says of a setting.

    Raises:
        pytest.UsageError: it says what no setting of this type can be.
    """
    try:
        return config.getini(ini_name(name))
    except (TypeError, ValueError, pytest.UsageError) as error:  # which do not say of what
        raise pytest.UsageError(f"{ini_name(name)} in the configuration file: {error}") from None


def add_options(parser: pytest.Parser) -> None:
    """Add the flags and their twins for pytest's configuration."""
    group = parser.getgroup("gradcheck-suite", "mistakes in autograd use")
    for name, explained, kind, flag in OPTIONS:
        switches_off = flag.get("action") == "store_false"
        group.addoption(
            f"--gradcheck-suite-{'no-' if switches_off else ''}{name}",
            dest=ini_name(name),
            help=f"do not {explained}" if switches_off else explained,
            **flag,
        )
        parser.addini(ini_name(name), explained, type=kind, default=None)  # type: ignore[arg-type]  # a str here
    group.addoption(
        "--gradcheck-suite-update-snapshots",
        action="store_true",
        dest=UPDATE,
        help="write the snapshots of gradient_check.snapshot(...) anew instead of comparing",
    )


def says_anything(config: pytest.Config) -> bool:
    """Return whether the command line or a configuration file may say something about us."""
    return (
        any(
            config.getoption(ini_name(name)) is not None or ini_value(config, name) not in _NOTHING
            for name, *_ in OPTIONS
        )
        or bool(config.getoption(UPDATE))
        or "gradcheck-suite" in pyproject_text(config.rootpath)
    )


def pyproject_text(root: Path) -> str:
    """Return the text of ``pyproject.toml``, or an empty one where there is none."""
    try:
        return (root / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
