from __future__ import annotations

import ast
import copy
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradcheck_suite import catalogue
from gradcheck_suite.catalogue.entry import named
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from gradcheck_suite.catalogue import Entry

# What a code means never changes; a new mistake gets a new code at the end of its family.
FROZEN = {
    "GCS101": "leaf-inplace",
    "GCS102": "leaf-rebound",
    "GCS103": "saved-tensor-modified",
    "GCS104": "saved-tensor-corrupted",
    "GCS105": "data-write",
    "GCS106": "slice-write-in-loop",
    "GCS107": "slice-read-then-write",
    "GCS108": "inplace-on-saved-output",
    "GCS109": "step-before-second-backward",
    "GCS110": "copy-onto-itself",
    "GCS111": "kept-by-reference",
    "GCS112": "input-written-in-place",
    "GCS201": "graph-kept",
    "GCS202": "state-not-detached",
    "GCS203": "retain-graph",
    "GCS204": "eval-with-graph",
    "GCS205": "tensor-on-ctx",
    "GCS206": "create-graph-cycle",
    "GCS207": "hook-keeps-graph",
    "GCS208": "backward-twice",
    "GCS209": "hook-piles-up",
    "GCS301": "missing-zero-grad",
    "GCS302": "zero-grad-misplaced",
    "GCS303": "step-without-backward",
    "GCS304": "clip-misplaced",
    "GCS305": "clip-before-unscale",
    "GCS306": "scheduler-before-step",
    "GCS307": "parameter-not-optimized",
    "GCS308": "stale-parameter",
    "GCS309": "leftover-gradient",
    "GCS310": "scaler-misuse",
    "GCS311": "accumulation-mismatch",
    "GCS312": "parameter-in-two-optimizers",
    "GCS313": "step-without-effect",
    "GCS314": "step-inside-autocast",
    "GCS315": "learning-rate-zero",
    "GCS316": "weights-not-restored",
    "GCS317": "schedule-not-restored",
    "GCS318": "no-effect",
    "GCS319": "optimizer-made-anew",
    "GCS320": "schedule-not-stepped",
    "GCS401": "graph-broken",
    "GCS402": "forward-under-no-grad",
    "GCS403": "parameter-without-gradient",
    "GCS404": "unregistered-module",
    "GCS405": "forced-requires-grad",
    "GCS406": "frozen-parameter",
    "GCS407": "grad-read-on-non-leaf",
    "GCS408": "checkpoint-cuts-graph",
    "GCS409": "frozen-but-changed",
    "GCS410": "refused-by-torch",
    "GCS411": "constant-loss-term",
    "GCS412": "repeated-layer",
    "GCS413": "nothing-loaded",
    "GCS414": "copy-left-behind",
    "GCS415": "loaded-and-overwritten",
    "GCS501": "backward-arity",
    "GCS502": "legacy-function",
    "GCS503": "missing-mark-dirty",
    "GCS504": "missing-once-differentiable",
    "GCS505": "output-wrongly-differentiable",
    "GCS506": "grad-output-modified",
    "GCS507": "saved-intermediate",
    "GCS508": "none-gradient",
    "GCS601": "wrong-gradient",
    "GCS602": "wrong-second-order",
    "GCS603": "nondeterministic-gradient",
    "GCS604": "non-finite-gradient",
    "GCS605": "forward-mode-mismatch",
    "GCS606": "batched-gradient-mismatch",
    "GCS607": "undefined-gradient",
    "GCS608": "detached-output",
    "GCS609": "layout-dependent-gradient",
    "GCS610": "nonlinear-backward",
    "GCS611": "compiled-gradient-mismatch",
    "GCS612": "dtype-changed",
    "GCS613": "recomputed-differently",
    "GCS614": "outer-broadcast",
    "GCS701": "train-mode-in-eval",
    "GCS702": "stuck-in-eval",
    "GCS703": "dropout-ignores-eval",
    "GCS704": "initial-statistics",
    "GCS705": "seeded-again",
    "GCS706": "state-left-by-evaluation",
    "GCS801": "ranks-diverged",
    "GCS802": "gradient-not-synchronized",
    "GCS901": "legacy-variable",
    "GCS902": "legacy-volatile",
    "GCS903": "legacy-scalar-index",
}
NOTES = {"GCS612", "GCS901"}
WARNINGS = {
    *("GCS102", "GCS105", "GCS106", "GCS203", "GCS204", "GCS205", "GCS206", "GCS306", "GCS308"),
    *("GCS209",),
    *("GCS309", "GCS312", "GCS313", "GCS315", "GCS316", "GCS317", "GCS319", "GCS320", "GCS703"),
    *("GCS403", "GCS406", "GCS407", "GCS408", "GCS504", "GCS505", "GCS507", "GCS701"),
    *(
        "GCS702",
        "GCS704",
        "GCS705",
        "GCS706",
        "GCS412",
        "GCS413",
        "GCS111",
        "GCS112",
        "GCS414",
        "GCS415",
        "GCS614",
    ),
}
FIXABLE = {"GCS107", "GCS201", "GCS305", "GCS404", "GCS504", "GCS901", "GCS902", "GCS903"}
ONLY_AT_RUN_TIME = {
    *("GCS104", "GCS208", "GCS403"),
    *("GCS315", "GCS410", "GCS801"),
    *("GCS602", "GCS603", "GCS605", "GCS606", "GCS607", "GCS608", "GCS609"),
    *("GCS611", "GCS612", "GCS614"),
}
ONLY_IN_SOURCE = {"GCS105", "GCS504", "GCS901"}
PLANNED: set[str] = set()

