"""How many seeded mistakes gradcheck-lint finds: mutants of training loops and Functions.

Each operator makes one mistake in one place of a file that has none of that kind there. A mutant
counts as found if the expected rule reports something in the mutated function that it did not
report before. The folder of sources is an argument; the default is a handful of loops that are
shipped with the tests.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Scores, run_as_command
from benchmarks.lint_mutants import Mutant, mutants
from gradcheck_lint.engine import lint_source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SOURCES = Path(__file__).parents[1] / "tests" / "data" / "lint_recall"
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants of one operator were found."""

    operator: str
    code: str
    found: int
    total: int


def found_in(source: str) -> Counter[tuple[str, str]]:
    """Return how often each rule reports something in each function."""
    findings = lint_source(source.encode(), "sample.py")
    return Counter(
        (finding.code, (finding.location.function or "") if finding.location else "")
        for finding in findings
    )


def score(
    paths: list[Path],
    *,
    misses: list[Mutant] | None = None,
    alarms: list[str] | None = None,
) -> list[Score]:
    """Return the share of mutants found, by operator.

    ``misses`` takes the mutants that were not found; ``alarms`` what is reported in the functions
    to be mutated before anything is broken there, which is a false alarm or a mistake of the
    corpus: a person has to judge.
    """
    total: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="ignore")
        try:
            made = list(mutants(text)) if "torch" in text else []
        except (SyntaxError, ValueError):
            continue
        before = found_in(text) if made else Counter()
        if alarms is not None:
            alarms.extend(_alarms(path, made, before))
        for mutant in made:
            key = (mutant.operator, mutant.code)
            after = found_in(mutant.source)
            is_found = any(
                count > before[code, function]
                for (code, function), count in after.items()
                if code == mutant.code and function.endswith(mutant.function)
            )
            total[key] += 1
            found[key] += is_found
            if not is_found and misses is not None:
                misses.append(Mutant(mutant.operator, mutant.code, f"{path}:{mutant.function}", ""))
    return [Score(*key, found[key], total[key]) for key in sorted(total)]


def _alarms(path: Path, made: list[Mutant], before: Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield what the operators' own rules report in functions that are still whole."""
    codes = {mutant.code for mutant in made}
    places = {mutant.function for mutant in made}
    for (code, function), count in sorted(before.items()):
        if code in codes and any(function.endswith(place) for place in places):
            yield f"{code} {path}:{function} {count}"


def run(arguments: argparse.Namespace) -> Scores:
    """Mutate every file below a folder and count what is found."""
    misses: list[Mutant] = []
    alarms: list[str] = []
    paths = sorted(path for folder in arguments.folders for path in folder.rglob("*.py"))
    scores = score(paths, misses=misses, alarms=alarms)
    if arguments.misses:
        for miss in misses:
            print("missed:", miss.operator, miss.code, miss.function, file=sys.stderr)
    for alarm in alarms:
        print("before any mutation:", alarm, file=sys.stderr)
    found, total = sum(row.found for row in scores), sum(row.total for row in scores)
    rows = [(row.operator, row.code, row.found, row.total) for row in scores]
    rows.append(("all", "", found, total))
    rows.append(("reported before any mutation", "", len(alarms), len(paths)))
    return Scores(
        title="Seeded mistakes in training loops, modules and Functions that gradcheck-lint finds",
        command="python -m benchmarks.lint_recall",
        columns=("mistake", "rule", "found", "of"),
        rows=tuple(rows),
        goal=f"at least {GOAL:.0%} found, nothing reported before ({found / max(total, 1):.1%})",
        met=bool(total) and found >= GOAL * total and not alarms,
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", type=Path, default=[SOURCES], metavar="FOLDER")
    parser.add_argument("--misses", action="store_true", help="name what was not found")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
