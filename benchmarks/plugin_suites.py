"""Audit every test of public libraries: do all still pass, what is found, and what does it cost?

Each suite runs bare and audited, in turn. The sources are clones of the repositories at the commits
that ``suite_recipes`` names, in one folder; what they need is installed beside gradcheck-suite.

    python -m benchmarks.plugin_suites --sources FOLDER [--state FOLDER] [NAME ...]
    python -m benchmarks.plugin_suites --page     # writes docs/pytest-suites.md from the state
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from benchmarks.harness import Scores, run_as_command
from benchmarks.suite_recipes import RECIPES, Judgement, Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

GOAL = 1.15
_ENOUGH = 3
_PAGE = Path(__file__).parents[1] / "docs" / "pytest-suites.md"
_BARE = ("-p", "no:gradcheck_suite")
_AUDITED = ("--gradcheck-suite-audit=error", "--gradcheck-suite-no-summary")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a suite.

    Attributes:
        tests: the outcome of each test: "passed", "failed" or "skipped".
        cpu_seconds: of the whole process, with its imports.
        test_seconds: of the tests alone, as pytest has timed them.
        findings: what the audit has found, as in ``--gradcheck-suite-report=FILE.json``.
        remarks: what it could not look at.
    """

    tests: dict[str, str]
    cpu_seconds: float
    test_seconds: float
    findings: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]


