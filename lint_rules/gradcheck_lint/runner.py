"""Lint files and standard input, and gather the findings into a report."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gradcheck_lint.discovery import Found, find_files, is_hidden
from gradcheck_lint.engine import lint_source
from gradcheck_lint.unreadable import UNREADABLE_CODE, unreadable
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding, Report

if TYPE_CHECKING:
    from gradcheck_lint.config import Settings

TOOL: Final = "gradcheck-lint"
_LARGEST_READ: Final = 64 << 20

SettingsFor = Callable[[str], "Settings"]


def lint_paths(
    paths: Sequence[str], *, settings_for: SettingsFor, force_exclude: bool = False
) -> Report:
    """Lint every file below ``paths``.

    ``force_exclude`` leaves excluded paths out even if they are named.

    Raises:
        UsageError: a path does not exist, or a configuration can't be used.
    """
    from gradcheck_suite.reporting.progress import progress  # noqa: PLC0415 - not for stdin

    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"there is no file or directory {path!r}")
    if force_exclude:
        paths = [path for path in paths if not is_excluded(path, settings_for(path))]
    files = find_files(paths, is_excluded=lambda path: settings_for(path).excludes(path))
    findings: list[Finding] = []
    count = 0
    with progress("Linting") as bar:
        for found in files:
            count += 1
            bar.describe(f"Linting {found.path}")
            settings = settings_for(found.path)
            try:
                findings.extend(_lint_file(found, settings))
            except Exception as error:
                raise RuntimeError(f"{found.path}: {type(error).__name__}: {error}") from error
            bar.advance()
    return Report(tool=TOOL, findings=tuple(findings), summary={"files": count})


def lint_text(source: bytes, filename: str, *, settings: Settings) -> Report:
    """Lint source that did not come from a file of this name, as an editor's does not."""
    findings = _wanted(lint_source(source, filename, codes=settings.codes_for(filename)), settings)
    return Report(tool=TOOL, findings=tuple(findings), summary={"files": 1})


def is_excluded(path: str, settings: Settings) -> bool:
    """Tell whether a path lies where linting by default or by configuration does not go."""
    return is_hidden(path) or settings.excludes(path)


def _lint_file(found: Found, settings: Settings) -> Iterable[Finding]:
    if found.error is not None:
        return _wanted(
            [unreadable(found.path, f"its directory can't be read: {found.error}")], settings
        )
    try:
        source = _read(found.path)
    except OSError as error:
        return _wanted([unreadable(found.path, error.strerror or str(error))], settings)
    codes = settings.codes_for(found.path)
    return _wanted(lint_source(source, found.path, codes=codes), settings)


def _read(path: str) -> bytes:
    status = os.stat(path)  # noqa: PTH116 - str in
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a regular file")
    if status.st_size > _LARGEST_READ:
        raise OSError(0, f"it has {status.st_size:,} bytes")
    with open(path, "rb") as stream:  # noqa: PTH123 - str in
        return stream.read()


def _wanted(findings: Iterable[Finding], settings: Settings) -> list[Finding]:
    """Leave out unreadable files where the configuration ignores them."""
    return [
        finding
        for finding in findings
        if finding.code != UNREADABLE_CODE
        or finding.location is None
        or not settings.ignores_unreadable(finding.location.path)
    ]
