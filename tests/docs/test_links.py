"""Every link of a page leads to a file, and to a heading that it has."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from gradcheck_suite._addresses import DOCUMENTATION, REPOSITORY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@functools.cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the addresses of headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain
    )


def file_of(address: str, page: Path) -> Path | None:
    """Return the file that a link leads to, or None where it leads out of the project."""
    if address.startswith(f"{REPOSITORY}/"):
        return ROOT / re.sub(r"^(?:blob|tree|raw)/main/", "", address[len(REPOSITORY) + 1 :])
    if address.startswith(f"{DOCUMENTATION}/"):
        path = address[len(DOCUMENTATION) + 1 :].replace(".html", ".md")
        entry = re.fullmatch(r"catalogue/(GCS\d+)\.md", path)
        if entry is None:
            return ROOT / "docs" / (path or "index.md")
        (found,) = (ROOT / "gradcheck_suite/catalogue/entries").glob(f"{entry[1]}-*[a-z].md")
        return found
    return None if "://" in address else page.parent / address


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        address, _, anchor = link.partition("#")
        file = file_of(address, page) if address else page
        if file is None:
            continue
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(link)
    assert broken == []


def test_a_broken_link_would_be_seen():
    assert not file_of("nowhere.md", ROOT / "README.md").exists()
    assert "nothing" not in anchors_of(ROOT / "README.md")


def test_every_page_is_in_the_contents():
    index = ROOT / "docs" / "index.md"
    gallery = ROOT / "docs" / "gallery" / "index.md"
    listed = {
        (page.parent / link).resolve()
        for page in (index, gallery)
        for link in LINK.findall(page.read_text("utf-8"))
    }
    assert set(PAGES) - {ROOT / "README.md", index} <= listed
