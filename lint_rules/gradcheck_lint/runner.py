"""Lint or fix files and standard input, and gather the findings into a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gradcheck_lint.cache import Cache
from gradcheck_lint.discovery import Found, find_files, is_hidden
from gradcheck_lint.engine import concerns
from gradcheck_lint.failures import FAILED_CODE
from gradcheck_lint.files import TooLargeError, read_source, replace_source
from gradcheck_lint.gitignore import GitIgnored
from gradcheck_lint.project.layout import common_root, root_of
from gradcheck_lint.tasks import Outcome, Task, What, perform
from gradcheck_lint.unreadable import UNREADABLE_CODE, unreadable
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding, Report
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_lint.config import Settings
    from gradcheck_lint.workers import Workers

TOOL: Final = "gradcheck-lint"

SettingsFor = Callable[[str], "Settings"]


@dataclass(frozen=True, slots=True)
class Options:
    """How to go about it.

    ``force_exclude`` leaves excluded paths out even if they are named. ``respect_gitignore``
    leaves out what git would not add. ``jobs`` is the number of processes, None for as many as
    the work is worth. ``cache`` remembers findings between runs.
    """

    force_exclude: bool = False
    respect_gitignore: bool = True
    jobs: int | None = None
    cache: Cache | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a run over files came to.

    ``changes`` are the files that fixes change, with their bytes before and after; ``fixed`` is
    what was fixed.
    """

    report: Report
    changes: tuple[tuple[str, bytes, bytes], ...] = ()
    fixed: tuple[Finding, ...] = ()

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Return what the linter itself failed on."""
        return _failures(self.report.findings)


class _Slot:
    """One file of the run, in its place among the others, and what is known of it."""

    __slots__ = ("codes", "findings", "path", "root", "settings", "size")

    def __init__(self, path: str, settings: Settings, root: str | None) -> None:
        self.path = path
        self.root = root_of(path) or root
        self.settings = settings
        self.codes = settings.codes_for(path)
        self.size = 0
        self.findings: tuple[Finding, ...] = ()


_FIX: Final[dict[bool, What]] = {False: "fix", True: "fix-unsafe"}


def lint_paths(
    paths: Sequence[str], *, settings_for: SettingsFor, options: Options | None = None
) -> Run:
    """Lint every file below ``paths``.

    Raises:
        UsageError: a path does not exist, or a configuration can't be used.
    """
    return _run_of(_lint(paths, settings_for, options or Options()))


def fix_paths(
    paths: Sequence[str],
    *,
    settings_for: SettingsFor,
    options: Options | None = None,
    unsafe: bool = False,
    write: bool = True,
) -> Run:
    """Fix what can be fixed in every file below ``paths``; the report tells what is left.

    A file is replaced as a whole or left as it is. One that can't be written is a finding more.
    With ``write`` False nothing is written, and the changes are only told.

    Raises:
        UsageError: as ``lint_paths``.
    """
    from gradcheck_suite.reporting.progress import progress  # noqa: PLC0415 - not for stdin

    options = options or Options()
    slots = _lint(paths, settings_for, options)
    waiting = [slot for slot in slots if is_fixable(slot.findings, unsafe=unsafe)]
    changes: list[tuple[str, bytes, bytes]] = []
    fixed: list[Finding] = []
    with progress("Fixing", total=len(waiting)) as bar, _Work(options.jobs) as work:
        for slot in waiting:
            work.expect(slot)
        for slot, task, outcome in work.perform(waiting, _FIX[unsafe]):
            bar.advance()
            new = outcome.source
            if new is None or new == task.source:
                failed = _failures(outcome.findings)
                slot.findings += tuple(one for one in failed if one not in slot.findings)
                continue
            try:
                if write:
                    replace_source(slot.path, old=task.source, new=new)
            except OSError as error:
                reason = error.strerror or str(error)
                slot.findings += (unreadable(slot.path, reason, undone="fixed"),)
                continue
            changes.append((slot.path, task.source, new))
            fixed.extend(outcome.fixed)
            slot.findings = outcome.findings
    run = _run_of(slots)
    return replace(run, changes=tuple(changes), fixed=tuple(fixed))


def lint_text(source: bytes, filename: str, *, settings: Settings) -> Report:
    """Lint source that did not come from a file of this name, as an editor's does not."""
    task = Task(filename, source, settings.codes_for(filename), root=root_of(filename))
    outcome = perform(task)
    return Report(tool=TOOL, findings=_wanted(outcome.findings, settings), summary={"files": 1})


def fix_text(source: bytes, filename: str, *, settings: Settings, unsafe: bool) -> Run:
    """Fix source that did not come from a file of this name."""
    codes = settings.codes_for(filename)
    outcome = perform(Task(filename, source, codes, _FIX[unsafe], root_of(filename)))
    report = Report(tool=TOOL, findings=_wanted(outcome.findings, settings), summary={"files": 1})
    new = source if outcome.source is None else outcome.source
    return Run(report, changes=((filename, source, new),), fixed=outcome.fixed)


def is_excluded(path: str, settings: Settings) -> bool:
    """Tell whether a path lies where linting by default or by configuration does not go."""
    return is_hidden(path) or settings.excludes(path)


