"""Build the documentation as pages that open from disk: ``python docs/build_site.py [OUT]``.

The pages in docs/ are written to be read on GitHub as well. What only the site has is made here, in
a folder of its own: a page for each entry of the catalogue, the reference from docstrings, and the
contents, which follow the lists of docs/index.md. Sphinx then builds them, warnings being errors.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gradcheck_suite
from gradcheck_suite import catalogue
from gradcheck_suite._addresses import REPOSITORY
from gradcheck_suite.reporting.explain import explain_markdown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRIES = ROOT / "gradcheck_suite" / "catalogue" / "entries"

LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)

_MEASURED = "([measured](../benchmarks.md))"
ROOMS = {
    "auditing": "An audit looks for all its mistakes at once and keeps what it adds to a step"
    f" within `--overhead`, 5 % by default {_MEASURED}.",
    "verification": "`check_gradients` calls the function some dozens of times, in a test and not"
    f" in training {_MEASURED}.",
    "accumulation": "`check_accumulation` runs the loop over one batch three times, in a test and"
    " not in training.",
    "graph": "A graph is one walk over the nodes; a recorded forward takes up to twice its time"
    f" {_MEASURED}.",
}
"""What it costs to find a mistake at run time, by the package that has the code."""

_LINT_COSTS = (
    "The linter costs nothing at run time; a file is read once for all rules, and again only when"
    f" it has changed {_MEASURED}."
)


_GRAPH = """
## A graph to try

One loss of the [digits example](../examples/digits): click on a module to unfold it, on a node to
see what it saves. <a href="digits-graph.html">On a page of its own.</a>

