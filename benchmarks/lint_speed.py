"""How fast gradcheck-lint reads, in CPU seconds, beside other linters on the same files.

All contenders run one after another in each round, each in a process of its own on one core, over
copies of the same files. ast.parse runs beside the contenders, to compare with the machine on which
the goals were set; they are of this machine all the same. A rival that is not named is left out:

    python -m benchmarks.lint_speed --corpus DIR --preflight BIN --torchfix BIN --ruff BIN

dslinter is a plugin of an old pylint and named by that pylint's command; it installs on Python 3.10
and older.
"""

from __future__ import annotations

import ast
import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Scores, run_as_command
from gradcheck_lint.discovery import find_files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

COLD_GOAL = 10_000
WARM_GOAL = 1_000_000
MIXED_GOAL = 15_000
PARSED = 119_020
"""Lines that ast.parse read in a CPU second where the goals were set: of 87 files that mention
torch, with Python 3.11.7."""
WORKERS_GOAL = 1.7
MEMORY_GOAL_MB = 250
_SHARED = 300
"""So many files, at least, are shared out to workers: to start them is then a small part of it."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What one contender did: medians over the rounds."""

    name: str
    lines: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def rate(self) -> float:
        """Return lines for each CPU second."""
        return self.lines / self.cpu_seconds


