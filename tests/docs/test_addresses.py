"""One setting has the addresses, and whatever can't read it agrees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import DOCUMENTATION, REPOSITORY, page_of

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "write_addresses.py"


def test_every_file_has_the_addresses_of_the_setting():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_address_is_noticed_and_written_anew(tmp_path):
    (tmp_path / "docs").mkdir()
    script = tmp_path / "docs" / SCRIPT.name
    script.write_text(SCRIPT.read_text("utf-8"), "utf-8")
    page = tmp_path / "README.md"
    page.write_text(
        "- repo: https://github.com/somebody/gradcheck-suite\n"
        "[docs](https://somebody.github.io/gradcheck-suite/catalogue.html)\n"
        "uses: somebody/gradcheck-suite@v1\n"
        "https://github.com/somebody/gradcheck-suite-two\n",
        "utf-8",
    )
    check = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 1
    assert "README.md has another address" in check.stderr
    subprocess.run([sys.executable, script], check=True)
    assert page.read_text("utf-8") == (
        f"- repo: {REPOSITORY}\n"
        f"[docs]({DOCUMENTATION}/catalogue.html)\n"
        f"uses: {REPOSITORY.removeprefix('https://github.com/')}@v1\n"
        "https://github.com/somebody/gradcheck-suite-two\n"
    )


def test_the_code_has_the_addresses_in_one_place():
    written = re.compile(r"https://[\w.-]+/(?:[\w-]+/)?gradcheck-suite")
    folders = ("gradcheck_suite", "lint_rules", "pytest_plugin")
    named = [
        path.name
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if written.search(path.read_text("utf-8"))
    ]
    assert named == ["_addresses.py"]


def test_every_entry_has_an_address_of_its_own():
    assert len({page_of(entry.code) for entry in catalogue.ENTRIES}) == len(catalogue.ENTRIES)
