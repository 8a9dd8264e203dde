"""The site builds without a warning, and its pages ask nothing of the network."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gradcheck_suite as gs
from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION, page_of
from gradcheck_suite.auditing.options import AuditOptions

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


@pytest.mark.slow
def test_the_reference_has_what_public_functions_return_and_take(site):
    text = (site / "reference.html").read_text("utf-8")
    told = {
        name.rpartition(".")[2] for name in re.findall(r'<dt class="sig[^>]* id="([^"]+)"', text)
    }
    functions = [getattr(gs, name) for name in gs.__all__ if name[0].islower()]
    returned = {inspect.signature(function).return_annotation for function in functions}
    assert {name for name in returned if name.isidentifier()} - {"bool"} <= told
    for option in dataclasses.fields(AuditOptions):
        assert option.name in text


# Of a page as it lies in a window: whether all of it moves sideways, what ends beyond the window
# and in nothing that can be scrolled, and which pictures are not there.
OUT_OF_REACH = """
(() => {
  const ends = (e) => e.getBoundingClientRect().right <= innerWidth + 1;
  const scrolled = (e) => e && (ends(e) && getComputedStyle(e).overflowX !== "visible"
                                || scrolled(e.parentElement));
  const beyond = [...document.querySelectorAll("article *")]
    .filter((e) => e.getBoundingClientRect().width && !ends(e) && !scrolled(e.parentElement));
  const broken = [...document.images].filter((e) => e.complete && !e.naturalWidth);
  return [...beyond, ...broken].map((e) => e.outerHTML.slice(0, 80)).concat(
    document.documentElement.scrollWidth > innerWidth + 1 ? ["the page"] : []);
})()
"""

TEXT = "document.querySelector('#search-results')?.innerText ?? ''"


@pytest.fixture
def tab(tmp_path):
    browser = pytest.importorskip("tests.graph.render.test_browser")
    if browser.CHROMIUM is None:
        pytest.skip("needs Chromium")
    page = browser.Page(tmp_path)
    yield page
    page.close()


def out_of_reach(tab, path, *, width):
    tab.ask(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=1, mobile=width < 500,
    )  # fmt: skip
    tab.visit(path)
    return tab.evaluate(OUT_OF_REACH)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1366])
def test_every_page_fits_its_window(site, tab, width):
    pages = [page for page in site.rglob("*.html") if page.name != "digits-graph.html"]
    found = {page.name: out_of_reach(tab, page, width=width) for page in pages}
    assert {name: what for name, what in found.items() if what} == {}
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_a_search_from_disk_finds_pages(site, tab):
    tab.ask("Page.navigate", url=f"{(site / 'search.html').as_uri()}?q=missing-zero-grad")
    started = time.monotonic()
    found = "document.querySelectorAll('#search-results li a').length"
    while not (tab.evaluate(found) and "Search Results" in tab.evaluate(TEXT)):
        assert time.monotonic() - started < 60
        time.sleep(0.1)
    assert "GCS301 missing-zero-grad" in tab.evaluate(TEXT)
    assert tab.errors == []


@pytest.mark.slow
def test_what_does_not_fit_would_be_seen(tab, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<meta name="viewport" content="width=device-width"><article>'
        '<p style="width:2000px">wide</p><img src="nowhere.png"></article>'
    )
    assert len(out_of_reach(tab, page, width=390)) == 3
