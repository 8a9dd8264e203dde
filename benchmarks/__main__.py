"""Run benchmarks, each in a process of its own, and write docs/benchmarks.md.

Without names, all of them. The figures are kept in benchmarks/results.json: a run of a few replaces
theirs, and the page is written anew from all that are there. One that needs to be told something,
such as where a corpus lies, is named alone, with its options after ``--``:

    python -m benchmarks lint_speed -- --corpus DIR
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import as_markdown, from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = (
    "audit_overhead",
    "audit_corruption",
    "audit_writers",
    "lint_start",
    "plugin_start",
    "full_jacobian",
    "graph_costs",
    "localize",
    "mutants",
    "whole_checks",
)
MORE = (
    "audit_leaks",
    "audit_loops",
    "audit_subjects",
    "graph_page",
    "large_jobs",
    "lint_recall",
    "lint_speed",
    "owner_search",
    "plugin_rivals",
    "native_precision",
)
"""Those that take many minutes, a browser or a corpus, and run only when named."""
KEPT = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> int:
    """Run what is named, keep the figures, write the page; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=", ".join(NAMES) + "; only by name: " + ", ".join(MORE),
    )
    own, options = _split(sys.argv[1:])
    names = parser.parse_args(own).names or NAMES
    if options and len(names) != 1:
        parser.error("options after -- go to one benchmark: name it")
    unknown = set(names) - {*NAMES, *MORE}
    if unknown:
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES + MORE)}"
        )
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for name in names:
        kept[name] = _run(name, options)
        ordered = {name: kept[name] for name in (*NAMES, *MORE) if name in kept}
        # After each, so that a run that is interrupted loses nothing.
        KEPT.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(ordered), encoding="utf-8")
    met = [benchmark.met for name in names for benchmark in from_json(json.dumps(kept[name]))]
    return 0 if all(met) else 1


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return what stands before ``--``, and what stands after it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def _run(name: str, options: Sequence[str]) -> dict[str, Any]:
    print(f"{name} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json", *options],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if not done.stdout:
        sys.exit(f"benchmarks.{name} printed no figures and exited with {done.returncode}")
    # Some tell first, line by line, what they missed.
    start = f"\n{done.stdout}".index("\n{\n")
    found: dict[str, Any] = json.loads(done.stdout[start:])
    return found


def page(kept: dict[str, Any]) -> str:
    """Write the page of figures that were kept, as benchmarks by name."""
    machines = dict.fromkeys(figures["machine"] for figures in kept.values())
    versions = dict.fromkeys(
        f"{name} {version}"
        for figures in kept.values()
        for name, version in figures.get("versions", {}).items()
    )
    sections = [
        as_markdown(benchmark)
        for figures in kept.values()
        for benchmark in from_json(json.dumps(figures))
    ]
    return (
        "\n\n".join(
            [_HEAD.format(machine="; ".join(machines), versions=_listed(list(versions))), *sections]
        )
        + "\n"
    )


def _listed(versions: list[str]) -> str:
    return f", with {', '.join(versions)}" if versions else ""


_HEAD = """\
# Benchmarks

Written by `make bench`, or by `python -m benchmarks NAME...` for a few; never edited by hand. What
checks, audits, graphs and the linter cost and find, beside other tools where they do the same.
Every time is a median over interleaved bursts in one process, and every ratio is to the first row
of its table, measured in the same round; the quartiles show how noisy the machine was. Read the
ratios: the times are of one small machine ({machine}{versions})."""


if __name__ == "__main__":
    sys.exit(main())
