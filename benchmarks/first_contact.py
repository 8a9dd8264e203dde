"""Run sets of mistakes that were written blind, and say how many the tool names.

A set in tests/data/first_contact was written from the README and the catalogue alone, after public
reports, before the tool had seen any of it. What counts is the first run, which is kept in
``first.json`` beside the set and never made again; the set may then be used to mend mechanisms, and
what is named today stands beside it.

    python -m benchmarks.first_contact [SET ...] [--first] [--lint] [NAME ...]

With ``--lint`` the linter reads the sets, in place of runs; what it said first is kept in
``first_lint.json``.

Each program runs in a process of its own, forked where torch is loaded. A pair counts as named if a
warning or an error of its faulty program has a code that its author expects, or stands at a line
that its author would change and is not in the repaired program as well; as named at the line if it
stands there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import io
import json
import multiprocessing
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # what each program would load by itself, once for all of them

import gradcheck_suite as gs
from gradcheck_lint.engine import lint_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from gradcheck_suite.findings import Finding

_ROOT = Path(__file__).parents[1]
_SETS = _ROOT / "tests" / "data" / "first_contact"
_PAGE = _ROOT / "docs" / "first-contact.md"
_NOW = Path(__file__).parent / "first_contact.json"
_NOW_LINT = Path(__file__).parent / "first_contact_lint.json"
_FIRST, _FIRST_LINT = "first.json", "first_lint.json"
_LATER = "later_codes.json"
"""Codes that the catalogue had not when a set was written, and that name the cause of a pair: those
who made them say so. They count for what is named now, and never for the first contact."""
_LIMIT = 120.0
"""Seconds that one program may take. Chosen, far above the ten of a quiet machine."""

Result = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is named and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets, or pairs (default: all)")
    parser.add_argument("--first", action="store_true", help="keep this as a set's first contact")
    parser.add_argument("--lint", action="store_true", help="read them with the linter")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    arguments = parser.parse_args(argv)
    kept, first = (_NOW_LINT, _FIRST_LINT) if arguments.lint else (_NOW, _FIRST)
    look = _lint if arguments.lint else _run
    now = _read(kept)
    sets = sorted(_SETS.iterdir())
    names = [name for name in arguments.names if name not in {folder.name for folder in sets}]
    for folder in sets if not arguments.page else ():
        if folder.name in arguments.names or not arguments.names or names:
            result = run_set(folder, names, look, is_first=arguments.first)
            if names:
                continue
            if arguments.first:
                _write(folder / first, result)
            now[folder.name] = result
            _write(kept, now)
    _PAGE.write_text(page(_read(_NOW), _read(_NOW_LINT)), encoding="utf-8")
    return 0


def run_set(
    folder: Path, names: Sequence[str], look: Callable[[Path], Result], *, is_first: bool = False
) -> Result:
    """Run the pairs and the correct programs of a set, or read them."""
    pairs, clean = {}, {}
    later = {} if is_first else _read(folder / _LATER)
    for each in sorted((folder / "pairs").iterdir()):
        if not names or each.name in names:
            pairs[each.name] = _pair(each, look, later.get(each.name, ()))
            print(each.name, pairs[each.name]["verdict"], flush=True)
    for each in sorted((folder / "clean").iterdir()):
        if not names or each.name in names:
            told = look(each / "ok.py")
            clean[each.name] = told
            print(each.name, _briefly(told["findings"]) or "-", flush=True)
    return {"date": _today(), "commit": _commit(), "pairs": pairs, "clean": clean}


def _pair(folder: Path, look: Callable[[Path], Result], later: Sequence[str] = ()) -> Result:
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    buggy, fixed = look(folder / "buggy.py"), look(folder / "fixed.py")
    on_fixed = {each["code"] for each in fixed["findings"]}
    wanted = {*case["expect_codes"], *case["accept_codes"], *later}

    def is_near(line: int | None) -> bool:
        return line is not None and any(abs(line - bug) <= 1 for bug in case["bug_lines"])

    def names_it(each: Result) -> bool:
        near = is_near(each["line"]) or any(map(is_near, each["related"]))
        return each["code"] in wanted or (near and each["code"] not in on_fixed)

    hits = [each for each in buggy["findings"] if names_it(each)]
    loud = [each for each in hits if each["severity"] != "note"]
    at_line = any(is_near(each["line"]) for each in loud)
    verdict = "line" if at_line else "named" if loud else "note" if hits else "missed"
    seen_in_a_run = case["runtime_visible"] or "def target" in (folder / "buggy.py").read_text()
    return {
        "verdict": verdict,
        "visible": seen_in_a_run if look is _run else case["source_visible"],
        "what": case["what"],
        "source": case["source"],
        "buggy": buggy["findings"],
        "fixed": [each for each in fixed["findings"] if each["code"] not in wanted],
        "trouble": buggy["trouble"] or fixed["trouble"],
    }


def _lint(path: Path) -> Result:
    findings = lint_source(path.read_bytes(), str(path))
    return {"findings": [_plain(each, path) for each in findings], "trouble": None}


def _run(path: Path) -> Result:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_watch, args=(path, sender))
    process.start()
    sender.close()
    told: Result = {"findings": [], "trouble": f"took more than {_LIMIT:.0f} s, or died"}
    with contextlib.suppress(EOFError):
        if receiver.poll(_LIMIT):
            told = receiver.recv()
    process.kill()
    process.join()
    return told


def _watch(path: Path, answers: Connection) -> None:
    torch.set_num_threads(1)
    sys.argv = [str(path)]  # which it may parse
    trouble = None
    findings: list[Finding] = []
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    try:
        with quiet[0], quiet[1]:
            findings = _audited(path)
    except (Exception, SystemExit):  # noqa: BLE001 - told with its traceback
        trouble = traceback.format_exc()[-800:]
    answers.send({"findings": [_plain(each, path) for each in findings], "trouble": trouble})


def _audited(path: Path) -> list[Finding]:
    spec = importlib.util.spec_from_file_location(f"case_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with gs.audit(report=False) as session:
        spec.loader.exec_module(module)
        module.main()
    found = list(session.findings)
    if hasattr(module, "target"):
        found += gs.check_gradients(module.target, module.make_inputs()).findings
    return found


def _plain(finding: Finding, path: Path) -> Result:
    places = [finding.location, *(each.location for each in finding.related)]
    lines = [None if place is None or Path(place.path) != path else place.line for place in places]
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "line": lines[0],
        "related": [line for line in lines[1:] if line is not None],
        "message": finding.message,
    }


def _briefly(findings: Sequence[Result]) -> str:
    return ", ".join(f"{each['code']} {each['severity']} {each['line']}" for each in findings)


def page(run: dict[str, Result], read: dict[str, Result]) -> str:
    """Write the page from what is kept of runs and of reading."""
    kinds = (("in a run", _FIRST, run), ("in source", _FIRST_LINT, read))
    lines = [_HEAD, *_ROWS]
    for kind, file, now in kinds:
        for name, result in now.items():
            first = _read(_SETS / name / file)
            lines += [
                _row(f"{name}, {kind}", *each) for each in (("first", first), ("now", result))
            ]
    for kind, file, now in kinds:
        for name, result in now.items():
            lines += _details(f"{name}, {kind}", _read(_SETS / name / file), result)
    return "\n".join(lines) + "\n"


_HEAD = """\
# First contact