def is_fixable(findings: Iterable[Finding], *, unsafe: bool) -> bool:
    """Tell whether one of the findings has a fix that is safe, or any fix."""
    return any(finding.fixable or (unsafe and "fix" in finding.evidence) for finding in findings)


def _lint(paths: Sequence[str], settings_for: SettingsFor, options: Options) -> list[_Slot]:
    from gradcheck_suite.reporting.progress import progress  # noqa: PLC0415 - not for stdin

    cache = options.cache
    slots: list[_Slot] = []
    waiting: list[_Slot] = []
    root = common_root(paths)
    with progress("Linting") as bar, _Work(options.jobs) as work:
        for found in _files(paths, settings_for, options):
            settings = settings_for(found.path)
            slot = _Slot(found.path, settings, root)
            slots.append(slot)
            if _must_be_linted(slot, found, cache):
                waiting.append(slot)
                work.expect(slot)
            else:
                bar.advance()
        try:
            for slot, task, outcome in work.perform(waiting, "lint"):
                bar.describe(f"Linted {slot.path}")
                bar.advance()
                slot.findings = outcome.findings
                if cache is not None and not _failures(outcome.findings):
                    digest = cache.digest(task.source, task.codes, slot.root)
                    cache.put(slot.path, digest, outcome.findings, outcome.sources)
        finally:
            # What an interrupted run has found need not be found again.
            if cache is not None:
                cache.save()
    return slots


def _files(paths: Sequence[str], settings_for: SettingsFor, options: Options) -> Iterator[Found]:
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"there is no file or directory {path!r}")
    ignored = GitIgnored() if options.respect_gitignore else None

    def is_left_out(path: str, *, is_directory: bool) -> bool:
        if settings_for(path).excludes(path):
            return True
        return ignored is not None and ignored.ignores(path, is_directory=is_directory)

    if options.force_exclude:
        paths = [
            path
            for path in paths
            if not is_hidden(path) and not is_left_out(path, is_directory=os.path.isdir(path))  # noqa: PTH112 - str in
        ]
    yield from find_files(paths, is_excluded=is_left_out)


def _must_be_linted(slot: _Slot, found: Found, cache: Cache | None) -> bool:
    """Look at a file; unless its findings are known by that, it has to be linted."""
    if found.error is not None:
        reason = f"its directory can't be read: {found.error}"
        slot.findings = (unreadable(found.path, reason),)
        return False
    source = _read(slot)
    if source is None or not concerns(source):
        return False
    slot.size = len(source)
    if cache is not None:
        known = cache.get(slot.path, cache.digest(source, slot.codes, slot.root))
        if known is not None:
            slot.findings = known
            return False
    return True


def _read(slot: _Slot) -> bytes | None:
    try:
        return read_source(slot.path)
    except OSError as error:
        severity = Severity.WARNING if isinstance(error, TooLargeError) else Severity.ERROR
        reason = error.strerror or str(error)
        slot.findings = (unreadable(slot.path, reason, severity=severity),)
        return None


class _Work:
    """Tasks for this process or for several, which come up while the files are looked for."""

    def __init__(self, jobs: int | None) -> None:
        self._jobs = jobs
        self._files = self._size = 0
        self._workers: Workers | None = None

    def __enter__(self) -> _Work:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.stop()

    def expect(self, slot: _Slot) -> None:
        """Start the processes that the files so far are worth."""
        from gradcheck_lint.workers import Workers, worker_count  # noqa: PLC0415 - only for work

        self._files += 1
        self._size += slot.size
        if self._workers is None:
            self._workers = Workers()
        self._workers.prepare(worker_count(self._jobs, self._size, self._files))

    def perform(self, slots: Sequence[_Slot], what: What) -> Iterator[tuple[_Slot, Task, Outcome]]:
        """Lint or fix files that were expected, and yield each with what came of it."""
        if self._workers is None:
            return
        if self._workers.count > 1:
            # The large ones first: nobody is to wait for the last one alone.
            slots = sorted(slots, key=lambda slot: slot.size, reverse=True)
        by_task: dict[int, _Slot] = {}

        def tasks() -> Iterator[Task]:
            # Sources are read again, one at a time: all of them at once may be a lot of memory.
            for slot in slots:
                source = _read(slot)
                if source is not None:
                    task = Task(slot.path, source, slot.codes, what, slot.root)
                    by_task[id(task)] = slot
                    yield task

        for task, outcome in self._workers.perform(tasks()):
            yield by_task.pop(id(task)), task, outcome


def _run_of(slots: Sequence[_Slot]) -> Run:
    findings = tuple(finding for slot in slots for finding in _wanted(slot.findings, slot.settings))
    return Run(Report(tool=TOOL, findings=findings, summary={"files": len(slots)}))


def _failures(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.code == FAILED_CODE)


def _wanted(findings: Iterable[Finding], settings: Settings) -> tuple[Finding, ...]:
    """Leave out unreadable files where the configuration ignores them."""
    return tuple(
        finding
        for finding in findings
        if finding.code != UNREADABLE_CODE
        or finding.location is None
        or not settings.ignores_unreadable(finding.location.path)
    )
