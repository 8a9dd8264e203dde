"""The settings: flags, options of pytest's configuration, and keys of pyproject.toml.

A setting may be given by its flag, by its option in pytest's configuration, and by its key under
``[tool.gradcheck-suite.pytest]``. The first of these that gives a value decides.

All of this is loaded at the start of every pytest in an environment that has this plugin. That is
why ``Settings`` is no dataclass, which takes ten times as long to define, and names severities by
their words: the module of ``Severity`` loads when one is used.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gradcheck_suite.severity import Severity

__all__ = [
    "ACTIVE",
    "OPTIONS",
    "REPORT_FORMATS",
    "SEVERITIES",
    "Settings",
    "add_options",
    "nearest",
    "read_settings",
    "seed_for",
    "settings_of",
    "severity_from",
]

ACTIVE = pytest.StashKey[bool]()
"""Kept by the configuration: whether any test of the run uses this plugin."""

SEVERITIES = ("error", "warning", "note")
REPORT_FORMATS = {
    ".json": "json",
    ".sarif": "sarif",
    ".html": "html",
    ".xml": "junit",
    ".md": "markdown",
}
_UPDATE_SNAPSHOTS = "gradcheck_suite_update_snapshots"
_OFF = "off"


class Settings(NamedTuple):
    """The settings of one run.

    Attributes:
        fail_on: the mildest severity that fails a test.
        audit: the mildest severity that fails a test in whole-suite mode, or None where that is
            off.
        modules: packages whose examples become tests.
        seed: every random draw of ours follows from it and the test's id.
        report: the file that all findings are written to, or None.
        summary: whether findings that failed no test are listed at the end.
        update_snapshots: whether snapshots of gradients are written anew.
        given_by: where each setting was given that was, for messages.
    """

    fail_on: str = "error"
    audit: str | None = None
    modules: tuple[str, ...] = ()
    seed: int = 0
    report: Path | None = None
    summary: bool = True
    update_snapshots: bool = False
    given_by: Mapping[str, str] = {}

    def subject(self, name: str) -> str:
        """Return how to speak of a setting to the user who gave it."""
        return self.given_by.get(name, f"--gradcheck-suite-{name}")


_SETTINGS = pytest.StashKey[Settings]()


def read_settings(config: pytest.Config) -> Settings:
    """Read the settings of a run, and keep them for ``settings_of``.

    Raises:
        pytest.UsageError: something gives an impossible value, or pyproject.toml has an unknown
            key.
    """
    table = _pyproject_table(config.rootpath)
    values: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    for name, option in OPTIONS.items():
        ini = _ini_name(name)
        sources = (
            (config.getoption(ini), f"--gradcheck-suite-{name}", config.invocation_params.dir),
            (_ini_value(config, ini), f"{ini} in the configuration file", config.rootpath),
            (table.get(name), f"{name} under [tool.gradcheck-suite.pytest]", config.rootpath),
        )
        for value, subject, folder in sources:
            if value is not None and value not in ("", []):
                values[name.replace("-", "_")] = option.read(value, subject, folder)
                given_by[name] = subject
                break
    values["update_snapshots"] = bool(config.getoption(_UPDATE_SNAPSHOTS))
    settings = config.stash[_SETTINGS] = Settings(**values, given_by=given_by)
    return settings


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings of this run."""
    return config.stash.setdefault(_SETTINGS, Settings())


