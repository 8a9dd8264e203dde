"""What the command line, pytest's configuration and pyproject.toml may say.

A setting may be said by its flag (``options``), by its twin in pytest's configuration, and by its
key under ``[tool.gradcheck-suite.pytest]``. The first of these that says something decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite.severity import Severity
from pytest_gradcheck_suite.options import (
    REPORT_SUFFIXES,
    SEVERITIES,
    UPDATE,
    ini_name,
    ini_value,
    pyproject_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "REPORT_FORMATS",
    "Settings",
    "nearest",
    "read_settings",
    "settings_of",
    "severity_from",
]

_OFF = "off"
REPORT_FORMATS: dict[str, str] = dict(
    zip(REPORT_SUFFIXES, ("json", "sarif", "html", "junit"), strict=True)
)


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
        said_by: where each setting was said that was, for messages.
    """

    fail_on: Severity = Severity.ERROR
    audit: Severity | None = None
    modules: tuple[str, ...] = ()
    seed: int = 0
    report: Path | None = None
    summary: bool = True
    update_snapshots: bool = False
    said_by: Mapping[str, str] = field(default_factory=dict)

    def subject(self, name: str) -> str:
        """Return how to speak of a setting to the user who said it."""
        return self.said_by.get(name, f"--gradcheck-suite-{name}")


_KEY = pytest.StashKey[Settings]()


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
        path = (
            ". A path that follows the flag needs the severity in between: "
            "--gradcheck-suite-audit=error tests/"
        )
        raise pytest.UsageError(
            f"{subject} must be one of {expected}; got {value!r}"
            + (path if subject.startswith("--") else "")
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


_READERS: dict[str, Callable[[object, str, Path], Any]] = {
    "fail-on": _severity,
    "audit": _audit,
    "modules": _packages,
    "seed": _seed,
    "report": _report,
    "summary": _switch,
}


def read_settings(config: pytest.Config) -> Settings:
    """Settle what was asked for, and keep it for ``settings_of``.

    Raises:
        pytest.UsageError: something says what can't be, or pyproject.toml has an unknown key.
    """
    table = _pyproject_table(config.rootpath)
    values: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, read in _READERS.items():
        ini = ini_name(name)
        flag = f"--gradcheck-suite-{name}"
        said = (
            (config.getoption(ini), flag, config.invocation_params.dir),
            (ini_value(config, name), f"{ini} in the configuration file", config.rootpath),
            (table.get(name), f"{name} under [tool.gradcheck-suite.pytest]", config.rootpath),
        )
        for value, subject, folder in said:
            if value is not None and value not in ("", []):
                values[name.replace("-", "_")] = read(value, subject, folder)
                said_by[name] = subject
                break
    values["update_snapshots"] = bool(config.getoption(UPDATE))
    settings = config.stash[_KEY] = Settings(**values, said_by=said_by)
    return settings


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings of this run: the defaults where nothing was said."""
    known = config.stash.get(_KEY, None)
    return config.stash.setdefault(_KEY, Settings()) if known is None else known


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say which of the known names was probably meant, or list them."""
    import difflib  # noqa: PLC0415 - for mistakes only

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(map(repr, known))}"


def _refuse_unknown_tables(tables: dict[str, Any], file: Path) -> None:
    """Refuse what none of our tools reads: a table with a misspelt name would count for nothing."""
    for name in tables:
        if name not in _TABLES:
            raise pytest.UsageError(
                f"[tool.gradcheck-suite] in {file} has no table {name!r}; {nearest(name, _TABLES)}"
            )


_TABLES = ("lint", "pytest")


def _pyproject_table(root: Path) -> dict[str, Any]:
    file, text = root / "pyproject.toml", pyproject_text(root)
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
    known = tuple(_READERS)
    for key in table:
        if key not in known:
            raise pytest.UsageError(
                f"[tool.gradcheck-suite.pytest] in {file} has no setting {key!r}; "
                f"{nearest(key, known)}"
            )
    return table
