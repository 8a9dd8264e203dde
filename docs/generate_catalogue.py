"""Write docs/catalogue.md from the catalogue; with --check, only say whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from gradcheck_suite import catalogue
from gradcheck_suite.reporting.explain import places_of

PAGE = Path(__file__).with_name("catalogue.md")

_ENTRIES = "gradcheck_suite/catalogue/entries"

_INTRODUCTION = """\
# The catalogue of mistakes

Every mistake that gradcheck-suite knows, with its code, which never changes its meaning. The
severity is the highest that a finding may have; a detector with less proof reports less. **Error**:
it was observed, or is certain on every path. **Warning**: likely, and the finding shows the
evidence. **Note**: it costs speed or memory, or is a relic. **Fix**: `gradcheck-lint --fix`, some
with `--unsafe-fixes`, corrects what the example shows. What is **planned** nothing finds yet.

Each code leads to its page: what the mistake does, why it is bad, a program that makes it and one
that does not, how it is detected, how to silence it and what looking for it costs.
`gradcheck-suite explain GCS301` and `gradcheck-lint explain GCS301` print the same texts. What is
said about torch was tried on torch 2.13.

<!-- Written by docs/generate_catalogue.py; change gradcheck_suite/catalogue/ instead. -->
"""


def page() -> str:
    """Return the page as Markdown, in which each entry leads to its file."""
    return "\n".join([_INTRODUCTION, *map(_contents, catalogue.FAMILIES)])


def main(arguments: list[str]) -> int:
    """Write the page, or check it, and return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {Path(__file__).name} [--check]\n")
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE} is out of date; run: python docs/{Path(__file__).name}\n")
    return 1


def _contents(family: catalogue.Family) -> str:
    lines = [
        f"## {family.title}",
        "",
        "| code | name | severity | found in | fix | the mistake |",
        "|---|---|---|---|---|---|",
    ]
    for entry in catalogue.entries_of(family):
        cells = (
            f"[{entry.code}](../{_ENTRIES}/{entry.code}-{entry.slug}.md)",
            entry.slug,
            entry.severity.value,
            places_of(entry),
            "fix" if entry.fixable else "",
            entry.title,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
