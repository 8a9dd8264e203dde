"""How many seeded mistakes gradcheck-lint finds: mutants of training loops and Functions.

Each operator makes one mistake in one place of a file that has none of that kind there. A mutant
counts as found if the expected rule reports something in the mutated function that it did not
report before. The folder of sources is an argument; the default is a handful of loops that are
shipped with the tests.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lint_mutants import Mutant, mutants
from gradcheck_lint.engine import lint_source

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


def score(paths: list[Path], *, misses: list[Mutant] | None = None) -> list[Score]:
    """Return the share of mutants found, by operator."""
    total: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="ignore")
        try:
            made = list(mutants(text)) if "torch" in text else []
        except (SyntaxError, ValueError):
            continue
        before = found_in(text) if made else Counter()
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


def main() -> int:
    """Print the table by operator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SOURCES)
    parser.add_argument("--misses", action="store_true", help="print what was not found")
    arguments = parser.parse_args()
    misses: list[Mutant] = []
    scores = score(sorted(arguments.folder.rglob("*.py")), misses=misses)
    print(f"{'operator':32} {'rule':8} {'found':>6} {'of':>6}")
    for row in scores:
        print(f"{row.operator:32} {row.code:8} {row.found:6} {row.total:6}")
    found, total = sum(row.found for row in scores), sum(row.total for row in scores)
    print(f"{'all':32} {'':8} {found:6} {total:6}  {found / max(total, 1):.1%}")
    if arguments.misses:
        for miss in misses:
            print(miss.operator, miss.code, miss.function)
    return 0 if total and found >= GOAL * total else 1


if __name__ == "__main__":
    sys.exit(main())
