"""The pages for developers name what is there, and the programs in their recipes run.

What stands in backticks is looked up in the sources, which are read as text: a path by its end, a
module or class with what is said to be in it, any other name as a word.
"""

from __future__ import annotations

import builtins
import functools
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs" / "development").glob("*.md")), ROOT / "CONTRIBUTING.md"]
# Made of the code itself, which test_numerics_page.py sees to.
WRITTEN_BY_HAND = [page for page in PAGES if page.name != "numerics.md"]
PACKAGES = {
    "gradcheck_suite": ROOT,
    "gradcheck_lint": ROOT / "lint_rules",
    "pytest_gradcheck_suite": ROOT / "pytest_plugin",
    "benchmarks": ROOT,
    "tests": ROOT,
}
FOLDERS = (
    *("gradcheck_suite", "lint_rules", "pytest_plugin", "tests", "benchmarks", "docs", "examples"),
    ".ci",
)
FOREIGN = {"torch", "nn", "cst", "math", "libcst"}
FOREIGN_CLASSES = {"WeakKeyDictionary", "NamedTuple", *vars(builtins)}
TO_BE_WRITTEN = {"detectors/step_order/clip_to_zero.py", "stages/with_graph.py"}
"""What recipes take as their example."""

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
IMPORT = re.compile(r"^ *from ([\w.]+) import (\(.*?\)|.*?)$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)+/?|[\w.*-]+(/|\.(py|md|json|toml))")
NAME = re.compile(r"@?([A-Za-z_][\w.]*)(?:\(.*\))?")
CLASS_NAME = re.compile(r"_?[A-Z][a-z0-9]+\w*|_?[A-Z][A-Z0-9_]{2,}")


@functools.cache
def paths() -> frozenset[str]:
    """Every file and folder, as a path from the root."""
    found = {path.name for path in ROOT.iterdir() if path.is_file()}
    for folder in FOLDERS:
        found |= {each.relative_to(ROOT).as_posix() for each in (ROOT / folder).rglob("*")}
        found.add(folder)
    return frozenset(path for path in found if "__pycache__" not in path)


@functools.cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def sources() -> str:
    """All of our Python but this file, with what decides on checks and packaging."""
    own = Path(__file__).relative_to(ROOT).as_posix()
    files = sorted(path for path in paths() if path.endswith(".py") and path != own)
    return "\n".join(map(text_of, [*files, "pyproject.toml", "Makefile", ".ci/run"]))


@functools.cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", sources()))


def defined(text: str) -> set[str]:
    """What a source defines: classes, functions, variables, fields."""
    made = re.findall(r"^ *(?:class|def|async def) (\w+)", text, re.MULTILINE)
    made += re.findall(r"^ *(?:self\.)?(\w+)(?:: [^=\n]+)?(?: :?= |$|: )", text, re.MULTILINE)
    made += re.findall(r"\bself\.(\w+)\b[^=\n]* = ", text)
    return {*made, *re.findall(r"^ +(\w+)\b[^=\n]* := ", text, re.MULTILINE)}


@functools.cache
def all_defined() -> frozenset[str]:
    return frozenset(defined(sources()))


@functools.cache
def files_with_class(name: str) -> tuple[str, ...]:
    pattern = re.compile(rf"^ *class {name}\b", re.MULTILINE)
    return tuple(
        path for path in sorted(paths()) if path.endswith(".py") and pattern.search(text_of(path))
    )


def has_path(written: str) -> bool:
    """Return whether a path, or one with wildcards, is the end of one that is there."""
    wanted = re.escape(written.rstrip("/")).replace(r"\*", "[^/]*")
    pattern = re.compile(rf"(?:.*/)?{wanted}")
    return any(pattern.fullmatch(path) for path in paths())


def module_file(dotted: str) -> str | None:
    package = dotted.partition(".")[0]
    base = PACKAGES[package].relative_to(ROOT).as_posix().removeprefix(".")
    path = "/".join(filter(None, (base, *dotted.split("."))))
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if each in paths()), None)