def run_suite(recipe: Recipe, source: Path, *, audited: bool, python: str) -> Outcome:
    """Run the tests of one library once."""
    with tempfile.TemporaryDirectory() as folder:
        report, junit = Path(folder, "report.json"), Path(folder, "junit.xml")
        mine = (*_AUDITED, f"--gradcheck-suite-report={report}") if audited else _BARE
        before = _children_cpu_seconds()
        done = subprocess.run(
            [
                *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
                *(f"--junitxml={junit}", "-o", "junit_family=xunit2", *mine, *recipe.arguments),
            ],
            cwd=source,
            env={
                # An installed package has its bytecode, whatever this shell says of writing any.
                **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
                **dict(recipe.environment),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(source / recipe.path),
            },
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = _children_cpu_seconds() - before
        if not junit.exists() or " passed" not in done.stdout:
            sys.exit(f"{recipe.name}: pytest exited with {done.returncode}:\n{done.stdout}")
        cases = list(ElementTree.parse(junit).iter("testcase"))
        document = json.loads(report.read_text()) if audited else {}
    return Outcome(
        tests=dict(map(_outcome_of, cases)),
        cpu_seconds=seconds,
        test_seconds=sum(float(case.get("time", 0)) for case in cases),
        findings=tuple(document.get("findings", ())),
        remarks=tuple(document.get("not_covered", ())),
    )


def _outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    kinds = {child.tag for child in case}
    bad = next((kind for kind in ("failure", "error") if kind in kinds), None)
    outcome = "failed" if bad else "skipped" if "skipped" in kinds else "passed"
    return f"{case.get('classname')}::{case.get('name')}", outcome


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What the runs of one suite have shown."""

    passed: int
    failed: int
    skipped: int
    broken: tuple[str, ...]
    ratio: float
    ratio_of_tests: float
    rounds: int
    cpu_seconds: float
    findings: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]


def measure_suite(recipe: Recipe, source: Path, *, rounds: int, python: str) -> SuiteResult:
    """Run a suite bare and audited in turn, the order changing from round to round."""
    runs: dict[bool, list[Outcome]] = {False: [], True: []}
    for number in range(rounds):
        for audited in (False, True) if number % 2 == 0 else (True, False):
            outcome = run_suite(recipe, source, audited=audited, python=python)
            runs[audited].append(outcome)
            print(
                f"{recipe.name} round {number + 1} {'audited' if audited else 'bare':7} "
                f"{outcome.cpu_seconds:7.2f} s, tests {outcome.test_seconds:7.2f} s, "
                f"{_counts(outcome)}, {len(outcome.findings)} findings",
                file=sys.stderr,
                flush=True,
            )
    bare, audited_runs = runs[False], runs[True]
    # A test counts as passing where it passes in every bare run: flaky ones prove nothing.
    steady = [test for test in bare[0].tests if all(r.tests.get(test) == "passed" for r in bare)]
    broken = [test for test in steady if any(r.tests.get(test) != "passed" for r in audited_runs)]
    counts = list(bare[0].tests.values())
    pairs = list(zip(bare, audited_runs, strict=True))
    return SuiteResult(
        passed=len(steady),
        failed=counts.count("failed"),
        skipped=counts.count("skipped"),
        broken=tuple(broken),
        ratio=statistics.median(a.cpu_seconds / b.cpu_seconds for b, a in pairs),
        ratio_of_tests=statistics.median(a.test_seconds / b.test_seconds for b, a in pairs),
        rounds=rounds,
        cpu_seconds=statistics.median(r.cpu_seconds for r in bare),
        findings=audited_runs[0].findings,
        remarks=audited_runs[0].remarks,
    )


def _counts(outcome: Outcome) -> str:
    values = list(outcome.tests.values())
    return ", ".join(f"{values.count(k)} {k}" for k in ("passed", "failed", "skipped"))


def judgement_of(recipe: Recipe, finding: dict[str, Any]) -> Judgement | None:
    """Return what a reader of the library's code has said of a finding."""
    for judgement in recipe.judgements:
        if judgement.code == finding["code"] and judgement.where in _place_of(finding):
            return judgement
    return None


def _place_of(finding: dict[str, Any]) -> str:
    path = finding.get("path")
    return f"{path}:{finding.get('line')}" if path else "no line"


def run(options: argparse.Namespace) -> Scores:
    """Measure the suites that were asked for, and tell of all whose results are kept."""
    state = Path(options.state)
    state.mkdir(parents=True, exist_ok=True)
    if options.sources is not None:
        for recipe in _chosen(options.names):
            result = measure_suite(
                recipe,
                Path(options.sources) / recipe.name,
                rounds=options.rounds,
                python=options.python,
            )
            text = json.dumps({"commit": recipe.commit, **asdict(result)}, indent=1)
            (state / f"{recipe.name}.json").write_text(text, encoding="utf-8")
    results = _kept(state)
    if options.page:
        _PAGE.write_text(_page(results), encoding="utf-8")
    return _scores(results)


def _chosen(names: Sequence[str]) -> list[Recipe]:
    known = {recipe.name: recipe for recipe in RECIPES}
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"no recipe for {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [recipe for name, recipe in known.items() if not names or name in names]


def _kept(state: Path) -> list[tuple[Recipe, SuiteResult]]:
    kept = []
    for recipe in RECIPES:
        file = state / f"{recipe.name}.json"
        if not file.exists():
            continue
        figures = json.loads(file.read_text(encoding="utf-8"))
        if figures.pop("commit") == recipe.commit:
            kept.append((recipe, SuiteResult(**figures)))
    return kept


def _scores(results: Sequence[tuple[Recipe, SuiteResult]]) -> Scores:
    rows = []
    met = True
    within = []
    for recipe, result in results:
        judged = [judgement_of(recipe, finding) for finding in result.findings]
        errors = [
            j for f, j in zip(result.findings, judged, strict=True) if f["severity"] == "error"
        ]
        false = sum(j is None or not j.right for j in errors)
        rows.append(
            (
                recipe.name,
                result.passed,
                len(result.broken),
                len(errors),
                false,
                len(result.findings) - len(errors),
                f"{result.cpu_seconds:.0f}",
                f"{result.ratio:.2f}",
                f"{result.ratio_of_tests:.2f}",
                result.rounds,
            )
        )
        met = met and not false and not _unmeant(recipe, result)
        if result.ratio <= GOAL:
            within.append(recipe.name)
    return Scores(
        title="Audit of every test of public libraries",
        command="python -m benchmarks.plugin_suites --sources FOLDER",
        columns=(
            *("suite", "tests that pass", "of these fail audited", "errors found"),
            *(
                "of these false",
                "milder findings",
                "CPU s",
                "ratio",
                "ratio of tests alone",
                "rounds",
            ),
        ),
        rows=tuple(rows),
        goal=(
            "in every library, tests that pass without pass audited, save for those that a right "
            f"error fails, and no error is false; in three or more the ratio is at most {GOAL} "
            f"({', '.join(within) or 'in none'})"
        ),
        met=met and len(within) >= _ENOUGH,
    )


def _unmeant(recipe: Recipe, result: SuiteResult) -> list[str]:
    """Return the tests that fail audited though no right error was found in them."""
    blamed = {
        test
        for finding in result.findings
        if finding["severity"] == "error"
        and (judgement := judgement_of(recipe, finding)) is not None
        and judgement.right
        for test in finding["evidence"].get("tests", ())
    }
    return [test for test in result.broken if not any(_same_test(test, b) for b in blamed)]


def _same_test(junit_name: str, nodeid: str) -> bool:
    path, _, rest = nodeid.partition("::")
    dotted = f"{path.removesuffix('.py').replace('/', '.')}.{rest.replace('::', '.')}"
    return junit_name.replace("::", ".") == dotted


def _page(results: Sequence[tuple[Recipe, SuiteResult]]) -> str:
    from benchmarks.harness import as_markdown

    parts = [_HEAD, as_markdown(_scores(results))]
    for recipe, result in results:
        what = (
            f"<{recipe.repository}> at `{recipe.commit[:12]}`, "
            f"`pytest {' '.join(recipe.arguments)}`: {result.passed} tests pass, "
            f"{result.failed} fail without the audit, {result.skipped} are skipped."
        )
        lines = [f"## {recipe.name}", what]
        if recipe.note:
            lines += [recipe.note, ""]
        lines += [f"- {line}" for line in _told(recipe, result)]
        lines += [f"- Not looked at: {_short(remark)}" for remark in result.remarks]
        if not result.findings and not result.remarks:
            lines.append("Nothing found.")
        parts.append("\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _told(recipe: Recipe, result: SuiteResult) -> list[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in result.findings:
        judgement = judgement_of(recipe, finding)
        said = "not judged" if judgement is None else judgement.verdict
        groups.setdefault((finding["code"], said), []).append(finding)
    return [
        f"{found[0]['severity']} {code} {found[0]['rule']} at "
        f"{_listed([_place_of(f) for f in found])}: {said}"
        for (code, said), found in groups.items()
    ]


def _listed(places: list[str]) -> str:
    most = 6
    unique = list(dict.fromkeys(f"`{place}`" for place in places))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more


def _short(text: str) -> str:
    most = 200
    return text if len(text) <= most else f"{text[:most]}…"


_HEAD = """\
# Whole-suite mode on public libraries

Written by `python -m benchmarks.plugin_suites --page`; never edited by hand. Each test of a library
runs under `--gradcheck-suite-audit=error`. *Ratio* is the CPU time of the whole run, audited to
bare, the median over rounds in turn; *ratio of tests alone* is of the wall-clock time in the
tests, without imports and collection, and on a busy machine says little. One round is no
measurement. Each finding was judged by reading the test and the library's code."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites to run; all by default")
    parser.add_argument("--sources", help="the folder of the clones; without it nothing is run")
    parser.add_argument("--state", default=".cache/plugin_suites", help="where results are kept")
    parser.add_argument("--rounds", type=int, default=3, help="bare and audited runs of each suite")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to run them with")
    parser.add_argument("--page", action="store_true", help=f"write docs/{_PAGE.name}")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