Written by `python -m benchmarks.first_contact`; never edited by hand. How much the audit and the
gradient checks find in a run, and the linter in source, of mistakes that nobody who works on the
tool had seen: written after public reports by authors who knew the README and the catalogue alone,
each pair of a faulty and a repaired program proved by running, beside correct programs that look
suspicious. A set is run once; that figure counts. Afterwards it may be used to mend mechanisms, and
what is found then is told as well, and proves less; it counts codes that came later, too.

*Visible* is what its author holds to be visible to a tool that watches the run, or checks the
gradient; in source, to a reader. *Errors* and *warnings* are correct programs, the repaired ones
included, with such a finding.
"""
_ROWS = (
    "| set | run | date | commit | visible | named | at the line | as a note | errors | warnings |",
    "|---|---|---|---|---:|---:|---:|---:|---:|---:|",
)


def _row(name: str, run: str, result: Result) -> str:
    pairs = [each for each in result["pairs"].values() if each["visible"]]
    verdicts = [each["verdict"] for each in pairs]
    named = verdicts.count("line") + verdicts.count("named")
    good = [*(each["findings"] for each in result["clean"].values())]
    good += [each["fixed"] for each in result["pairs"].values()]
    loud = [sum(_has(each, kind) for each in good) for kind in ("error", "warning")]
    return (
        f"| {name} | {run} | {result['date']} | {result['commit'][:7]} | {len(pairs)} "
        f"| {named} ({100 * named // max(len(pairs), 1)} %) | {verdicts.count('line')} "
        f"| {verdicts.count('note')} | {loud[0]} of {len(good)} | {loud[1]} |"
    )


def _has(findings: Sequence[Result], severity: str) -> bool:
    return any(each["severity"] == severity for each in findings)


def _details(name: str, first: Result, now: Result) -> list[str]:
    lines = [
        f"\n## {name}\n",
        "| mistake | first contact | now | after |",
        "|---|---|---|---|",
    ]
    for pair, result in now["pairs"].items():
        then = first["pairs"][pair]["verdict"]
        seen = "" if result["visible"] else " (not visible)"
        lines.append(
            f"| `{pair}`{seen}: {result['what']} | {then} | {result['verdict']} "
            f"| [report]({result['source']}) |"
        )
    wrong = [
        f"- `{program}`: {_briefly(loud)}"
        for program, findings in (
            *((f"{each}, repaired", pair["fixed"]) for each, pair in now["pairs"].items()),
            *((each, clean["findings"]) for each, clean in now["clean"].items()),
        )
        if (loud := [each for each in findings if each["severity"] != "note"])
    ]
    return [*lines, "\nOn correct programs, now:\n", *(wrong or ["nothing."])]


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
