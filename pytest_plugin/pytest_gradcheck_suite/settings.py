"""What the command line, pytest's configuration and pyproject.toml may say.

One table describes each setting once: its flag, its twin in pytest's configuration, and its key
under ``[tool.gradcheck-suite.pytest]``. The first of these that says something decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gradcheck_suite.severity import Severity

__all__ = [
    "AUDIT",
    "CHECK",
    "LEAK",
    "MARKERS",
    "MARKER_NAMES",
    "REPORT_FORMATS",
    "Settings",
    "add_options",
    "nearest",
    "read_settings",
    "settings_of",
    "severity_from",
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

SEVERITIES = tuple(severity.value for severity in Severity)
_OFF = "off"
REPORT_FORMATS = {".json": "json", ".sarif": "sarif", ".html": "html", ".xml": "junit"}
_UPDATE = "--gradcheck-suite-update-snapshots"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run.

    Attributes:
        fail_on: the mildest severity that fails a test.
        audit: the mildest severity that fails a test in whole-suite mode, or None where that is
            off.
        modules: packages whose examples become tests.
        seed: every random draw of ours follows from it and the test's id.
        report: the file that all findings are written to, or None.
        summary: whether findings that failed no test are told at the end.
        update_snapshots: whether snapshots of gradients are written anew.
    """

    fail_on: Severity = Severity.ERROR
    audit: Severity | None = None
    modules: tuple[str, ...] = ()
    seed: int = 0
    report: Path | None = None
    summary: bool = True
    update_snapshots: bool = False


_KEY = pytest.StashKey[Settings]()


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting: how it is asked for, and how what was said becomes a value."""

    name: str
    help: str
    read: Callable[[object, str, Path], Any]
    flag: dict[str, Any]
    ini: str = "string"

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")

    @property
    def ini_name(self) -> str:
        return f"gradcheck_suite_{self.attribute}"


def severity_from(value: object, *, subject: str) -> Severity:
    """Turn ``value`` into a severity.

    Raises:
        pytest.UsageError: it is not the name of one.
    """
    if isinstance(value, Severity):
        return value
    if not isinstance(value, str) or value not in SEVERITIES:
        expected = ", ".join(map(repr, SEVERITIES))
        raise pytest.UsageError(f"{subject} must be one of {expected}; got {value!r}")
    return Severity(value)


def _severity(value: object, subject: str, _folder: Path) -> Severity:
    return severity_from(value, subject=subject)


def _audit(value: object, subject: str, _folder: Path) -> Severity | None:
    if value in (_OFF, False):
        return None
    if value is True:
        return Severity.ERROR
    if value not in SEVERITIES:
        expected = ", ".join(map(repr, (*SEVERITIES, _OFF)))
        raise pytest.UsageError(
            f"{subject} must be one of {expected}; got {value!r}. A path that follows the flag "
            "needs the severity in between: --gradcheck-suite-audit=error tests/"
        )
    return severity_from(value, subject=subject)


def _packages(value: object, subject: str, _folder: Path) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, (list, tuple)):
        parts = [
            part.strip() if isinstance(part, str) else part
            for name in names
            for part in (name.split(",") if isinstance(name, str) else [name])
        ]
        if all(isinstance(p, str) and all(s.isidentifier() for s in p.split(".")) for p in parts):
            return tuple(dict.fromkeys(parts))
    raise pytest.UsageError(f"{subject} must name packages, such as 'mypackage'; got {value!r}")


def _seed(value: object, subject: str, _folder: Path) -> int:
    text = str(value)
    if not isinstance(value, bool) and text.isascii() and text.isdecimal() and int(text) < 2**32:
        return int(text)
    raise pytest.UsageError(f"{subject} must be an integer from 0 to 2**32 - 1; got {value!r}")


def _report(value: object, subject: str, folder: Path) -> Path:
    path = folder / os.path.expandvars(str(value))
    if path.suffix.lower() not in REPORT_FORMATS:
        raise pytest.UsageError(
            f"{subject} must end in one of {', '.join(REPORT_FORMATS)}, which says what is "
            f"written; got {str(value)!r}"
        )
    if not path.parent.is_dir():
        raise pytest.UsageError(
            f"{subject} is {str(value)!r}, but there is no folder {str(path.parent)!r}; create it "
            "first"
        )
    if path.is_dir():
        raise pytest.UsageError(f"{subject} is {str(value)!r}, which is a folder; name a file")
    return path


def _switch(value: object, subject: str, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise pytest.UsageError(f"{subject} must be true or false; got {value!r}")
    return value


_SETTINGS = (
    _Setting(
        "fail-on",
        f"fail a test on findings that are at least this severe: {', '.join(SEVERITIES)}",
        _severity,
        {"choices": SEVERITIES},
    ),
    _Setting(
        "audit",
        "audit every test, and fail it on findings that are at least this severe (error if no "
        "severity is given)",
        _audit,
        {"nargs": "?", "const": "error", "metavar": "SEVERITY"},
    ),
    _Setting(
        "modules",
        "make a test of every example of a module or autograd.Function in these packages",
        _packages,
        {"action": "append", "metavar": "PACKAGE"},
        "linelist",
    ),
    _Setting(
        "seed",
        "the seed of every random draw of gradcheck-suite, together with the test's id (default 0)",
        _seed,
        {"metavar": "N"},
    ),
    _Setting(
        "report",
        f"write all findings to this file: {', '.join(REPORT_FORMATS)}",
        _report,
        {"metavar": "FILE"},
    ),
    _Setting(
        "summary",
        "tell at the end of findings that failed no test (on unless told otherwise)",
        _switch,
        {"action": "store_false", "default": None},
        "bool",
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Add the flags and their twins for pytest's configuration."""
    group = parser.getgroup("gradcheck-suite", "mistakes in autograd use")
    for setting in _SETTINGS:
        switches_off = setting.flag.get("action") == "store_false"
        flag = f"--gradcheck-suite-{'no-' if switches_off else ''}{setting.name}"
        explained = f"do not {setting.help}" if switches_off else setting.help
        group.addoption(flag, dest=setting.ini_name, help=explained, **setting.flag)
        parser.addini(setting.ini_name, setting.help, type=setting.ini, default=None)  # type: ignore[arg-type]  # a str here
    group.addoption(
        _UPDATE,
        action="store_true",
        dest="gradcheck_suite_update_snapshots",
        help="write the snapshots of gradient_check.snapshot(...) anew instead of comparing",
    )


