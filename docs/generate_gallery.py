"""Write the pages of docs/gallery/ from its programs, which are run; names may be given.

A program's docstring is its story: a title, ``Report: ADDRESS``, what happened, and, where it is
not an audit, ``Run: COMMAND``. The file of the same name with ``_fixed`` is the correction.
"""

from __future__ import annotations

import ast
import difflib
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Run: TypeAlias = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

GALLERY = Path(__file__).with_name("gallery")
PROGRAMS = GALLERY / "programs"

_INTRODUCTION = """\
Mistakes that people made and reported, each with the address of its report, in a program of our
own. The pages show what plain torch says of it, what is said at run time and in source, and the
correction. All of it is what the programs print: a test runs them."""
_FINDING = re.compile(r"^(?:\S+:\d+(?::\d+)?: )?(GCS\d{3}) \[\w+\] .*$", re.MULTILINE)
_WARNING = re.compile(r"^\S+:\d+: (\w*Warning: .*)$", re.MULTILINE)
_MODULES = {
    "gradcheck-suite": ["-m", "gradcheck_suite"],
    "gradcheck-lint": ["-m", "gradcheck_lint"],
    "torchrun": ["-m", "torch.distributed.run"],
    "python": [],
}


@dataclass(frozen=True)
class Story:
    """What a program of the gallery tells in its docstring."""

    name: str
    title: str
    report: str
    text: str
    command: str
    source: str

    @classmethod
    def of(cls, name: str) -> Story:
        """Read the story of a program."""
        source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
        told = ast.get_docstring(ast.parse(source)) or ""
        title, report, *text = told.split("\n\n")
        title = title.removesuffix(".")
        command = f"gradcheck-suite audit {name}.py"
        if text[-1].startswith("Run: "):
            command = text.pop().removeprefix("Run: ")
        return cls(
            name, title, report.removeprefix("Report: "), "\n\n".join(text), command, _body(source)
        )

    @property
    def fixed(self) -> str:
        """The corrected source, without its docstring."""
        return _body((PROGRAMS / f"{self.name}_fixed.py").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of the programs that make a mistake."""
    stems = {path.stem for path in PROGRAMS.glob("*.py")}
    return sorted(stem for stem in stems if not stem.endswith("_fixed"))


def run_here(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these words where the programs are."""
    return subprocess.run(
        [sys.executable, *words], cwd=PROGRAMS, capture_output=True, text=True, check=False
    )


def page(name: str, run: Run = run_here) -> str:
    """Return the page of a story, for which its programs are run."""
    story = Story.of(name)
    at_run_time = findings_of(story.command, run)
    in_source = findings_of(f"gradcheck-lint {name}.py", run)
    codes = dict.fromkeys(code for code, _ in (*at_run_time, *in_source))
    parts = [
        f"# {story.title}",
        f"Reported as [{_shortly(story.report)}]({story.report}). {_found(codes)}",
        story.text,
        _block("python", story.source),
        "## What plain torch says",
        _block("text", said_by(_plain(story), run) or "(nothing)"),
        f"## What is said at run time\n\n`{story.command}`",
        _told(at_run_time),
        f"## What is said in source\n\n`gradcheck-lint {name}.py`",
        _told(in_source),
        "## The correction",
        _block("diff", _difference(story)),
        f"Of [the corrected program](programs/{name}_fixed.py) neither says anything.",
        "<!-- Written by docs/generate_gallery.py from docs/gallery/programs. -->",
    ]
    return "\n\n".join(parts) + "\n"


def findings_of(command: str, run: Run = run_here) -> list[tuple[str, str]]:
    """Return the findings that a command prints, with their codes, each once.

    Notes are left out where there is something worse.
    """
    done = run(_words(command))
    found = {match.group(): match[1] for match in _FINDING.finditer(done.stdout + done.stderr)}
    worse = [(code, line) for line, code in found.items() if " [note] " not in line]
    return worse or [(code, line) for line, code in found.items()]


def said_by(command: str, run: Run = run_here) -> str:
    """Return what a program prints: its output, warnings, and the exception that ends it."""
    done = run(_words(command, report=False))
    lines = done.stdout.splitlines()
    lines += dict.fromkeys(_WARNING.findall(done.stderr))
    traceback = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception): .*)", done.stderr, re.MULTILINE)
    return "\n".join([*lines, *traceback[:1]])


