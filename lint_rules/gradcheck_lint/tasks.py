"""Do the work on one file, in this process or in a worker: bytes in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradcheck_lint.failures import WHOLE_FILE, Failures
from gradcheck_suite.findings import Finding

What: TypeAlias = Literal["lint", "fix", "fix-unsafe"]


@dataclass(frozen=True, slots=True)
class Task:
    """One file to lint or to fix. ``codes`` are the rules to apply."""

    path: str
    source: bytes
    codes: frozenset[str] | None
    what: What = "lint"
    root: str | None = None
    """Where the project begins that the file is in."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task: the findings that are left, and for a fix the new source."""

    findings: tuple[Finding, ...] = ()
    source: bytes | None = None
    fixed: tuple[Finding, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """The other files that were read for it, with their digests."""


def perform(task: Task) -> Outcome:
    """Do a task; an error of ours is a finding, so that the other files are linted."""
    failures = Failures()
    with failures.costing(WHOLE_FILE):
        return _perform(task)
    return Outcome(failures.findings(task.path))


def _perform(task: Task) -> Outcome:
    if task.path.endswith(".ipynb"):
        from gradcheck_lint.notebooks import fix_notebook, lint_notebook  # noqa: PLC0415 - rare

        if task.what == "lint":
            return Outcome(lint_notebook(task.source, task.path, codes=task.codes))
        changed = fix_notebook(
            task.source, task.path, codes=task.codes, unsafe=task.what == "fix-unsafe"
        )
        return Outcome(changed.left, changed.source, changed.fixed)
    if task.what == "lint":
        from gradcheck_lint.engine import lint  # noqa: PLC0415 - tests replace it

        linted = lint(task.source, task.path, codes=task.codes, root=task.root)
        return Outcome(linted.findings, sources=linted.sources)
    from gradcheck_lint.fixes import fix_source  # noqa: PLC0415 - needs libcst

    unsafe = task.what == "fix-unsafe"
    result = fix_source(task.source, task.path, codes=task.codes, unsafe=unsafe, root=task.root)
    return Outcome(result.left, result.source, result.fixed)
