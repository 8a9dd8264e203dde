from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradcheck_suite import catalogue

DOCS = Path(__file__).parents[2] / "docs"


def _generate(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def copied(tmp_path):
    """Copy the generator to a folder of its own, where it may write."""
    script = tmp_path / "generate_catalogue.py"
    script.write_text((DOCS / "generate_catalogue.py").read_text("utf-8"), "utf-8")
    return script


def test_the_page_is_up_to_date():
    done = _generate(DOCS / "generate_catalogue.py", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_notices_a_missing_and_a_changed_page(copied):
    page = copied.with_name("catalogue.md")
    missing = _generate(copied, "--check")
    assert missing.returncode == 1
    assert "is out of date; run: python docs/generate_catalogue.py" in missing.stderr
    assert not page.exists()

    assert _generate(copied).returncode == 0
    assert page.read_text("utf-8") == (DOCS / "catalogue.md").read_text("utf-8")
    assert _generate(copied, "--check").returncode == 0

    page.write_text(page.read_text("utf-8").replace("GCS301", "GCS399", 1), "utf-8")
    assert _generate(copied, "--check").returncode == 1


def test_an_unknown_argument_is_refused(copied):
    done = _generate(copied, "--chek")
    assert done.returncode == 2
    assert "usage: generate_catalogue.py [--check]" in done.stderr


def test_every_entry_has_a_link_to_its_file():
    text = (DOCS / "catalogue.md").read_text("utf-8")
    links = re.findall(r"\[(GCS\d+)\]\(([^)]+)\)", text)
    assert [code for code, _ in links] == [entry.code for entry in catalogue.ENTRIES]
    assert all((DOCS / link).is_file() and f"/{code}-" in link for code, link in links)
