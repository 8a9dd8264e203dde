"""Find out what of gradcheck-suite works in this environment, and what does not and why.

Nothing here raises, and only ``pytest --help`` loads anything of the user's: pytest's own
configuration, with no conftest.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from gradcheck_suite._version import __version__
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Report
from gradcheck_suite.setup.repository import find_repository
from gradcheck_suite.setup.trial import try_run_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PARTS", "Check", "Installation", "Version", "examine"]

Status: TypeAlias = Literal["works", "limited", "absent", "fails"]
_PATIENCE = 120
"""How many seconds pytest may take to print its help: far more than any plugin's import."""


@dataclass(frozen=True, slots=True)
class Version:
    """A distribution that counts here; ``version`` is None where it is not installed."""

    name: str
    version: str | None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """What became of one part.

    "limited" works with what ``message`` says, "absent" was not set up here, and "fails" was, and
    does not work. ``hint`` is the next step.
    """

    part: str
    status: Status
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed here, and what became of each part, in the order of ``PARTS``."""

    versions: tuple[Version, ...]
    checks: tuple[Check, ...]
    asked: frozenset[str]

    @property
    def ok(self) -> bool:
        """Whether all that was asked for works, and nothing that was set up fails."""
        return not any(
            check.status == "fails" or (check.status == "absent" and check.part in self.asked)
            for check in self.checks
        )


def examine(folder: Path, asked: frozenset[str] = frozenset()) -> Installation:
    """Try every part, or those that are ``asked`` for alone."""
    trial = try_run_time() if not asked or "run-time" in asked else {}
    checks = [
        (check if part in asked else _WITHOUT_IMPORT.get(part, check))(folder, part, trial)
        for part, check in _CHECKS.items()
        if not asked or part in asked
    ]
    return Installation(
        versions=tuple(_versions(trial)),
        checks=tuple(checks),
        asked=asked or _ALWAYS_ASKED,
    )


_ALWAYS_ASKED: Final = frozenset({"lint", "run-time"})
"""The two halves of the suite: who asks for nothing by name wants both."""


def _lint(_folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    """Lint a program with one mistake, and draw the report."""
    try:
        lint = import_module("gradcheck_lint.engine").lint_source
        report = Report("gradcheck-lint", lint(_MISTAKEN, "mistaken.py"))
        found = [finding.code for finding in report.findings]
        str(report)
    except Exception as error:  # noqa: BLE001 - it is what doctor is asked for
        return Check(part, "fails", _told(error), "install gradcheck-suite again")
    if found != ["GCS301"]:
        seen = "; ".join(finding.message for finding in report.findings) or "nothing"
        return Check(part, "fails", f"of a program with one GCS301 the linter says: {seen}")
    return Check(part, "works", "gradcheck-lint finds a mistake that was planted for it")


_MISTAKEN: Final = b"""\
import torch