def read_settings(config: pytest.Config) -> Settings:
    """Settle what was asked for, and keep it for ``settings_of``.

    Raises:
        pytest.UsageError: something says what can't be, or pyproject.toml has an unknown key.
    """
    table = _pyproject_table(config.rootpath)
    values: dict[str, Any] = {}
    for setting in _SETTINGS:
        flag = f"--gradcheck-suite-{setting.name}"
        said = (
            (config.getoption(setting.ini_name), flag, config.invocation_params.dir),
            (
                config.getini(setting.ini_name),
                f"{setting.ini_name} in the configuration file",
                config.rootpath,
            ),
            (
                table.get(setting.name),
                f"{setting.name} under [tool.gradcheck-suite.pytest]",
                config.rootpath,
            ),
        )
        for value, subject, folder in said:
            if value is not None and value not in ("", []):
                values[setting.attribute] = setting.read(value, subject, folder)
                break
    values["update_snapshots"] = bool(config.getoption("gradcheck_suite_update_snapshots"))
    settings = config.stash[_KEY] = Settings(**values)
    return settings


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings of this run."""
    return config.stash[_KEY]


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say which of the known names was probably meant, or list them."""
    import difflib  # noqa: PLC0415 - for mistakes only

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(map(repr, known))}"


def _pyproject_table(root: Path) -> dict[str, Any]:
    file = root / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    if "gradcheck-suite" not in text:  # spares most projects the parser
        return {}
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise pytest.UsageError(f"{file} is not TOML: {error}") from None
    table: dict[str, Any] = document
    for part in ("tool", "gradcheck-suite", "pytest"):
        table = table.get(part, {})
        if not isinstance(table, dict):
            raise pytest.UsageError(f"{part} in {file} must be a table; got {table!r}")
    known = tuple(setting.name for setting in _SETTINGS)
    for key in table:
        if key not in known:
            raise pytest.UsageError(
                f"[tool.gradcheck-suite.pytest] in {file} has no setting {key!r}; "
                f"{nearest(key, known)}"
            )
    return table
