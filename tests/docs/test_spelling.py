"""The spelling of pages, docstrings and messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("codespell_lib", reason="the spelling is checked with codespell")

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "gradcheck_suite")
ALSO = ("lint_rules", "pytest_plugin")
# Words of the field, and names that others chose.
OURS = "coo,notin,schedul,summar"


def misspelt_in(*paths):
    words = ["--ignore-words-list", OURS, "--skip", "*.svg,*.gz,*.ipynb,*.js,*.css,__pycache__"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *words, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
def test_nothing_is_misspelt():
    assert misspelt_in(*PLACES, *ALSO) == ""


def test_a_misspelt_word_would_be_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A gradient that is seperate.\n", "utf-8")
    assert "seperate ==> separate" in misspelt_in(page)