<iframe src="digits-graph.html" width="100%" height="640" title="A graph to try"></iframe>
"""

RETURNED = {
    "gradcheck_suite.auditing.session.Session": ":members: findings, report, ledger, step, frozen",
    "gradcheck_suite.auditing.options.AuditOptions": "",
    "gradcheck_suite.graph.model.AutogradGraph": ":members:",
    "gradcheck_suite.graph.recording.recording.Recording": ":members:",
    "gradcheck_suite.graph.diff.GraphDiff": ":members:",
}
"""Classes that users meet and never import, and which of their members the reference shows."""


def main(arguments: list[str]) -> int:
    """Build the site and return the exit status."""
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        sys.stderr.write(f"usage: {Path(__file__).name} [OUT]\n")
        return 2
    out = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    with TemporaryDirectory() as folder:
        source = Path(folder)
        write_pages(source)
        sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
        return subprocess.run([*sphinx, source, out], check=False).returncode


def write_pages(folder: Path) -> None:
    """Write everything that Sphinx reads into ``folder``."""
    shutil.copytree(
        DOCS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "_*")
    )
    (folder / "catalogue").mkdir()
    for entry in catalogue.ENTRIES:
        page = folder / "catalogue" / f"{entry.code}.md"
        page.write_text(entry_page(entry), encoding="utf-8")
    (folder / "reference.md").write_text(reference_page(), encoding="utf-8")
    with (folder / "graph.md").open("a", encoding="utf-8") as page:
        page.write(_GRAPH)
    draw_graph(folder / "extra")
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        text = with_links(text, page.relative_to(folder).parent, folder)
        if page.name == "index.md":
            text = with_contents(text)
        page.write_text(text, encoding="utf-8")


def entry_page(entry: catalogue.Entry) -> str:
    """Return the page about one entry of the catalogue."""
    parts = [explain_markdown(entry, level=1)]
    rooms = rooms_of(entry)
    if "auditing" in rooms:
        parts.append(f'In a test that is audited: `autograd_audit.allow("{entry.slug}")`.')
    costs = [_LINT_COSTS] * entry.in_source + [ROOMS[room] for room in rooms]
    if costs:
        parts += ["## What it costs", "\n".join(f"- {cost}" for cost in costs)]
    stories = stories_of(entry)
    if stories:
        parts += ["## In the wild", "\n".join(stories)]
    return "\n\n".join(parts) + "\n"


def rooms_of(entry: catalogue.Entry) -> list[str]:
    """Return the packages whose code names the entry: they find it at run time."""
    name = entry.slug.upper().replace("-", "_")
    return [room for room in ROOMS if name in _named_in(room)]


@cache
def _named_in(room: str) -> frozenset[str]:
    sources = (ROOT / "gradcheck_suite" / room).rglob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in sources]
    return frozenset(re.findall(r"\bcatalogue\.([A-Z_]+)\b", "\n".join(texts)))


def stories_of(entry: catalogue.Entry) -> list[str]:
    """Return links to the real bugs of the gallery that this entry is about."""
    stories = []
    for page in sorted((DOCS / "gallery").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if f"**{entry.code}**" in text and page.name != "index.md":
            title = text.splitlines()[0].removeprefix("# ")
            stories.append(f"- [{title}](../gallery/{page.name})")
    return stories


def reference_page() -> str:
    """Return the reference, which Sphinx makes of the docstrings of all public names."""
    parts = ["# Reference", "```python\nimport gradcheck_suite as gs\n```"]
    public = [f"gradcheck_suite.{name}" for name in gradcheck_suite.__all__]
    functions = [name for name in public if name.rpartition(".")[2][0].islower()]
    classes = [name for name in public if name.rpartition(".")[2][0].isupper()]
    for heading, names in (
        ("Functions", functions),
        ("What they return, and options", list(RETURNED)),
        ("Results and errors", classes),
    ):
        parts.append(f"## {heading}")
        for name in names:
            kind = "autofunction" if name in functions else "autoclass"
            members = "" if name in functions else RETURNED.get(name, ":members:")
            parts.append(f"```{{eval-rst}}\n.. {kind}:: {name}\n   {members}\n```")
    return "\n\n".join(parts) + "\n"


def draw_graph(folder: Path) -> None:
    """Draw the graph of the digits example as the page that ``graph.save`` writes."""
    folder.mkdir()
    example = runpy.run_path(str(ROOT / "examples" / "digits" / "train.py"))
    loss, model = example["one_loss"]()
    gradcheck_suite.trace_graph(loss, model=model).save(folder / "digits-graph.html")


def with_links(text: str, page: Path, folder: Path) -> str:
    """Return a page whose links out of docs/ lead to an entry's page or into the repository."""

    def link(match: re.Match[str]) -> str:
        shown, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or (folder / page / path).is_file():
            return match.group()
        there = (DOCS / page / path).resolve()
        if there.parent == ENTRIES:
            code = there.name.partition("-")[0]
            up = "../" * len(page.parts)
            return f"{shown}({up}catalogue/{code}.md)"
        if there.exists() and there.is_relative_to(ROOT):
            kind = "tree" if there.is_dir() else "blob"
            where = f"{REPOSITORY}/{kind}/main/{there.relative_to(ROOT).as_posix()}"
            return f"{shown}({where}{'#' * bool(anchor)}{anchor})"
        return match.group()

    kept = list(FENCE.finditer(text))
    ends = [0, *(fence.end() for fence in kept)]
    starts = [*(fence.start() for fence in kept), len(text)]
    prose = [LINK.sub(link, text[end:start]) for end, start in zip(ends, starts, strict=True)]
    fences = [*(fence.group() for fence in kept), ""]
    return "".join(part for pair in zip(prose, fences, strict=True) for part in pair)


def with_contents(index: str) -> str:
    """Return the index with the contents of the site: a part for each of its lists of pages."""
    parts = [index]
    for section in index.split("\n## ")[1:]:
        caption = section.splitlines()[0]
        targets = dict.fromkeys(target for _, target in LINK.findall(section))
        pages = [each for each in targets if re.fullmatch(r"[\w/-]+\.md", each)]
        if caption == "Reference":
            pages = ["reference.md", *pages, *(f"catalogue/{e.code}.md" for e in catalogue.ENTRIES)]
        parts.append(
            f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```"
        )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
