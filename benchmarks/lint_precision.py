"""How many findings of gradcheck-lint in public repositories are right, as judged by reading them.

``benchmarks/lint_precision.json`` holds every finding above a note in 31 repositories, each at one
commit, with a verdict and its reason. With a folder that has the repositories as ``owner+name``,
the linter runs again and every finding that nobody has judged, or that is gone, is named:

    python -m benchmarks.lint_precision [FOLDER] [--write docs/lint-precision.md]

``first_contact`` in the same file is how the linter judged repositories that nobody had run it on,
before anything was mended because of them: all findings above a note, never made again. What is
true and may be meant is a matter of taste, and counts for neither side.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Scores, as_markdown, run_as_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

DATA = Path(__file__).with_name("lint_precision.json")
GOALS = {"error": 0.97, "warning": 0.85}
Judged = dict[str, Any]


def judged() -> Judged:
    """Return the commits and the judged findings."""
    data: Judged = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def scores(data: Judged) -> Scores:
    """Count what is right, by severity and rule."""
    findings: Sequence[Judged] = data["findings"]
    total = Counter((one["severity"], one["code"]) for one in findings)
    right = Counter((one["severity"], one["code"]) for one in findings if one["right"])
    rows: list[tuple[str | int | float, ...]] = [
        (f"{severity}s of {code}", right[severity, code], count)
        for (severity, code), count in sorted(total.items())
    ]
    met = True
    for severity, goal in GOALS.items():
        of = sum(count for key, count in total.items() if key[0] == severity)
        good = sum(count for key, count in right.items() if key[0] == severity)
        rows.append((f"all {severity}s", good, of))
        met = met and bool(of) and good >= goal * of
    return Scores(
        title=f"Findings in {len(data['commits'])} public repositories that are right",
        command="python -m benchmarks.lint_precision",
        columns=("", "right", "of"),
        rows=tuple(rows),
        goal="97 % of errors, 85 % of warnings",
        met=met,
    )


def page(data: Judged) -> str:
    """Write the judgement as a Markdown page."""
    lines = [
        "# How often the linter is right",
        "",
        "<!-- Written by benchmarks/lint_precision.py. -->",
        "",
        f"All {data['files']:,} Python files of these repositories were linted, and every error",
        f"and warning was read; {data['notes']} notes about `Variable` are not listed.",
        "",
        as_markdown(scores(data)),
        "",
        "| repository | commit |",
        "|---|---|",
        *(f"| {name} | `{commit[:12]}` |" for name, commit in data["commits"].items()),
        "",
        "| finding | rule | | verdict | why |",
        "|---|---|---|---|---|",
        *map(_row, data["findings"]),
        *(line for contact in data["first_contact"] for line in _first_contact(contact)),
    ]
    return "\n".join(lines) + "\n"


def _row(one: Judged) -> str:
    place = f"{one['repository']} {one['path']}:{one['line']}"
    verdict = _VERDICTS[one["right"]]
    return f"| {place} | {one['code']} | {one['severity']} | {verdict} | {one['reason']} |"


_VERDICTS = {True: "right", False: "wrong", None: "taste"}


def _first_contact(contact: Judged) -> list[str]:
    """Write what the linter said of repositories that it had never seen."""
    return [
        "",
        f"## First contact with {len(contact['commits'])} repositories, {contact['date']}",
        "",
        f"By the linter of commit `{contact['linter'][:12]}`, on {contact['files']:,} files of",
        "repositories that were in no list of ours. What was wrong was mended afterwards, by",
        "mechanism; what the linter says now of the same lines proves less. What is true and may",
        "well be meant is a matter of taste.",
        "",
        "|  | right | wrong | taste | said now |",
        "|---|---|---|---|---|",
        *(_counts(severity, contact["findings"]) for severity in GOALS),
        "",
        "| repository | commit |",
        "|---|---|",
        *(f"| {name} | `{commit[:12]}` |" for name, commit in contact["commits"].items()),
        "",
        "| finding | rule | | verdict | why |",
        "|---|---|---|---|---|",
        *map(_row, contact["findings"]),
    ]


def _counts(severity: str, findings: Sequence[Judged]) -> str:
    """Write how many findings of one severity are right, and how many of the wrong ones stay."""
    known = [one for one in findings if one["severity"] == severity]
    verdicts = Counter(_VERDICTS[one["right"]] for one in known)
    numbers = " | ".join(str(verdicts[verdict]) for verdict in _VERDICTS.values())
    stay = [one for one in known if one["stays"]]
    wrong = sum(one["right"] is False for one in stay)
    return f"| {severity}s | {numbers} | {len(stay)}, {wrong} wrong |"


def compare(folder: Path, data: Judged) -> list[str]:
    """Lint the repositories again and return what the judgement does not say."""
    from gradcheck_lint.engine import lint_source

    known = {
        (one["repository"], one["path"], one["line"], one["code"], one["severity"])
        for one in data["findings"]
    }
    seen = set()
    for name in data["commits"]:
        root = folder / name.replace("/", "+")
        for path in sorted(root.rglob("*.py")):
            for found in lint_source(path.read_bytes(), str(path)):
                if found.location is not None and found.severity.value != "note":
                    place = (path.relative_to(root).as_posix(), found.location.line)
                    seen.add((name, *place, found.code, found.severity.value))
    unjudged = [f"not judged: {one}" for one in sorted(seen - known)]
    return [*unjudged, *(f"gone: {one}" for one in sorted(known - seen))]


def run(arguments: argparse.Namespace) -> Scores:
    """Count what is right; write the page and compare with the linter of today if asked to."""
    data = judged()
    if arguments.write is not None:
        arguments.write.write_text(page(data), encoding="utf-8")
    if arguments.folder is not None:
        for line in compare(arguments.folder, data):
            print(line, file=sys.stderr)
    return scores(data)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--write", type=Path, metavar="PAGE")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