def has_dotted(dotted: str) -> bool:
    """Return whether a module is there, or what is named in one."""
    if module_file(dotted) is not None:
        return True
    module, _, name = dotted.rpartition(".")
    file = module_file(module) if module.partition(".")[0] in PACKAGES else None
    return file is not None and re.search(rf"\b{name}\b", text_of(file)) is not None


def is_known(token: str) -> bool:
    """Return whether what stands in backticks is there, as far as it names something of ours."""
    if token.startswith("--"):
        return "*" in token or f'"{re.split("[= ]", token)[0]}"' in sources()
    token = re.sub(r"<\w+>", "*", token)
    if PATH.fullmatch(token):
        return token in TO_BE_WRITTEN or has_path(token)
    name = NAME.fullmatch(token)
    return name is None or is_name(name[1])  # an expression or a command


def is_name(dotted: str) -> bool:
    head, *rest = dotted.split(".")
    if head in FOREIGN:
        return True
    if head in PACKAGES and rest:
        return has_dotted(dotted)
    if not CLASS_NAME.fullmatch(head):
        return dotted.rpartition(".")[2] in words()
    if not rest:
        return head in all_defined() | FOREIGN_CLASSES
    return any(rest[0] in defined(text_of(file)) for file in files_with_class(head))


def unknown_in(page: str) -> list[str]:
    """Return what a page names and what is not there."""
    blocks = FENCE.findall(page)
    prose = FENCE.sub("", page)
    unknown = [token for token in IN_BACKTICKS.findall(prose) if not is_known(token)]
    for language, block in blocks:
        if language == "python":
            for module, names in IMPORT.findall(block):
                if module.partition(".")[0] in PACKAGES:
                    asked = re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names))
                    missing = [f"{module}.{name}" for name in asked]
                    unknown += [each for each in missing if not has_dotted(each)]
        elif language == "console":
            named = re.findall(r"(?<![\w/])(?:tests|docs|benchmarks)/[\w/.<>-]+", block)
            unknown += [each for each in named if not has_path(re.sub(r"<\w+>", "*", each))]
            modules = [
                f"benchmarks.{each}" for each in re.findall(r"-m benchmarks[. ](\w+)", block)
            ]
            unknown += [each for each in modules if module_file(each) is None]
            targets = re.findall(r"\bmake (\w[\w-]*)", block)
            unknown += [
                f"make {each}" for each in targets if f"\n{each}:" not in text_of("Makefile")
            ]
        else:  # a drawing
            drawn = re.findall(r"\b[A-Z][a-z]+[A-Z]\w*\b", block)
            unknown += [each for each in drawn if not is_known(each)]
    return unknown


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page):
    assert unknown_in(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "development" / "README.md").read_text(encoding="utf-8")
    listed = {link for link in LINK.findall(index) if "/" not in link}
    assert listed == {page.name for page in PAGES[:-1]} - {"README.md"}


def test_the_examples_of_recipes_are_not_there():
    assert not any(map(has_path, TO_BE_WRITTEN))


@pytest.mark.parametrize(
    "page",
    [
        "`gradcheck_suite.verification.chek`",
        "`gradcheck_suite.verification.check.chek_gradients`",
        "`detectors/mode/stuck_in_evil.py`",
        "`tests/auditing/lops/`",
        "`EventBuss`",
        "`EventBus.emitt`",
        "`recorder.write_log.sincee(x)`",
        "`_LATER_STAGESS`",
        "`without_user_modess`",
        "`--fail-onn`",
        "```python\nfrom gradcheck_suite.findings import Findings\n```",
        "```console\n$ python -m pytest tests/nowhere\n```",
        "```console\n$ python -m benchmarks.nothing\n```",
        "```console\n$ make everything\n```",
        "```\nEventBuss --> Detector\n```",
    ],
)
def test_what_is_gone_would_be_seen(page):
    assert unknown_in(page)


def test_the_table_of_events_is_complete():
    source = text_of("gradcheck_suite/auditing/events.py")
    listed = set(re.findall(r"\w+", source.split('"""')[1]))
    assert set(re.findall(r"^class (\w+)\(NamedTuple\)", source, re.MULTILINE)) <= listed


