"""Lint every Python file of this interpreter twice, and sources that a fuzzer has spoilt.

A crash, a failure of the linter or a second answer that differs from the first is a defect. The
two runs have different hash seeds, so that nothing may depend on the order of a set.

    python -m benchmarks.lint_robustness [DIRECTORY ...] [--fuzz MINUTES] [--part 1/4]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_lint.engine import MARK
from gradcheck_lint.failures import FAILED_CODE
from gradcheck_lint.tasks import Task
from gradcheck_lint.workers import perform_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIECES = (
    b"(", b")", b"[", b"]", b":", b",", b"\n", b"    ", b"\t", b"'''", b'"', b"#", b"\\", b"\x00",
    b"\xff", b"\xc3\xa9", b"async ", b"await ", b"yield ", b"lambda: ", b"*", b"**", b"=", b":=",
    b"del ", b"with ", b"for x in y:", b"while 1:", b"try:", b"finally:", b"match x:", b"case _:",
    b"return ", b"global w\n", b"loss.backward()", b"opt.step()", b"w += 1", b"@torch.no_grad()\n",
    b"f'{x!r:>{n}}'", b"class A(torch.autograd.Function):", b"\x0c", b"\r", b"\xef\xbb\xbf",
)  # fmt: skip


def main() -> int:
    """Run the sweep and the fuzzer, print what they saw, and return 1 if there was a defect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIRECTORY")
    parser.add_argument("--fuzz", type=float, default=10, metavar="MINUTES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="stop after so many files")
    parser.add_argument("--part", default="1/1", help="every fourth file: 1/4, 2/4, ...")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    directories = arguments.directories or [
        Path(sysconfig.get_path("purelib")),
        Path(sysconfig.get_path("stdlib")),
    ]
    files = [path for folder in directories for path in sorted(folder.rglob("*.py"))]
    part, parts = map(int, arguments.part.split("/"))
    files = [path for path in files if path.is_file()][part - 1 : arguments.limit : parts]
    defects = _sweep(files, jobs=arguments.jobs) if files else 0
    defects += _fuzz(files, minutes=arguments.fuzz, seed=arguments.seed, jobs=arguments.jobs)
    return 1 if defects else 0


def _sweep(files: Sequence[Path], *, jobs: int) -> int:
    """Lint all files twice, each with a mark so that none is passed over unread."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, file in enumerate(files):
            source = file.read_bytes()
            # The words that one rule asks for, so that the file is parsed and read.
            (folder / f"{number}.py").write_bytes(source + b"\n# torch, for .eval()\n")
        command = [sys.executable, "-m", "gradcheck_lint", "--isolated", "--no-cache", f"-j{jobs}"]
        digests = []
        for seed in ("1", "2"):
            done = subprocess.run(
                [*command, "--output-format=json", "."],
                cwd=folder,
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=False,
            )
            digests.append(hashlib.sha256(done.stdout).hexdigest())
            print(f"{len(files):,} files: status {done.returncode}")
            print(done.stderr.decode(errors="replace"), end="")
            if done.returncode not in {0, 1}:
                return 1
    print("the same twice" if digests[0] == digests[1] else "NOT the same twice")
    return int(digests[0] != digests[1])


def _fuzz(files: Sequence[Path], *, minutes: float, seed: int, jobs: int) -> int:
    """Lint spoilt sources until the time is up; workers outlive what kills one of them."""
    chance = random.Random(seed)
    torch_files = [file for file in files if MARK in file.read_bytes()]
    until = time.monotonic() + 60 * minutes

    def tasks() -> Iterator[Task]:
        number = 0
        while torch_files and time.monotonic() < until:
            number += 1
            source = spoil(chance.choice(torch_files).read_bytes()[:20_000], chance)
            yield Task(f"{number}.py", source + b"\n# torch\n", None)

    seen, failures = 0, 0
    for task, outcome in perform_all(tasks(), workers=jobs):
        seen += 1
        failed = [finding for finding in outcome.findings if finding.code == FAILED_CODE]
        if failed:
            failures += 1
            kept = Path(tempfile.mkdtemp()) / task.path
            kept.write_bytes(task.source)
            print(f"{kept}: {failed[0].message}")
    print(f"{seen:,} spoilt sources, {failures} failures")
    return failures


def spoil(source: bytes, chance: random.Random) -> bytes:
    """Return source with a few things put in, taken out, doubled or moved."""
    data = bytearray(source)
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.randint(0, 80))
        part = bytes(data[start:end])
        match chance.randrange(4):
            case 0:
                data[start:start] = chance.choice(_PIECES) * chance.choice((1, 1, 1, 3, 300))
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = part
            case _:
                del data[start:end]
                place = chance.randrange(len(data) + 1)
                data[place:place] = part
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
