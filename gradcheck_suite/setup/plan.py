"""Decide what ``init`` writes into a repository, part by part, and write nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gradcheck_lint.files import read_source
from gradcheck_suite._addresses import REPOSITORY
from gradcheck_suite._version import __version__
from gradcheck_suite.errors import UsageError
from gradcheck_suite.setup.insertions import (
    Insertion,
    append_toml_table,
    append_yaml_item,
    append_yaml_key,
    read_toml,
    read_yaml,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gradcheck_suite.setup.repository import Repository
    from gradcheck_suite.setup.training import Training

__all__ = ["FROM_REPOSITORY", "PARTS", "Change", "Plan", "Remark", "Service", "plan_changes"]

Service: TypeAlias = Literal["github", "gitlab"]


@dataclass(frozen=True, slots=True)
class Change:
    """What one file gains; ``before`` is None where there is no such file."""

    path: str
    before: bytes | None
    insertion: Insertion

    @property
    def after(self) -> bytes:
        """Return what the file then holds."""
        return self.insertion.into(self.before or b"")


@dataclass(frozen=True, slots=True)
class Remark:
    """Why a part changes nothing; ``is_problem`` where it was wanted and can't be."""

    part: str
    text: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to be written, and why the rest is not."""

    changes: tuple[Change, ...]
    remarks: tuple[Remark, ...]


class _NothingToDoError(Exception):
    """A part is there already, or there is nothing that it would be for."""


def plan_changes(
    repository: Repository,
    training: Training,
    *,
    folder: Path,
    parts: tuple[str, ...],
    service: Service | None,
) -> Plan:
    """Return what the parts change.

    ``folder`` is where the user is: the pyproject.toml nearest to it is theirs. ``service`` runs
    the CI job; None takes the one that the repository shows.
    """
    planner = _Planner(repository, training, folder, service)
    remarks = [remark for part in parts if (remark := _remark_of(part, planner)) is not None]
    return Plan(tuple(planner.changes.values()), tuple(remarks))


def _remark_of(part: str, planner: _Planner) -> Remark | None:
    """Plan a part, and return why it changes nothing, or None if it does."""
    try:
        _PLANNED[part](planner)
    except _NothingToDoError as reason:
        return Remark(part, str(reason))
    except UsageError as error:
        return Remark(part, str(error), is_problem=True)
    return None


class _Planner:
    """Collect the changes of each file."""

    def __init__(
        self, repository: Repository, training: Training, folder: Path, service: Service | None
    ) -> None:
        self.repository = repository
        self.training = training
        self.folder = folder
        self.service = service
        self.changes: dict[str, Change] = {}

    def contents(self, path: str) -> bytes | None:
        """Return what a file holds after the changes so far; None where there is none.

        Raises:
            UsageError: it can't be read.
        """
        if path in self.changes:
            return self.changes[path].after
        whole = self.repository.root / path
        if not whole.exists() and not whole.is_symlink():
            return None
        try:
            return read_source(str(whole))
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror or error}") from error

    def insert(self, path: str, insertion: Insertion) -> None:
        """Add an insertion to a file, behind an earlier one."""
        known = self.changes.get(path)
        if known is None:
            self.changes[path] = Change(path, self.contents(path), insertion)
            return
        whole = Insertion(known.insertion.offset, known.insertion.text + insertion.text)
        self.changes[path] = Change(path, known.before, whole)


_HOOK: Final = "gradcheck-lint"
_PRE_COMMIT: Final = ".pre-commit-config.yaml"
FROM_REPOSITORY: Final = f"""\
- repo: {REPOSITORY}
  rev: v{__version__}
  hooks:
    - id: {_HOOK}
"""
"""The hook as the README has it, too."""
_FROM_ENVIRONMENT: Final = f"""\
- repo: local
  hooks:
    - id: {_HOOK}
      name: {_HOOK}
      entry: gradcheck-lint --force-exclude
      language: system
      types_or: [python, pyi, jupyter]
      require_serial: true
