"""The pages of the gallery say what their programs do."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from gradcheck_suite import catalogue
from tests import warm_python

DOCS = Path(__file__).parents[2] / "docs"


def generator():
    """Load docs/generate_gallery.py, which is part of no package."""
    spec = importlib.util.spec_from_file_location("generate_gallery", DOCS / "generate_gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_gallery"] = module
    spec.loader.exec_module(module)
    return module


GALLERY = generator()
NAMES = GALLERY.names()


def run(words):
    if "torch.distributed.run" in words:  # starts processes of its own
        return GALLERY.run_here(words)
    return warm_python.run(words, cwd=GALLERY.PROGRAMS)


def page_of(name):
    return (GALLERY.GALLERY / f"{name}.md").read_text("utf-8")


def without_rounding(page):
    """Leave out how much of a difference is rounding, which is another on another processor."""
    return re.sub(r"(rounding explains) [\d.e+-]+", r"\1 ...", page)


@pytest.mark.sampled(every=10)
@pytest.mark.one_torch
@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_its_program_does(name):
    assert without_rounding(GALLERY.page(name, run)) == without_rounding(page_of(name))


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize("name", NAMES)
def test_of_the_corrected_program_nothing_is_said(name):
    story = GALLERY.Story.of(name)
    command = story.command.replace(f"{name}.py", f"{name}_fixed.py")
    assert GALLERY.findings_of(command, run) == []
    assert GALLERY.findings_of(f"gradcheck-lint {name}_fixed.py", run) == []


def test_the_index_is_up_to_date():
    assert (GALLERY.GALLERY / "index.md").read_text("utf-8") == GALLERY.index()


def test_there_are_twenty_reports_and_one_in_each_family():
    reports = {GALLERY.Story.of(name).report for name in NAMES}
    assert len(reports) == len(NAMES) >= 20
    assert all(re.fullmatch(r"https://github\.com/[\w./-]+/\d+", each) for each in reports)
    told = {code[:4] for name in NAMES for code in re.findall(r"\*\*(GCS\d+)", page_of(name))}
    assert told == {family.prefix for family in catalogue.FAMILIES}


def test_every_program_is_on_a_page_and_every_page_has_one():
    pages = {page.stem for page in GALLERY.GALLERY.glob("*.md")} - {"index"}
    assert pages == set(NAMES)
    for name in NAMES:
        assert GALLERY.Story.of(name).source in page_of(name)
        assert (GALLERY.PROGRAMS / f"{name}_fixed.py").exists()
