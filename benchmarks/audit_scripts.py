"""Run training scripts of public repositories with and without an audit, and list what it says.

The scripts are not part of this project. FOLDER holds a copy of each repository as OWNER+NAME at
the commit that ``audit_scripts.json`` names, PACKAGES what the scripts import besides torch
(``pip install --no-deps --target PACKAGES ...``; the list is in that file too). Data are synthetic,
of the real shapes. Each script runs in a fresh copy of its folder: bare, then under
``gradcheck-suite audit``. What the parameters are after each optimizer step, and the states of the
random generators at the end, must agree bit for bit.

What a person judged each finding to be lies in ``audit_scripts_judged.json``; ``--write`` makes
docs/audit-scripts.md of both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "docs" / "audit-scripts.md"
_PROBE = _HERE / "scripts_probe"
_COMMAND = "python -m benchmarks.audit_scripts FOLDER --packages PACKAGES"
_GOAL = "at least 25 scripts of 8 repositories: no false error, the same bits, the same exit status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one script is run.

    Attributes:
        name: what the table calls it.
        repository: OWNER/NAME.
        commit: the commit that was tried.
        folder: the folder it runs in, within the repository.
        script: the script, from there; ``-m NAME`` for a module.
        arguments: its own.
        steps: the optimizer step after which it is ended; 0 lets it run to its end.
        shims: what stands in for what: modules ``shim_NAME`` of scripts_probe.
        paths: folders of the repository that belong on ``sys.path``.
        files: data to be made first: a path from the folder, and what: ``pictures COUNT WIDTH
            HEIGHT``, ``words LINES``, ``folder`` or ``python CODE``.
        edits: file, old and new text: what would need a GPU or the network.
    """

    name: str
    repository: str
    commit: str
    folder: str = "."
    script: str
    arguments: tuple[str, ...] = ()
    steps: int = 0
    shims: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    edits: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one script.

    ``findings`` holds code, severity, place and message of each. ``same_output`` is None where
    only numbers differ, as where a script prints times.
    """

    name: str
    repository: str
    steps: int
    status: int
    audited_status: int
    same_bits: bool
    same_output: bool | None
    findings: list[dict[str, str]] = field(default_factory=list)
    error: str = ""


def recipes() -> list[Recipe]:
    """Read the committed table; what it lists as untried is left alone."""
    table = json.loads((_HERE / "audit_scripts.json").read_text(encoding="utf-8"))
    made = []
    for repository, entry in table["repositories"].items():
        for script in entry["scripts"]:
            values: dict[str, Any] = {**entry.get("each", {}), **script}
            for name in ("arguments", "shims", "paths"):
                values[name] = tuple(values.get(name, ()))
            for name in ("files", "edits"):
                values[name] = tuple(map(tuple, values.get(name, ())))
            made.append(Recipe(repository=repository, commit=entry["commit"], **values))
    return made


def try_script(recipe: Recipe, folder: Path, packages: Path, *, seconds: float) -> Outcome:
    """Run one script bare and audited, each for so long at most."""
    bare = _run(recipe, folder, packages, audited=False, seconds=seconds)
    watched = _run(recipe, folder, packages, audited=True, seconds=seconds)
    same_output: bool | None = bare["output"] == watched["output"]
    if not same_output and _without_numbers(bare["output"]) == _without_numbers(watched["output"]):
        same_output = None
    error = "" if bare["status"] == 0 else bare["errors"][-600:]
    if watched["report"] is None:
        error += "no report: " + watched["errors"][-600:]
    return Outcome(
        name=recipe.name,
        repository=recipe.repository,
        steps=bare["result"].get("steps", 0),
        status=bare["status"],
        audited_status=watched["status"],
        same_bits=bare["result"] == watched["result"] and bool(bare["result"]),
        same_output=same_output,
        findings=watched["report"] or [],
        error=error,
    )


def _without_numbers(text: str) -> str:
    return re.sub(r"\s*[-+]?\d[\d.,:e+-]*", "0", text)


def _run(
    recipe: Recipe, repositories: Path, packages: Path, *, audited: bool, seconds: float
) -> dict[str, Any]:
    source = repositories / recipe.repository.replace("/", "+")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "repository"
        shutil.copytree(source, root)
        result, report = Path(place) / "result.json", Path(place) / "report.json"
        where = root / recipe.folder
        for path, what in recipe.files:
            _make(where / path, what)
        for name, old, new in recipe.edits:
            text = (where / name).read_text(encoding="utf-8")
            if old not in text:
                sys.exit(f"{recipe.name}: {name} does not hold {old!r}")
            (where / name).write_text(text.replace(old, new), encoding="utf-8")
        command = [sys.executable]
        if audited:
            options = ["--output-format", "json", "--output-file", str(report)]
            command += ["-m", "gradcheck_suite", "audit", *options, "--fail-on", "never"]
        command += [*recipe.script.split(), *recipe.arguments]
        on_path = [str(_PROBE), *(str(root / each) for each in recipe.paths), str(packages)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(on_path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
            "AUDIT_SCRIPTS_RESULT": str(result),
            "AUDIT_SCRIPTS_STEPS": str(recipe.steps),
            "AUDIT_SCRIPTS_SHIMS": ",".join(recipe.shims),
        }
        try:
            done = subprocess.run(
                command,
                cwd=where,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
            )
            status, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            status, output, errors = -1, "", f"took more than {seconds:g} s"
        return {
            "status": status,
            "output": output.replace(place, ""),
            "errors": errors,
            "result": json.loads(result.read_text()) if result.exists() else {},
            "report": _findings(report, place) if report.exists() else None,
        }


def _findings(report: Path, place: str) -> list[dict[str, str]]:
    told = json.loads(report.read_text(encoding="utf-8"))["findings"]
    return [
        {
            "code": each["code"],
            "severity": each["severity"],
            "at": f"{Path(each['path']).name}:{each['line']}" if each["path"] else "-",
            "message": each["message"].replace(place, ""),
        }
        for each in told
    ]


def _make(path: Path, what: str) -> None:
    kind, _, rest = what.partition(" ")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    if kind == "pictures":
        count, width, height = map(int, rest.split())
        path.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise = draw.integers(0, 256, (height, width, 3), "uint8")
            Image.fromarray(noise).save(path / f"{number:03}.jpg")
    elif kind == "folder":
        path.mkdir(exist_ok=True)
    elif kind == "words":
        known = [f"w{number}" for number in range(60)]
        lines = (" ".join(draw.choice(known, draw.integers(4, 12))) for _ in range(int(rest)))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        subprocess.run([sys.executable, "-c", rest, str(path)], check=True, cwd=path.parent)


def judged() -> dict[tuple[str, str, str], dict[str, str]]:
    """Return what a person said of each finding: by script, code and place."""
    known = json.loads((_HERE / "audit_scripts_judged.json").read_text(encoding="utf-8"))
    return {(each["script"], each["code"], each["at"]): each for each in known}


def as_scores(outcomes: Iterable[Outcome]) -> Scores:
    """Count what went wrong; a finding that nobody has judged yet counts as such."""
    known = judged()
    rows: list[tuple[str | int | float, ...]] = []
    bad = 0
    repositories = set()
    for each in outcomes:
        verdicts = [_verdict(each.name, finding, known) for finding in each.findings]
        fine = each.same_bits and each.same_output is not False and not each.error
        fine &= each.status == each.audited_status
        bad += not fine or any(
            verdict != "true" and finding["severity"] == "error"
            for verdict, finding in zip(verdicts, each.findings, strict=True)
        )
        repositories.add(each.repository)
        rows.append(
            (
                f"{each.repository} {each.name}",
                each.steps,
                "yes" if each.same_bits else "NO",
                {True: "yes", None: "but for numbers", False: "NO"}[each.same_output],
                each.status if each.status == each.audited_status else "DIFFERS",
                ", ".join(
                    f"{finding['code']} {finding['severity']} ({verdict})"
                    for finding, verdict in zip(each.findings, verdicts, strict=True)
                ),
            )
        )
    return Scores(
        title="Training scripts of public repositories under audit",
        command=_COMMAND,
        columns=("script", "steps", "same bits", "same output", "exit", "findings"),
        rows=tuple(rows),
        goal=_GOAL,
        met=not bad and len(rows) >= 25 and len(repositories) >= 8,
    )


def _verdict(
    name: str, finding: dict[str, str], known: dict[tuple[str, str, str], dict[str, str]]
) -> str:
    entry = known.get((name, finding["code"], finding["at"]))
    return "not judged" if entry is None else entry["verdict"]


def page(outcomes: Sequence[Outcome]) -> str:
    """Write docs/audit-scripts.md."""
    known = judged()
    scores = as_scores(outcomes)
    by_name = {recipe.name: recipe for recipe in recipes()}
    lines = [_HEAD.format(command=_COMMAND)]
    lines += [
        f"| {each.repository} @ {by_name[each.name].commit[:7]} | {each.name} | "
        + " | ".join(map(str, row[1:-1]))
        + f" | {len(each.findings) or ''} |"
        for each, row in zip(outcomes, scores.rows, strict=True)
    ]
    repositories = {each.repository for each in outcomes}
    told = [(each, finding) for each in outcomes for finding in each.findings]
    false = [finding for each, finding in told if _verdict(each.name, finding, known) == "false"]
    errors = sum(finding["severity"] == "error" for finding in false)
    lines.append(
        f"\n{len(outcomes)} scripts of {len(repositories)} repositories; {len(told)} findings, "
        f"{len(false)} of them false, {errors} of these errors. Goal: {scores.goal}: "
        f"{'met' if scores.met else 'missed'}.\n\n## The findings\n"
    )
    for each, finding in told:
        entry = known.get((each.name, finding["code"], finding["at"]))
        verdict = "not judged" if entry is None else f"**{entry['verdict']}**: {entry['why']}"
        lines.append(
            f"- {each.repository} {each.name}, `{finding['at']}`: {finding['severity']} "
            f"{finding['code']}: {finding['message']}\n    {verdict}"
        )
    if not told:
        lines.append("None.")
    return "\n".join(lines) + "\n"


_HEAD = """\
# Public training scripts under audit

