"""The plain index of the documentation: current, complete, and without dead links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gradcheck_suite import catalogue
from gradcheck_suite._addresses import REPOSITORY

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "docs" / "generate_llms_index.py"


def generate(script, *arguments):
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )


def test_the_index_is_current():
    done = generate(GENERATOR, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_every_page_and_every_entry_is_in_it_once_with_words_of_its_own():
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)(: .+)?$", text, re.MULTILINE)
    addresses = [address.removeprefix(f"{REPOSITORY}/raw/main/") for _, address, _ in lines]
    assert len(set(addresses)) == len(addresses)
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(addresses)
    assert all((ROOT / address).is_file() for address in addresses)
    assert len(addresses) == len(pages) + len(catalogue.ENTRIES)
    assert all(words for _, _, words in lines)


def test_words_say_what_a_page_is_about_and_not_how_it_came_about():
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    told = re.findall(r"^- \[[^\]]+\]\([^)]+\): (.+)$", text, re.MULTILINE)
    assert all(len(words) > 12 for words in told)
    made = re.compile(r"Written by|Reported as|Goal:|import |\d+$")
    assert [words for words in told if made.match(words)] == []


def test_check_notices_what_is_missing(tmp_path):
    script = tmp_path / "docs" / "generate_llms_index.py"
    (script.parent / "development").mkdir(parents=True)
    script.write_text(GENERATOR.read_text("utf-8"), "utf-8")
    done = generate(script, "--check")
    assert done.returncode == 1
    assert "is out of date; run: python docs/generate_llms_index.py" in done.stderr
    assert generate(script).returncode == 0
    assert generate(script, "--check").returncode == 0