def seed_for(item: pytest.Item) -> int:
    """Return the seed of a test: the same for the same ``--gradcheck-suite-seed`` and test id."""
    import hashlib  # noqa: PLC0415 - for tests that draw

    text = f"{settings_of(item.config).seed}:{item.nodeid}".encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def severity_from(value: object, *, subject: str) -> Severity:
    """Turn ``value`` into a severity.

    Raises:
        pytest.UsageError: it is not the name of one.
    """
    from gradcheck_suite.severity import Severity  # noqa: PLC0415 - not for pytest's start

    return value if isinstance(value, Severity) else Severity(_severity(value, subject))


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say which of the known names was probably meant, or list them."""
    import difflib  # noqa: PLC0415 - for mistakes only

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(map(repr, known))}"


def _severity(value: object, subject: str, _folder: Path | None = None) -> str:
    if not isinstance(value, str) or value not in SEVERITIES:
        expected = ", ".join(map(repr, SEVERITIES))
        raise pytest.UsageError(f"{subject} must be one of {expected}; got {value!r}")
    return value


def _audit(value: object, subject: str, _folder: Path) -> str | None:
    if value in (_OFF, False):
        return None
    if value is True:
        return "error"
    if value not in SEVERITIES:
        expected = ", ".join(map(repr, (*SEVERITIES, _OFF)))
        path = (
            ". A path that follows the flag needs the severity in between: "
            "--gradcheck-suite-audit=error tests/"
        )
        raise pytest.UsageError(
            f"{subject} must be one of {expected}; got {value!r}"
            + (path if subject.startswith("--") else "")
        )
    return str(value)


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
    # Missing folders are made when the report is written, as for --junitxml.
    nearest_there = next((folder for folder in path.parents if folder.exists()), path.parent)
    if not nearest_there.is_dir():
        raise pytest.UsageError(
            f"{subject} is {str(value)!r}, but {str(nearest_there)!r} is not a folder"
        )
    if path.is_dir():
        raise pytest.UsageError(f"{subject} is {str(value)!r}, which is a folder; name a file")
    return path


def _switch(value: object, subject: str, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise pytest.UsageError(f"{subject} must be true or false; got {value!r}")
    return value


class _Option(NamedTuple):
    """How a setting is explained, read, typed in pytest's configuration, and given as a flag."""

    help: str
    read: Callable[[object, str, Path], Any]
    ini_type: str
    flag: dict[str, Any]


OPTIONS = {
    "fail-on": _Option(
        f"fail a test on findings that are at least this severe: {', '.join(SEVERITIES)}",
        _severity,
        "string",
        {"choices": SEVERITIES},
    ),
    "audit": _Option(
        "audit every test, and fail it on findings that are at least this severe (error if no "
        "severity is given)",
        _audit,
        "string",
        {"nargs": "?", "const": "error", "metavar": "SEVERITY"},
    ),
    "modules": _Option(
        "make a test of every example of a module or autograd.Function in these packages",
        _packages,
        "linelist",
        {"action": "append", "metavar": "PACKAGE"},
    ),
    "seed": _Option(
        "the seed of every random draw of gradcheck-suite, together with the test's id (default 0)",
        _seed,
        "string",
        {"metavar": "N"},
    ),
    "report": _Option(
        f"write all findings to this file: {', '.join(REPORT_FORMATS)}",
        _report,
        "string",
        {"metavar": "FILE"},
    ),
    "summary": _Option(
        "tell at the end of findings that failed no test (on unless told otherwise)",
        _switch,
        "bool",
        {"action": "store_false", "default": None},
    ),
}


def add_options(parser: pytest.Parser) -> None:
    """Add the flags and the options of pytest's configuration."""
    group = parser.getgroup("gradcheck-suite", "mistakes in autograd use")
    for name, option in OPTIONS.items():
        switches_off = option.flag.get("action") == "store_false"
        group.addoption(
            f"--gradcheck-suite-{'no-' if switches_off else ''}{name}",
            dest=_ini_name(name),
            help=f"do not {option.help}" if switches_off else option.help,
            **option.flag,
        )
        parser.addini(_ini_name(name), option.help, type=option.ini_type, default=None)  # type: ignore[arg-type]  # a str here
    group.addoption(
        "--gradcheck-suite-update-snapshots",
        action="store_true",
        dest=_UPDATE_SNAPSHOTS,
        help="write the snapshots of gradient_check.snapshot(...) anew instead of comparing",
    )


def _ini_name(name: str) -> str:
    return f"gradcheck_suite_{name.replace('-', '_')}"


def _ini_value(config: pytest.Config, ini: str) -> Any:
    try:
        return config.getini(ini)
    except (TypeError, ValueError, pytest.UsageError) as error:  # which do not say of what
        raise pytest.UsageError(f"{ini} in the configuration file: {error}") from None


_TABLES = ("lint", "pytest")


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
        if part == "gradcheck-suite":
            _refuse_unknown_tables(table, file)
    for key in table:
        if key not in OPTIONS:
            raise pytest.UsageError(
                f"[tool.gradcheck-suite.pytest] in {file} has no setting {key!r}; "
                f"{nearest(key, tuple(OPTIONS))}"
            )
    return table


def _refuse_unknown_tables(tables: dict[str, Any], file: Path) -> None:
    """Refuse what none of our tools reads: a table with a misspelt name would count for nothing."""
    for name in tables:
        if name not in _TABLES:
            raise pytest.UsageError(
                f"[tool.gradcheck-suite] in {file} has no table {name!r}; {nearest(name, _TABLES)}"
            )