FILES = Path(catalogue.__file__).with_name("entries")
FORM = re.compile(
    r"---\n"
    r"severity: (error|warning|note)\n"
    r"in_source: (true|false)\n"
    r"at_run_time: (true|false)\n"
    r"fixable: (true|false)\n"
    r"---\n\n"
    r"# .+\n\n"
    r"## What it does\n\n(?P<what>[^#].+?)\n\n"
    r"## Why it is bad\n\n(?P<why>[^#].+?)\n\n"
    r"## How it is detected\n\n(?P<detection>[^#].+?)\n",
    re.DOTALL,
)

# With an indentation of four columns the source still fits a terminal of 80.
WIDEST_SOURCE = 76
LONGEST_TITLE = 72
PROSE = ("what", "why", "detection")

each_entry = pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.code)


def test_codes_keep_their_meaning():
    assert {entry.code: entry.slug for entry in catalogue.ENTRIES} == FROZEN
    assert [entry.code for entry in catalogue.ENTRIES] == sorted(FROZEN)


def test_highest_severities_fixes_and_places():
    by_severity = {
        severity: {entry.code for entry in catalogue.ENTRIES if entry.severity is severity}
        for severity in Severity
    }
    assert by_severity[Severity.NOTE] == NOTES
    assert by_severity[Severity.WARNING] == WARNINGS
    assert {entry.code for entry in catalogue.ENTRIES if entry.fixable} == FIXABLE
    assert {e.code for e in catalogue.ENTRIES if e.planned} == PLANNED
    assert {e.code for e in catalogue.ENTRIES if not e.in_source} == ONLY_AT_RUN_TIME | PLANNED
    assert {e.code for e in catalogue.ENTRIES if not e.at_run_time} == ONLY_IN_SOURCE | PLANNED


def test_every_entry_has_a_constant_of_its_name():
    for entry in catalogue.ENTRIES:
        constant = entry.slug.replace("-", "_").upper()
        assert getattr(catalogue, constant) is entry
        assert constant in catalogue.__all__


def test_every_entry_belongs_to_one_family():
    seen = [entry for family in catalogue.FAMILIES for entry in catalogue.entries_of(family)]
    assert seen == list(catalogue.ENTRIES)
    assert len({family.name for family in catalogue.FAMILIES}) == len(catalogue.FAMILIES)


def test_the_files_are_those_of_the_entries():
    names = {f"{entry.code}-{entry.slug}" for entry in catalogue.ENTRIES}
    kinds = (".md", ".example.py", ".instead.py")
    files = {file.name for file in FILES.iterdir() if file.name != "__pycache__"}
    assert files == {f"{name}{kind}" for name in names for kind in kinds}


@each_entry
def test_markdown_file_has_the_form_of_an_entry(entry: Entry):
    text = (FILES / f"{entry.code}-{entry.slug}.md").read_text("utf-8")
    form = FORM.fullmatch(text)
    assert form is not None
    for field in PROSE:
        assert not re.search(r"^(#|---)|\n\n\n|[ \t]$", form[field], re.MULTILINE)
        assert max(map(len, form[field].splitlines())) <= 100


@each_entry
def test_title_names_the_mistake_on_one_line(entry: Entry):
    assert 10 < len(entry.title) <= LONGEST_TITLE
    assert not entry.title.endswith(".")
    assert "\n" not in entry.title
    assert entry.title.isascii()