Written by `{command} --write`;
never edited by hand. Each script is run by Python and by `gradcheck-suite audit`, on synthetic
data of the real shapes and for a few steps. *Bits* says
whether the parameters after each optimizer step and the states of all random generators are the
same; *output* whether what it printed is (*but for numbers* where it prints times). A person has
read every finding with the code that it is about: *true* means that the code does what the finding
says.

| repository | script | steps | bits | output | exit | findings |
|---|---|---|---|---|---|---|"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where the repositories lie, as OWNER+NAME")
    parser.add_argument("--packages", type=Path, default=Path("packages"), help="what they import")
    parser.add_argument("--only", nargs="*", help="names of scripts, or beginnings of them")
    parser.add_argument("--results", type=Path, help="keep outcomes here, and go on from them")
    parser.add_argument("--again", action="store_true", help="run also what is in --results")
    parser.add_argument("--seconds", type=float, default=170, help="the most for one run")
    parser.add_argument("--kept", action="store_true", help="run nothing: show --results alone")
    parser.add_argument("--write", action="store_true", help="write docs/audit-scripts.md")


def _in_turn(wanted: list[Recipe]) -> list[Recipe]:
    """Return one of each repository, then the second of each: an early end has seen them all."""
    turns: Counter[str] = Counter()
    order = []
    for position, recipe in enumerate(wanted):
        order.append((turns[recipe.repository], position, recipe))
        turns[recipe.repository] += 1
    return [recipe for _, _, recipe in sorted(order, key=lambda each: each[:2])]


def _run_all(options: argparse.Namespace) -> Scores:
    done: dict[str, Outcome] = {}
    if options.results and options.results.exists():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            outcome = Outcome(**json.loads(line))
            done[outcome.name] = outcome
    wanted = [
        recipe
        for recipe in recipes()
        if not options.only or any(recipe.name.startswith(name) for name in options.only)
    ]
    for recipe in _in_turn(wanted):
        if options.kept or (recipe.name in done and not options.again):
            continue
        outcome = try_script(
            recipe,
            options.folder.resolve(),
            options.packages.resolve(),
            seconds=options.seconds,
        )
        done[recipe.name] = outcome
        print(json.dumps(asdict(outcome)), file=sys.stderr, flush=True)
        if options.results:
            with options.results.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(outcome)) + "\n")
    outcomes = [done[recipe.name] for recipe in wanted if recipe.name in done]
    if options.write:
        _PAGE.write_text(page(outcomes), encoding="utf-8")
    return as_scores(outcomes)


if __name__ == "__main__":
    sys.exit(run_as_command(_run_all, _options))