def train(model, optimizer, batches):
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
"""


def _run_time(_folder: Path, part: str, trial: Mapping[str, Any]) -> Check:
    if trial.get("absent"):
        return Check(
            part,
            "absent",
            "PyTorch is not installed: audit, verify, localize and graph need it",
            "pip install 'gradcheck-suite[torch]'",
        )
    if "fails" in trial:
        return Check(part, "fails", str(trial["fails"]))
    limits = list(trial["limits"])
    if not trial["distributed"]:
        limits.append("this torch is built without torch.distributed: it runs no ranks to compare")
    if limits:
        return Check(part, "limited", "; ".join(limits))
    return Check(part, "works", "a gradient was checked, a step audited and a graph traced")


def _pytest(folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    """Ask pytest for its help, which has our options if our plugin is loaded."""
    version = _version_of("pytest")
    if version is None:
        return Check(part, "absent", "pytest is not installed", _install("pytest"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--noconftest", "--help"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(part, "fails", f"pytest --help does not end: {error}")
    if done.returncode != 0:
        return Check(part, "fails", f"pytest does not start here: {_last_error(done.stderr)}")
    if "--gradcheck-suite-audit" not in done.stdout:
        return Check(part, "absent", f"pytest {version} does not load the plugin", _blocked_by())
    return Check(part, "works", f"pytest {version} loads the plugin")


def _last_error(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it says nothing"])[-1].removeprefix("ERROR: ")


def _blocked_by() -> str:
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set: give pytest -p pytest_gradcheck_suite.plugin"
    entries = metadata.entry_points(group="pytest11")
    if not any(entry.value.startswith("pytest_gradcheck_suite") for entry in entries):
        return "no installed distribution registers it: install gradcheck-suite with pip"
    return "look for `-p no:gradcheck_suite` in PYTEST_ADDOPTS and in addopts of its configuration"


def _settings(folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    """Read the tables of pyproject.toml as the linter does; pytest reads its own."""
    try:
        config = import_module("gradcheck_lint.config")
        found = config.SettingsFinder().settings_for(str(folder / "any.py"))
    except UsageError as error:
        return Check(part, "fails", str(error))
    except Exception as error:  # noqa: BLE001 - it is what doctor is asked for
        return Check(part, "fails", _told(error))
    file = found.root / "pyproject.toml"
    if not file.is_file() or b"gradcheck-suite" not in file.read_bytes():
        return Check(part, "works", "there are none: every rule, failing on errors")
    return Check(part, "works", f"those of the linter are in {_short(file)}")


def _cache(_folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    from gradcheck_lint.cache import (  # noqa: PLC0415 - beside its only use
        ENVIRONMENT_VARIABLE,
        default_directory,
    )

    try:
        wanted = default_directory()
    except Exception as error:  # noqa: BLE001 - of a user without a home, say
        return _slow(part, _told(error), ENVIRONMENT_VARIABLE)
    there = next((path for path in (wanted, *wanted.parents) if path.exists()), wanted)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return _slow(part, f"{_short(there)} is no folder to write in", ENVIRONMENT_VARIABLE)
    return Check(part, "works", f"the linter remembers unchanged files in {_short(wanted)}")


def _slow(part: str, why: str, variable: str) -> Check:
    message = f"the linter remembers nothing between runs: {why}"
    return Check(part, "limited", message, f"name a folder in {variable}")


def _terminal(_folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    stream = sys.stdout
    is_terminal = stream is not None and stream.isatty()
    encoding = getattr(stream, "encoding", None) or "none"
    colour = "NO_COLOR is set" if os.environ.get("NO_COLOR") else "colours are used"
    where = (
        f"a terminal of {shutil.get_terminal_size().columns} columns, {colour}"
        if is_terminal
        else "no terminal: reports have no colour"
    )
    if not encoding.lower().replace("-", "").startswith("utf"):
        return Check(
            part,
            "limited",
            f"{where}; its encoding is {encoding}, and what that lacks is written as escapes",
            "set PYTHONUTF8=1",
        )
    return Check(part, "works", f"{where}; its encoding is {encoding}")


def _pre_commit(folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
    try:
        repository = find_repository(folder)
    except UsageError as error:
        return Check(part, "absent", str(error))
    file = repository.root / ".pre-commit-config.yaml"
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if not re.search(r"^[^#\n]*\bid:\s*[\"']?gradcheck-lint", text, re.MULTILINE):
        return Check(part, "absent", "no hook of gradcheck-lint is set up", "gradcheck-suite init")
    if not repository.hook_is_installed():
        message = "the hook is set up, but git does not run pre-commit in this clone"
        return Check(part, "limited", message, "pre-commit install")
    return Check(part, "works", "git runs gradcheck-lint before each commit")


def _extra(name: str, *, imports: bool = True) -> Callable[[Path, str, Mapping[str, Any]], Check]:
    """Return the check of an extra: that its distribution is there, new enough, and imports.

    Where it ``imports`` nothing, that there is such a module has to do.
    """

    def check(_folder: Path, part: str, _trial: Mapping[str, Any]) -> Check:
        for requirement in _requirements().get(name, ()):
            found = _version_of(requirement.name)
            if found is None:
                return Check(part, "absent", f"{requirement.name} is not installed", _install(name))
            if _numbers(found) < _numbers(requirement.least):
                message = f"{requirement.name} {found} is older than {requirement.least}"
                return Check(part, "fails", message, _install(name))
            module = _MODULES.get(requirement.name, requirement.name.replace("-", "_"))
            try:
                if imports:
                    import_module(module)
                elif find_spec(module.partition(".")[0]) is None:
                    return Check(part, "fails", f"there is no module {module}", _install(name))
            except Exception as error:  # noqa: BLE001 - it is what doctor is asked for
                return Check(part, "fails", _told(error), _install(name))
        tried = "" if imports else f" by what is installed; `doctor {part}` also imports it"
        return Check(part, "works", f"{_EXTRAS[name]}{tried}")

    return check


_EXTRAS: Final = {
    "png": 'graph.save("graph.png") works',
    "tensorboard": "graph.save(folder) writes for TensorBoard",
    "strategies": "gradcheck_suite.strategies works",
    "completion": "--print-completion works",
    "lsp": "`gradcheck-lint server` works",
    "lightning": "gradcheck_suite.integrations.lightning works",
    "transformers": "gradcheck_suite.integrations.transformers works",
    "accelerate": "gradcheck_suite.integrations.accelerate works",
    "ignite": "gradcheck_suite.integrations.ignite works",
}
_MODULES: Final = {
    "tensorboard": "tensorboard.compat.proto.event_pb2",
    "pytorch-ignite": "ignite.engine",
}
"""What is imported where it is not the name of the distribution, or more than that is needed."""


@dataclass(frozen=True, slots=True)
class _Requirement:
    name: str
    least: str


def _requirements() -> dict[str, list[_Requirement]]:
    """Return what each extra needs, "" for what is always needed, as the metadata have it."""
    try:
        lines = metadata.requires("gradcheck-suite") or []
    except metadata.PackageNotFoundError:
        lines = []
    found: dict[str, list[_Requirement]] = {}
    for line in lines:
        read = re.match(r"([\w.-]+)[^>;]*(?:>=([\d.]+))?", line)
        extra = re.search(r"extra\s*==\s*[\"']([\w-]+)", line)
        is_for_others = "python_version" in line
        if read is not None and not is_for_others:
            requirement = _Requirement(read[1], read[2] or "0")
            found.setdefault(extra[1] if extra else "", []).append(requirement)
    return found


def _versions(trial: Mapping[str, Any]) -> list[Version]:
    requirements = _requirements()
    needed = [each.name for name in ("", "pytest", *_EXTRAS) for each in requirements.get(name, ())]
    torch = trial.get("version") or _version_of("torch")
    accelerator = trial.get("accelerator")
    ours = Path(__file__).parents[1]
    return [
        Version("Python", sys.version.split()[0], _short(Path(sys.executable))),
        Version("gradcheck-suite", __version__, _short(ours)),
        Version(
            "torch",
            torch and (f"{torch} on {accelerator}" if accelerator else torch),
            _short(Path(trial["path"]).parent) if trial.get("path") else None,
        ),
        *(Version(name, _version_of(name)) for name in dict.fromkeys(["numpy", *needed])),
    ]


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _install(extra: str) -> str:
    return f"pip install 'gradcheck-suite[{extra}]'"


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _short(path: Path) -> str:
    """Return a path without the name of the user, who may show the output to others."""
    try:
        return f"~/{path.relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):
        return path.as_posix()


_CHECKS: Final[Mapping[str, Callable[[Path, str, Mapping[str, Any]], Check]]] = {
    "lint": _lint,
    "run-time": _run_time,
    "pytest": _pytest,
    "settings": _settings,
    "pre-commit": _pre_commit,
    "cache": _cache,
    "terminal": _terminal,
    **{name: _extra(name) for name in _EXTRAS},
}
PARTS: Final = tuple(_CHECKS)
_WITHOUT_IMPORT: Final = {
    name: _extra(name, imports=False)
    for name in ("lightning", "transformers", "accelerate", "ignite")
}
"""Frameworks, each of which takes longer to import than all else here: who wants that names it."""
