"""The site builds without a warning, and its pages ask nothing of the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION, page_of

pytest.importorskip("sphinx", reason="the site is built with the extra docs")
pytest.importorskip("furo", reason="as above")
pytest.importorskip("myst_parser", reason="as above")

ROOT = Path(__file__).parents[2]
# What a browser loads by itself, which a link is not.
LOADED = re.compile(
    r"<(?:script|img|source|iframe)[^>]*\ssrc=\"([^\"]+)|<link[^>]*\shref=\"([^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_site.py", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.slow
def test_every_code_has_its_page(site):
    for entry in catalogue.ENTRIES:
        page = site / page_of(entry.code).removeprefix(f"{DOCUMENTATION}/")
        text = page.read_text("utf-8")
        assert f"{entry.code} {entry.slug}" in text
        for heading in ("Example", "Use instead", "How it is detected"):
            assert heading in text


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        loaded = {a or b for a, b in LOADED.findall(page.read_text("utf-8"))}
        assert [each for each in loaded if "//" in each] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", style.read_text("utf-8"))


@pytest.mark.slow
def test_it_can_be_searched(site):
    assert "Search.setIndex" in (site / "searchindex.js").read_text("utf-8")