def run(arguments: argparse.Namespace) -> Scores:
    """Measure gradcheck-lint and the rivals that are named."""
    corpus = arguments.corpus.absolute()
    files = [Path(found.path) for found in find_files([str(corpus)], is_excluded=_nothing)]
    if not files:
        sys.exit(f"there is no Python file below {corpus}")
    torch_files = [file for file in files if b"torch" in file.read_bytes()]
    sample = torch_files[:: max(1, len(torch_files) // arguments.files)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies = _copied(sample, folder / "sample")
        speeds = _side_by_side(arguments, copies)
        lines = _count(files)
        rounds = [_run(_own(corpus), folder) for _ in range(arguments.rounds)]
        mixed = _speed("gradcheck-lint, mixed corpus", lines, rounds)
        remembering = [*_OWN, "--cache-dir", str(folder / "cache"), str(corpus)]
        _run(remembering, folder)
        rounds = [_run(remembering, folder) for _ in range(arguments.rounds)]
        warm = _speed("gradcheck-lint, remembered", lines, rounds)
        many = torch_files[:: max(1, len(torch_files) // _SHARED)]
        copies = _copied(many, folder / "shared")
        one, two = [], []
        for _ in range(arguments.rounds):
            one.append(_run(_own(copies, jobs=1), folder))
            two.append(_run(_own(copies, jobs=2), folder))
        alone, shared = (
            _speed(f"gradcheck-lint -j{n}", _count(many), seen) for n, seen in ((1, one), (2, two))
        )
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return _scores([*speeds, mixed, warm, alone, shared], speeds[0], mixed, warm, memory)


def _scores(
    speeds: Sequence[Speed], cold: Speed, mixed: Speed, warm: Speed, memory: float
) -> Scores:
    ratio = speeds[-2].wall_seconds / speeds[-1].wall_seconds
    parsed = next(speed.rate for speed in speeds if speed.name == _PARSING)
    slower = PARSED / parsed
    met = (
        cold.rate >= COLD_GOAL
        and mixed.rate >= MIXED_GOAL
        and warm.rate >= WARM_GOAL
        and ratio >= WORKERS_GOAL
        and memory <= MEMORY_GOAL_MB
    )
    rows = [
        (speed.name, speed.lines, speed.cpu_seconds, round(speed.rate), cold.rate / speed.rate)
        for speed in speeds
    ]
    return Scores(
        title="Speed of gradcheck-lint in CPU time, the first row over files that mention torch",
        command="python -m benchmarks.lint_speed",
        columns=("", "lines", "CPU s", "lines per CPU s", "times slower"),
        rows=tuple(rows),
        goal=(
            f"cold {COLD_GOAL:,} lines per CPU second, mixed {MIXED_GOAL:,} and remembered "
            f"{WARM_GOAL:,} (at the rate where ast.parse reads {PARSED:,}, this would be "
            f"{cold.rate * slower:,.0f}, {mixed.rate * slower:,.0f} and "
            f"{warm.rate * slower:,.0f}, which meets no goal by itself); two workers "
            f"{WORKERS_GOAL} times as fast ({ratio:.2f}); at most {MEMORY_GOAL_MB} MB "
            f"({memory:.0f} MB)"
        ),
        met=met,
    )


_PARSING = "ast.parse alone"
_DSLINTER_RULES = "R5508,W5507,W5511,W5512,W5514,W5516,W5517,W5521"  # those about PyTorch
_OWN = (sys.executable, "-m", "gradcheck_lint", "--isolated", "--no-gitignore", "--statistics")


def _own(path: Path, jobs: int = 1) -> list[str]:
    return [*_OWN, "--no-cache", f"-j{jobs}", str(path)]


def _nothing(path: str, *, is_directory: bool) -> bool:
    del path, is_directory
    return False


def _options(parser: argparse.ArgumentParser) -> None:
    site = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    parser.add_argument("--corpus", type=Path, default=site, help="a directory of Python files")
    parser.add_argument("--files", type=int, default=60, help="torch files for the rivals")
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("preflight", "torchfix", "flake8", "dslinter", "ruff"):
        parser.add_argument(
            f"--{name}", type=_command, metavar="BIN", help=f"the command of {name}"
        )


def _command(text: str) -> Path:
    # Not resolved: an environment's python is a link, and runs as what it is called.
    return Path(text).absolute()


def _copied(files: Sequence[Path], folder: Path) -> Path:
    """Copy files into one directory: some rivals read nothing outside the working directory."""
    for number, file in enumerate(files):
        target = folder / str(number) / file.name
        target.parent.mkdir(parents=True)
        target.write_bytes(file.read_bytes())
    return folder


def _side_by_side(arguments: argparse.Namespace, copies: Path) -> list[Speed]:
    everything = [str(path) for path in sorted(copies.rglob("*.py"))]
    commands = {"gradcheck-lint": _own(copies)}
    if arguments.preflight:
        commands["torch-preflight"] = [str(arguments.preflight), "check", str(copies)]
    if arguments.torchfix:
        commands["TorchFix"] = [str(arguments.torchfix), "--select=ALL", "-j1", str(copies)]
    if arguments.flake8:
        options = ["--isolated", "--select=TOR", "-j1"]
        commands["flake8 + TorchFix"] = [str(arguments.flake8), *options, *everything]
    if arguments.dslinter:
        options = ["--load-plugins=dslinter", "--disable=all", f"--enable={_DSLINTER_RULES}", "-j1"]
        commands["dslinter"] = [str(arguments.dslinter), *options, *everything]
    if arguments.ruff:
        options = ["check", "--isolated", "--no-cache", "--select=ALL", "-q"]
        commands["ruff (no torch rules)"] = [str(arguments.ruff), *options, str(copies)]
    sources = [Path(name).read_bytes() for name in everything]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*commands, _PARSING)}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            times[name].append(_run(command, copies))
            times[_PARSING].append(_parse(sources))
    lines = _count([Path(name) for name in everything])
    return [_speed(name, lines, seen) for name, seen in times.items()]


def _count(files: Sequence[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def _run(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds of a command and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start


def _parse(sources: Sequence[bytes]) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds that ast.parse takes for them, one by one."""
    cpu, start = time.process_time(), time.perf_counter()
    for source in sources:
        with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    return time.process_time() - cpu, time.perf_counter() - start


def _speed(name: str, lines: int, seen: Sequence[tuple[float, float]]) -> Speed:
    cpu, wall = (statistics.median(column) for column in zip(*seen, strict=True))
    return Speed(name, lines, cpu, wall)


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