@each_entry
def test_prose_is_complete_and_clean(entry: Entry):
    for field in PROSE:
        text = getattr(entry, field)
        paragraphs = text.split("\n\n")
        assert text.isascii()
        assert len(text) > 40
        for paragraph in paragraphs:
            assert paragraph == " ".join(paragraph.split())
            assert paragraph.endswith((".", ":"))
            assert paragraph.count("`") % 2 == 0
        assert not re.search(
            r"\b(planned|todo|fixme|later version|not implemented)\b", text, re.IGNORECASE
        )


@each_entry
def test_detection_says_where_and_how_severe(entry: Entry):
    assert ("In source:" in entry.detection) is entry.in_source
    assert ("At run time:" in entry.detection) is entry.at_run_time
    last = entry.detection.rpartition("\n\n")[2]
    assert last.startswith(f"Severity: {entry.severity.value}")


@each_entry
def test_references_lead_to_entries(entry: Entry):
    for field in PROSE:
        for code in re.findall(r"GCS\d+", getattr(entry, field)):
            assert catalogue.find(code) is not None
            assert code != entry.code


@each_entry
@pytest.mark.parametrize("field", ["example", "instead"])
def test_source_parses_and_fits(entry: Entry, field: str):
    source = getattr(entry, field)
    compile(ast.parse(source, feature_version=(3, 10)), f"<{entry.code}>", "exec")
    assert source.endswith("\n")
    assert not source.endswith("\n\n")
    assert source.isascii()
    for line in source.splitlines():
        assert line == line.rstrip()
        assert len(line) <= WIDEST_SOURCE
        assert "\t" not in line


@each_entry
def test_source_that_a_linter_is_to_read_imports_torch(entry: Entry):
    if entry.in_source:
        assert re.search(r"^(import|from) torch\b", entry.example, re.MULTILINE)


@each_entry
def test_the_correction_changes_the_code(entry: Entry):
    assert ast.dump(ast.parse(entry.example)) != ast.dump(ast.parse(entry.instead))


def test_every_entry_has_a_test_that_runs_its_sources():
    here = Path(__file__).parent
    sources = "\n".join(path.read_text("utf-8") for path in here.glob("examples/test_*.py"))
    tested = {
        f"GCS{number}" for number in re.findall(r"^def test_gcs(\d+)_", sources, re.MULTILINE)
    }
    assert tested == set(FROZEN)
    for code in FROZEN:
        assert re.search(rf'example\("{code}"\)|names\("{code}", which\)', sources), code
        assert re.search(rf'instead\("{code}"\)|names\("{code}", which\)', sources), code


def test_find_takes_codes_and_slugs_in_any_case():
    assert catalogue.find("gcs301") is catalogue.MISSING_ZERO_GRAD
    assert catalogue.find(" GCS301 ") is catalogue.MISSING_ZERO_GRAD
    assert catalogue.find("Missing-Zero-Grad") is catalogue.MISSING_ZERO_GRAD
    assert catalogue.find("missing_zero_grad") is None
    assert catalogue.find("") is None


def test_a_finding_needs_one_file_and_a_lookup_none():
    code = (
        "import sys, gradcheck_suite.catalogue as catalogue\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, words: event == 'open' and opened.append(str(words[0])))\n"
        "for code, field in (('GCS301', 'slug'), ('GCS301', 'severity'), ('GCS201', 'example')):\n"
        "    getattr(catalogue.find(code), field)\n"
        "    print([path.rpartition('entries/')[2] for path in opened if 'entries/' in path])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "[]",
        "['GCS301-missing-zero-grad.md']",
        "['GCS301-missing-zero-grad.md', 'GCS201-graph-kept.example.py']",
    ]


def test_threads_that_read_an_entry_at_once_read_the_same():
    for _ in range(20):
        entry = named("GCS301-missing-zero-grad")
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(repr, [entry] * 8)) == {repr(catalogue.MISSING_ZERO_GRAD)}


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, replace, lambda entry: entry])
def test_an_entry_is_a_plain_value_before_and_after_it_is_read(do):
    entry = named("GCS301-missing-zero-grad")
    for _ in range(2):
        assert do(entry) == pickle.loads(pickle.dumps(do(entry))) == catalogue.MISSING_ZERO_GRAD
        assert hash(do(entry)) == hash(catalogue.MISSING_ZERO_GRAD)
    with pytest.raises(AttributeError, match="'Entry' object has no attribute 'titel'"):
        entry.titel  # noqa: B018


def test_an_entry_without_a_file_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"GCS999-none\.md"):
        named("GCS999-none").title  # noqa: B018


def test_importing_the_catalogue_loads_nothing_heavy():
    code = (
        "import sys; import gradcheck_suite.catalogue; "
        "print(sorted({'torch', 'libcst', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