def index() -> str:
    """Return the page that lists all stories by the families of the catalogue."""
    parts = [
        "# Real bugs, told",
        _INTRODUCTION,
    ]
    codes = {name: _codes_on(GALLERY / f"{name}.md") for name in names()}
    for family in catalogue.FAMILIES:
        rows = [
            f"- [{Story.of(name).title}]({name}.md) {_links(codes[name], '../')}"
            for name in names()
            if codes[name] and codes[name][0].startswith(family.prefix)
        ]
        if rows:
            parts += [f"## {family.title}", "\n".join(rows)]
    unseen = [f"- [{Story.of(name).title}]({name}.md)" for name in names() if not codes[name]]
    if unseen:
        parts += ["## Not seen yet", "\n".join(unseen)]
    parts.append("<!-- Written by docs/generate_gallery.py. -->")
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages of these stories, or of all, and the index."""
    for name in arguments or names():
        (GALLERY / f"{name}.md").write_text(page(name), encoding="utf-8", newline="\n")
    (GALLERY / "index.md").write_text(index(), encoding="utf-8", newline="\n")
    return 0


def _plain(story: Story) -> str:
    """Return the command that runs the program without us."""
    head, _, rest = story.command.partition(" --no-python ")
    return f"{head} {story.name}.py" if rest else f"python {story.name}.py"


def _words(command: str, *, report: bool = True) -> list[str]:
    words = shlex.split(command)
    ours = next((i for i, word in enumerate(words) if word.startswith("gradcheck-")), None)
    if ours is not None and report:
        at = ours + (2 if words[ours] == "gradcheck-suite" else 1)
        words[at:at] = ["--output-format", "concise"]
        if words[ours] == "gradcheck-lint":
            words[at:at] = ["--isolated", "--no-cache"]
    if ours:  # behind a launcher
        words[ours : ours + 1] = [sys.executable, *_MODULES[words[ours]]]
    return [*_MODULES[words[0]], *words[1:]]


def _body(source: str) -> str:
    """Return a source without its docstring and the import of annotations."""
    docstring = ast.parse(source).body[0]
    lines = source.splitlines()[docstring.end_lineno :]
    text = "\n".join(lines).strip("\n") + "\n"
    return text.removeprefix("from __future__ import annotations\n").lstrip("\n")


def _difference(story: Story) -> str:
    lines = difflib.unified_diff(
        story.source.splitlines(), story.fixed.splitlines(), lineterm="", n=2
    )
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _told(findings: Sequence[tuple[str, str]]) -> str:
    if not findings:
        return "Nothing: it is not seen there."
    return _block("text", "\n".join(line for _, line in findings))


def _found(codes: dict[str, None]) -> str:
    return f"It is **{'**, **'.join(codes)}**: {_links(list(codes), '../')}." if codes else ""


def _links(codes: Sequence[str], up: str) -> str:
    return ", ".join(_entry_link(code, up) for code in codes)


def _entry_link(code: str, up: str) -> str:
    entry = catalogue.find(code)
    assert entry is not None, code
    file = f"{up}../gradcheck_suite/catalogue/entries/{code}-{entry.slug}.md"
    return f"[{entry.slug}]({file})"


def _codes_on(story: Path) -> list[str]:
    return re.findall(r"\*\*(GCS\d{3})\*\*", story.read_text(encoding="utf-8"))


def _shortly(report: str) -> str:
    """Return an address on GitHub as people write it: owner/name#1."""
    _, _, _, owner, name, _, number = report.split("/")
    return f"{owner}/{name}#{number}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
