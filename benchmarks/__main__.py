"""Run every benchmark and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Result, as_markdown, from_json, machine

NAMES = (
    "audit_overhead",
    "audit_corruption",
    "audit_writers",
    "lint_start",
    "full_jacobian",
    "graph_costs",
    "localize",
    "mutants",
    "plugin_start",
)
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> int:
    """Run each benchmark in a process of its own, so that none warms up another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names
    benchmarks = [result for name in names for result in _run(name)]
    page = "\n\n".join([_HEAD.format(machine=machine()), *map(as_markdown, benchmarks)]) + "\n"
    print(page)
    if set(names) == set(NAMES):
        PAGE.write_text(page, encoding="utf-8")
    return 0 if all(benchmark.met for benchmark in benchmarks) else 1


def _run(name: str) -> tuple[Result, ...]:
    print(f"{name} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if not done.stdout:
        sys.exit(f"benchmarks.{name} printed no figures and exited with {done.returncode}")
    return from_json(done.stdout)


_HEAD = """\
# Benchmarks

Written by `make bench`; never edited by hand. Every time is a median over interleaved bursts in
one process, and every ratio is to the first row of its table, measured in the same round; the
quartiles show how noisy the machine was. Read the ratios: the times are of one small machine
({machine})."""


if __name__ == "__main__":
    sys.exit(main())