"""


def _plan_hook(planner: _Planner) -> None:
    item = _FROM_ENVIRONMENT if "/OWNER/" in REPOSITORY else FROM_REPOSITORY
    before = planner.contents(_PRE_COMMIT)
    if before is None or not before.strip():
        text = "repos:\n" + "".join(f"  {line}\n" for line in item.splitlines())
        planner.insert(_PRE_COMMIT, Insertion(len(before or b""), text.encode()))
        return
    listed = read_yaml(before, _PRE_COMMIT).get("repos")
    hooks = [
        hook.get("id")
        for source in (listed if isinstance(listed, list) else [])
        if isinstance(source, dict) and isinstance(source.get("hooks"), list)
        for hook in source["hooks"]
        if isinstance(hook, dict)
    ]
    if any(str(hook).startswith(_HOOK) for hook in hooks):
        raise _NothingToDoError(f"{_PRE_COMMIT} has the hook already")
    planner.insert(_PRE_COMMIT, append_yaml_item(before, "repos", item, name=_PRE_COMMIT))


_SETTINGS: Final = 'fail-on = "error"\n'
_AUDIT_OF_TESTS: Final = 'audit = "error"\n'


def _plan_settings(planner: _Planner) -> None:
    _plan_table(planner, "lint", _SETTINGS)


def _plan_pytest(planner: _Planner) -> None:
    if planner.training.tests is None:
        raise _NothingToDoError("there are no tests here")
    if not planner.training.tests_use_torch:
        raise _NothingToDoError(f"no test in {planner.training.tests} names torch")
    _plan_table(planner, "pytest", _AUDIT_OF_TESTS)


def _plan_table(planner: _Planner, table: str, body: str) -> None:
    path = _pyproject(planner)
    before = planner.contents(path) or b""
    document = read_toml(before, path)
    for name in ("tool", "gradcheck-suite"):
        document = document.get(name, {})
        if not isinstance(document, dict):
            raise UsageError(f"{path} has a `{name}` that is no table; add the table by hand")
    if table in document:
        raise _NothingToDoError(f"{path} has [tool.gradcheck-suite.{table}] already")
    names = ("tool", "gradcheck-suite", table)
    planner.insert(path, append_toml_table(before, names, body, name=path))


def _pyproject(planner: _Planner) -> str:
    """Return the pyproject.toml nearest to the user, or that of the top folder."""
    root = planner.repository.root
    folder = planner.folder.resolve()
    inside = [each for each in (folder, *folder.parents) if each.is_relative_to(root.resolve())]
    for each in inside:
        if (each / "pyproject.toml").exists():
            return (each.relative_to(root.resolve()) / "pyproject.toml").as_posix()
    return "pyproject.toml"


_WORKFLOW: Final = ".github/workflows/gradcheck-lint.yml"
_GITHUB_JOB: Final = f"""\
name: gradcheck-lint

on: [push, pull_request]

permissions:
  contents: read

jobs:
  gradcheck-lint:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install gradcheck-suite=={__version__}
      - run: gradcheck-lint --output-format github
"""
_GITLAB_FILE: Final = ".gitlab-ci.yml"
_GITLAB_JOB: Final = f"""\
gradcheck-lint:
  image: python:3.12
  script:
    - pip install gradcheck-suite=={__version__}
    - gradcheck-lint --output-format gitlab --output-file gl-code-quality-report.json
  artifacts:
    when: always
    reports:
      codequality: gl-code-quality-report.json
"""


def _plan_ci(planner: _Planner) -> None:
    service = planner.service or _service_of(planner.repository)
    if service is None:
        raise _NothingToDoError(
            "neither a remote nor a folder shows GitHub or GitLab; --ci names one of them"
        )
    _PLANNED_FOR[service](planner)


def _service_of(repository: Repository) -> Service | None:
    root = repository.root
    for service in _SERVICES:
        if any(service in remote.lower() for remote in repository.remotes):
            return service
    if (root / _GITLAB_FILE).exists():
        return "gitlab"
    return "github" if (root / ".github").is_dir() else None


_SERVICES: Final[tuple[Service, ...]] = ("github", "gitlab")


def _plan_github(planner: _Planner) -> None:
    folder = planner.repository.root / ".github" / "workflows"
    for file in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        path = file.relative_to(planner.repository.root).as_posix()
        if re.search(rb"^[^#\n]*gradcheck-lint", planner.contents(path) or b"", re.MULTILINE):
            raise _NothingToDoError(f"{path} runs gradcheck-lint already")
    planner.insert(_WORKFLOW, Insertion(0, _GITHUB_JOB.encode()))


def _plan_gitlab(planner: _Planner) -> None:
    before = planner.contents(_GITLAB_FILE) or b""
    if not before.strip():
        planner.insert(_GITLAB_FILE, Insertion(len(before), _GITLAB_JOB.encode()))
        return
    document = read_yaml(before, _GITLAB_FILE)
    if re.search(rb"^[^#\n]*gradcheck-lint", before, re.MULTILINE):
        raise _NothingToDoError(f"{_GITLAB_FILE} runs gradcheck-lint already")
    job = _GITLAB_JOB
    stages = document.get("stages")
    if isinstance(stages, list) and stages and "test" not in stages:
        # A job without a stage belongs to "test", which has to be one of those listed.
        job = job.replace("  script:", f"  stage: {stages[0]}\n  script:", 1)
    planner.insert(_GITLAB_FILE, append_yaml_key(before, _HOOK, job, name=_GITLAB_FILE))


_PLANNED_FOR: Final = {"github": _plan_github, "gitlab": _plan_gitlab}
_PLANNED: Final[dict[str, Callable[[_Planner], None]]] = {
    "pre-commit": _plan_hook,
    "settings": _plan_settings,
    "pytest": _plan_pytest,
    "ci": _plan_ci,
}
PARTS: Final = tuple(_PLANNED)
