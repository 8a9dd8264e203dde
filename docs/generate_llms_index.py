"""Write docs/llms.txt, a plain index of the documentation; with --check, only say if it is current.

The form is that of llmstxt.org: a title, a summary, and lists of links with what each page tells.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("llms.txt")
_RAW = f"{REPOSITORY}/raw/main"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BEFORE = re.compile(r"Written by .*?; never edited by hand\. |Reported as .*")
"""What may stand before it: how the page is made, or where it was reported."""
_INTRODUCTION = """\
# gradcheck-suite

> Finds the mistakes in PyTorch autograd code that raise nothing: it lints the source, audits the
> running loop, verifies gradients against finite differences and pictures the graph.
> `pip install 'gradcheck-suite[torch]'`; the linter needs no torch. Commands: gradcheck-lint PATHS;
> gradcheck-suite audit SCRIPT, verify, localize, graph, explain CODE, rules, doctor, init. Reports
> come as `--output-format json` or `sarif`, too. Exit status: 0 clean, 1 findings, 2 misuse.
"""


def index() -> str:
    """Return the whole index."""
    folders = sorted(page.parent for page in (ROOT / "docs").glob("*/*.md"))
    parts = [
        _INTRODUCTION,
        _section("Use", ROOT / "docs"),
        *(
            _section(folder.name.replace("-", " ").capitalize(), folder)
            for folder in dict.fromkeys(folders)
            if folder.name != "development"
        ),
        "## Catalogue of mistakes\n\n" + "".join(_entries()),
        _section("Optional: how it works, and how to change it", ROOT / "docs" / "development"),
    ]
    return "\n".join(part for part in parts if part)


def _section(title: str, folder: Path) -> str:
    pages = folder.glob("*.md") if folder.name == "docs" else folder.rglob("*.md")
    return f"## {title}\n\n" + "".join(_link(page) for page in sorted(pages))


def _link(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    name = page.stem if title is None else title[1].replace("`", "")
    address = f"{_RAW}/{page.relative_to(ROOT).as_posix()}"
    return f"- [{name}]({address}){_told(_first_sentence(text))}\n"


def _entries() -> Iterator[str]:
    for entry in catalogue.ENTRIES:
        file = f"gradcheck_suite/catalogue/entries/{entry.code}-{entry.slug}.md"
        yield f"- [{entry.code} {entry.slug}]({_RAW}/{file}){_told(entry.title)}\n"


def _first_sentence(text: str) -> str:
    """Return the first sentence that says what a page is about, with links as their words."""
    for block in re.split(r"\n\s*\n", _FENCE.sub("", text)):
        line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        line = _BEFORE.sub("", line)
        if re.match(r"(?!\d+\.)[A-Za-z0-9*\"`]", line):
            return re.split(r"(?<=[.])\s", line, maxsplit=1)[0].rstrip(".:")
    return ""


def _told(words: str) -> str:
    return f": {words}" if words else ""


def main(arguments: list[str]) -> int:
    """Write the index, or check it, and return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {Path(__file__).name} [--check]\n")
        return 2
    text = index()
    if not arguments:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE} is out of date; run: python docs/{Path(__file__).name}\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
