"""How many seeded mistakes gradcheck-lint finds: mutants of training loops, modules and Functions.

Each operator makes one mistake in one place of a file. A mutant counts as found if the expected
rule reports something in the mutated function that it did not report before, with a line in the
loop, method or class that was mutated. Operators make no mutant that torch runs as the original
(see ``benchmarks.lint_mutants``).

What rules report in a function before anything is broken there is a false alarm, unless the
published judgement of these repositories says that it is a mistake of the repository.

    python -m benchmarks.lint_recall FOLDER ... [--state FILE] [--part 1/4] [--misses]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Scores, run_as_command
from benchmarks.lint_mutants import Mutant, mutants
from gradcheck_lint.engine import lint_source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_suite.findings import Finding

SOURCES = Path(__file__).parents[1] / "tests" / "data" / "lint_recall"
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant of a file."""

    operator: str
    code: str
    function: str
    line: int
    found: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a rule reports in a function before a mistake of its kind is made there."""

    code: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Tried:
    """The mutants of one file, and what was reported there before."""

    path: str
    outcomes: tuple[Outcome, ...]
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants of one operator were found."""

    operator: str
    code: str
    found: int
    total: int


def findings_in(source: str) -> tuple[Finding, ...]:
    """Return what the rules report of a source."""
    return lint_source(source.encode(), "sample.py")


def try_file(path: Path) -> Tried:
    """Make every mutant of a file and lint each."""
    text = path.read_text(encoding="utf-8", errors="ignore")
    try:
        made = list(mutants(text)) if "torch" in text else []
    except (SyntaxError, ValueError):
        made = []
    before = findings_in(text) if made else ()
    known = _counted(before)
    outcomes = [
        Outcome(
            mutant.operator,
            mutant.code,
            mutant.function,
            mutant.first,
            _is_found(mutant, findings_in(mutant.source), known),
        )
        for mutant in made
    ]
    return Tried(str(path), tuple(outcomes), tuple(_alarms(made, before)))


def _counted(findings: Iterable[Finding]) -> Counter[tuple[str, str]]:
    return Counter((finding.code, _function(finding)) for finding in findings)


def _function(finding: Finding) -> str:
    return (finding.location.function or "") if finding.location else ""


def _is_found(mutant: Mutant, after: Sequence[Finding], before: Counter[tuple[str, str]]) -> bool:
    own = [
        finding
        for finding in after
        if finding.code == mutant.code and _function(finding).endswith(mutant.function)
    ]
    now = _counted(own)
    return any(
        now[key] > before[key]
        and any(mutant.first <= line <= mutant.last for line in _lines(finding))
        for finding in own
        for key in [(finding.code, _function(finding))]
    )


def _lines(finding: Finding) -> Iterator[int]:
    for place in (finding.location, *(related.location for related in finding.related)):
        if place is not None:
            yield place.line


def _alarms(made: Sequence[Mutant], before: Sequence[Finding]) -> Iterator[Alarm]:
    """Yield what the operators' own rules report in functions that are still whole."""
    codes = {mutant.code for mutant in made}
    places = {mutant.function for mutant in made}
    for finding in before:
        if finding.code in codes and finding.location is not None:
            function = _function(finding)
            if any(function.endswith(place) for place in places):
                yield Alarm(finding.code, function, finding.location.line)


def scores_of(tried: Iterable[Tried]) -> list[Score]:
    """Return the share of mutants found, by operator."""
    total: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for file in tried:
        for outcome in file.outcomes:
            key = (outcome.operator, outcome.code)
            total[key] += 1
            found[key] += outcome.found
    return [Score(*key, found[key], total[key]) for key in sorted(total)]


def score(paths: Iterable[Path]) -> list[Score]:
    """Return the share of mutants found in these files, by operator."""
    return scores_of(map(try_file, paths))


def run(arguments: argparse.Namespace) -> Scores:
    """Mutate every file below some folders and count what is found."""
    part, parts = map(int, arguments.part.split("/"))
    paths = sorted(path for folder in arguments.folders for path in folder.rglob("*.py"))
    paths = paths[part - 1 :: parts]
    known = _remembered(arguments.state)
    tried = []
    for path in paths:
        file = known.get(str(path))
        if file is None:
            file = try_file(path)
            if arguments.state is not None:
                with arguments.state.open("a") as state:
                    state.write(json.dumps(asdict(file)) + "\n")
        tried.append(file)
    if arguments.misses:
        for file in tried:
            for outcome in file.outcomes:
                if not outcome.found:
                    place = f"{file.path}:{outcome.line} {outcome.function}"
                    print("missed:", outcome.operator, outcome.code, place, file=sys.stderr)
    return _scores(tried, _true_places())


def _remembered(state: Path | None) -> dict[str, Tried]:
    """Return what an earlier run that was stopped has written down."""
    if state is None or not state.exists():
        return {}
    files = {}
    for line in state.read_text().splitlines():
        raw = json.loads(line)
        outcomes = tuple(Outcome(**outcome) for outcome in raw["outcomes"])
        alarms = tuple(Alarm(**alarm) for alarm in raw["alarms"])
        files[raw["path"]] = Tried(raw["path"], outcomes, alarms)
    return files


def _scores(tried: Sequence[Tried], judged: Sequence[tuple[str, str, int]]) -> Scores:
    rows = [(row.operator, row.code, row.found, row.total) for row in scores_of(tried)]
    found, total = sum(row[2] for row in rows), sum(row[3] for row in rows)
    alarms = [(file.path, alarm) for file in tried for alarm in file.alarms]
    false = [
        (path, alarm)
        for path, alarm in alarms
        if not any(
            path.endswith(place) and (code, line) == (alarm.code, alarm.line)
            for place, code, line in judged
        )
    ]
    for path, alarm in false:
        print("before:", alarm.code, f"{path}:{alarm.line}", alarm.function, file=sys.stderr)
    rows.append(("all", "", found, total))
    rows.append(("mistakes of the repository itself", "", len(alarms) - len(false), len(tried)))
    rows.append(("false alarms before any mutation", "", len(false), len(tried)))
    return Scores(
        title="Seeded mistakes in training loops, modules and Functions that gradcheck-lint finds",
        command="python -m benchmarks.lint_recall",
        columns=("mistake", "rule", "found", "of"),
        rows=tuple(rows),
        goal=f"at least {GOAL:.0%} found, no false alarm before ({found / max(total, 1):.1%})",
        met=bool(total) and found >= GOAL * total and not false,
    )


def _true_places() -> list[tuple[str, str, int]]:
    """Return where the judged repositories hold mistakes of their own."""
    data = Path(__file__).with_name("lint_precision.json")
    if not data.exists():
        return []
    judged = json.loads(data.read_text())["findings"]
    return [(one["path"], one["code"], one["line"]) for one in judged if one["right"]]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", type=Path, default=[SOURCES], metavar="FOLDER")
    parser.add_argument("--misses", action="store_true", help="name what was not found")
    parser.add_argument("--state", type=Path, help="write down each file, and go on from there")
    parser.add_argument("--part", default="1/1", help="every fourth file: 1/4, 2/4, ...")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