def test_events_that_no_detector_reads_are_read_by_none():
    page = text_of("docs/development/adding-a-detector.md")
    paragraph = next(part for part in page.split("\n\n") if part.startswith("Events that no"))
    unread = {token for token in IN_BACKTICKS.findall(paragraph) if CLASS_NAME.fullmatch(token)}
    readers = [path for path in paths() if re.match(r".*/auditing/(detectors|output)/.*\.py", path)]
    assert unread
    for path in readers:
        assert not unread & set(re.findall(r"\w+", text_of(path))), path


def programs_in(page: str) -> list[str]:
    text = text_of(f"docs/development/{page}")
    return [block for language, block in FENCE.findall(text) if language == "python"]


def program_of(page: str) -> SimpleNamespace:
    """Run the first program of a recipe."""
    names: dict[str, object] = {"__name__": "recipe"}
    exec(compile(programs_in(page)[0], page, "exec"), names)
    return SimpleNamespace(**names)


@pytest.fixture
def entries(monkeypatch):
    """Let entries stand in for those that recipes would add."""
    from gradcheck_suite import catalogue

    for name in ("CLIP_TO_ZERO", "WITH_GRAPH_MISMATCH"):
        monkeypatch.setattr(catalogue, name, catalogue.STEP_WITHOUT_EFFECT, raising=False)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(("limit", "count"), [(0.0, 3), (1.0, 0), (math.inf, 0)])
def test_the_detector_of_the_recipe_works(limit, count):
    import torch

    from gradcheck_suite.auditing.options import AuditOptions
    from gradcheck_suite.auditing.session import Session

    detector = program_of("adding-a-detector.md").ClipToZeroDetector
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(None, None, AuditOptions(report=False), lambda *_: (detector(),))
    with session:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
    assert session.report.not_covered == ()
    assert [finding.evidence["count"] for finding in session.findings] == [count] * bool(count)


@pytest.mark.usefixtures("entries")
def test_the_stage_of_the_recipe_works(monkeypatch):
    import torch

    from gradcheck_suite.verification import check

    class Sine(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @classmethod
        def backward(cls, ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos()

    class WrongWithGraph(Sine):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * (2.0 if torch.is_grad_enabled() else 1.0)

    stage = program_of("adding-a-stage.md").compare_with_graph
    monkeypatch.setattr(check, "_LATER_STAGES", ((stage, "with a graph", lambda _: True),))
    x = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64).requires_grad_()
    (finding,) = check.check_gradients(WrongWithGraph, x).findings
    assert "differs by 0.5 of its size" in finding.message
    assert finding.location is not None
    for right in (Sine, torch.sin):
        report = check.check_gradients(right, x)
        assert report.findings == ()
        assert report.summary["covered"] == ("create_graph=True: the same gradients",)


def test_the_format_of_the_recipe_works():
    from gradcheck_suite.findings import Finding, Location, Report, Severity

    render = program_of("adding-a-renderer.md").render
    finding = Finding("GCS301", "a", Severity.ERROR, "*b*\n\x1b", "audit", Location("c.py", 4))
    report = Report("t", (finding,), not_covered=("d",))
    assert render(report).splitlines() == [
        r"- **error GCS301** c.py:4: \*b\* \\x1b",
        "- not covered: d",
    ]


@pytest.mark.usefixtures("entries")
def test_the_rule_of_the_recipe_works():
    import libcst

    from gradcheck_lint.model.module import ModuleModel

    rule = program_of("adding-a-rule.md").ClipToZero()

    def found(source):
        model = ModuleModel(libcst.parse_module(source), source.encode())
        return [each for function in model.functions() for each in rule.check(function)]

    invalid, valid = programs_in("adding-a-rule.md")[-2:]
    assert len(found(invalid)) == invalid.count("# GCS") == 1
    assert found(valid) == []
    assert found(invalid.replace("0.0", "1.0")) == []
