"""How often the audit names the very line that overwrote a saved tensor, by every route.

Each case of the tests' bank runs as a loop of a few steps under default options, where a first
corruption arms the watch, and as code that runs once under ``watch_writers="from_start"``. Its
fixed twin writes after backward; nothing may be said of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    import argparse

    from tests.auditing.writers.bank import Case

COMMAND = "python -m benchmarks.audit_writers"
LEAST_EXACT = 0.95
LEAST_CASES = 60
STEPS = 4
MODES: dict[str, dict[str, Any]] = {
    "loop, default options": {"steps": STEPS},
    'once, watch_writers="from_start"': {"steps": 1, "watch_writers": "from_start"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses cases."""
    parser.add_argument("--only", metavar="TEXT", default="", help="cases with TEXT in their name")
    parser.add_argument("--misses", action="store_true", help="print what was said of each miss")


def run(arguments: argparse.Namespace) -> Scores:
    """Run every case and its twin in both modes."""
    if sys.gettrace() is not None:
        sys.exit("audit_writers: run it without a debugger or a coverage tool")
    cases = {name: case for name, case in _cases().items() if arguments.only in name}
    rows = []
    exact_enough = True
    for mode, options in MODES.items():
        exact = named = caught = noisy = 0
        for name, case in cases.items():
            findings = audited(case, fixed=False, **options)
            lines = [
                None if finding.location is None else (finding.location.path, finding.location.line)
                for finding in findings
                if finding.evidence.get("writer") is not None
            ]
            caught += bool(findings)
            named += bool(lines)
            right = len(findings) == 1 and [*map(_resolved, lines)] == [_resolved(case.line())]
            exact += right
            if not right and arguments.misses:
                print(f"{mode}: {name}: line {case.line()[1]}", file=sys.stderr)
                for finding in findings:
                    print(f"    {finding.code} {finding.message}", file=sys.stderr)
            twin = audited(case, fixed=True, **options)
            noisy += bool(twin)
            if twin and arguments.misses:
                print(f"{mode}: fixed {name}: {twin[0].message}", file=sys.stderr)
        rows.append((mode, len(cases), caught, named, exact, exact / max(len(cases), 1), noisy))
        exact_enough &= exact >= LEAST_EXACT * len(cases) and not noisy
    return Scores(
        title="The line that overwrote a saved tensor",
        command=COMMAND,
        columns=("", "cases", "caught", "named", "exact line", "share", "fixed twins spoken of"),
        rows=tuple(rows),
        goal=f"exact in at least {LEAST_EXACT:.0%} of at least {LEAST_CASES} cases, twins silent",
        met=exact_enough and len(cases) >= LEAST_CASES,
    )


def audited(case: Case, *, fixed: bool, steps: int, **options: Any) -> tuple[gs.Finding, ...]:
    """Return the findings on overwritten tensors of so many steps of a case."""
    torch.manual_seed(0)
    step = case.build(fixed)
    with warnings.catch_warnings(), gs.audit(report=False, **options) as session:
        warnings.simplefilter("ignore")
        for _ in range(steps):
            # As in a notebook: torch's own error ends the step, not the program.
            with contextlib.suppress(RuntimeError):
                step()
    return tuple(finding for finding in session.findings if finding.code.startswith("GCS10"))


def _resolved(line: tuple[str, int] | None) -> tuple[str, int] | None:
    return None if line is None else (os.path.realpath(line[0]), line[1])


def _cases() -> dict[str, Case]:
    # Under `python benchmarks/audit_writers.py` the tests are not on the path.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.auditing.writers import memory_routes, places, torch_routes
    from tests.auditing.writers.bank import CASES

    assert all((memory_routes, places, torch_routes))
    return CASES


if __name__ == "__main__":
    sys.exit(run_as_command(run, add_options))
