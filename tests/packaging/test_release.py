"""The gates of a release, and that anybody builds the same bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from gradcheck_suite import __version__
from gradcheck_suite._addresses import REPOSITORY

ROOT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## [Unreleased]

- to come

## [1.2.3] - 2026-11-26

### Added

- something

## [1.2.2] - 2026-11-25
"""


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The module of the gates, at work on a repository of its own."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    write(tmp_path, "CHANGELOG.md", CHANGELOG)
    write(tmp_path, "README.md", "  rev: v1.2.3\n")
    write(tmp_path, "gradcheck_suite/_version.py", '__version__ = "1.2.3"\n')
    write(tmp_path, "gradcheck_suite/_addresses.py", 'REPOSITORY = "https://x/me/y"\n')
    write(tmp_path, "templates/t.yml", '      default: "1.2.3"\n')
    git(tmp_path, "init", "--initial-branch=main")
    commit(tmp_path, "first")
    return module


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def commit(folder, message):
    git(folder, "add", ".")
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    git(folder, *who, "commit", "--allow-empty", "-m", message)


def refusal(module, *words, capsys):
    status = module.main(list(words))
    said = capsys.readouterr().err
    assert (status, bool(said)) in {(0, False), (1, True)}
    return said


def test_a_tag_of_this_version_with_notes_may_go(release, capsys):
    assert refusal(release, "gate", "v1.2.3", capsys=capsys) == ""
    assert release.main(["notes", "v1.2.3"]) == 0
    assert capsys.readouterr().out == "### Added\n\n- something\n"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", "# Changelog\n", "has no heading `## [1.2.3] - YEAR-MONTH-DAY`"),
        ("CHANGELOG.md", "## [1.2.3] - 2026-11-26\n\n## [1]\n", "says nothing of v1.2.3"),
        ("README.md", "rev: v1.2.2\n", "README.md names version 1.2.2"),
        ("README.md", "x/gradcheck-suite@v1.2.2\n", "README.md names version 1.2.2"),
        ("templates/t.yml", '  default: "1.2.2"\n', "templates/t.yml names version"),
        ("gradcheck_suite/_addresses.py", '"https://x/OWNER/y"\n', "has no real owner"),
        ("gradcheck_suite/_version.py", "", "has no line `__version__ = ...`"),
    ],
)
def test_what_does_not_belong_together_may_not(release, capsys, name, text, reason):
    write(release.ROOT, name, text)
    assert reason in refusal(release, "gate", "v1.2.3", capsys=capsys)


def test_a_tag_of_another_version_may_not(release, capsys):
    said = refusal(release, "gate", "v1.2.4", capsys=capsys)
    assert said == "the tag is v1.2.4, and gradcheck_suite/_version.py has 1.2.3\n"


@pytest.mark.parametrize(
    ("changed", "message", "is_refused"),
    [
        (["gradcheck_suite/x.py"], "change", True),
        (["lint_rules/x.py", "docs/x.md"], "change", True),
        (["gradcheck_suite/x.py", "CHANGELOG.md"], "change", False),
        (["gradcheck_suite/x.py"], "change\n\nChangelog: none", False),
        (["gradcheck_suite/x.py"], "change\n\nThe Changelog: none of it", True),
        (["tests/x.py", "docs/x.md"], "change", False),
    ],
)
def test_what_is_shipped_is_told(release, capsys, changed, message, is_refused):
    git(release.ROOT, "checkout", "-b", "branch")
    for name in changed:
        write(release.ROOT, name, "new\n")
    commit(release.ROOT, message)
    said = refusal(release, "changelog", "main", capsys=capsys)
    assert ("is shipped, and CHANGELOG.md tells nothing of the change" in said) is is_refused


def test_a_base_that_is_not_there_is_told(release, capsys):
    assert refusal(release, "changelog", "origin/main", capsys=capsys).startswith("git diff: ")


def test_anything_else_prints_what_there_is(release, capsys):
    assert release.main(["publish"]) == 2
    assert "release.py gate v0.1.0" in capsys.readouterr().err


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """What ``build`` writes of this tree, which proves the round trip and the same bytes."""
    out = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), "build", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_two_builds_and_the_way_by_the_sdist_give_the_same_bytes(distributions):
    names = {file.name for file in distributions.iterdir()}
    assert names == {
        f"gradcheck_suite-{__version__}.tar.gz",
        f"gradcheck_suite-{__version__}-py3-none-any.whl",
    }
    sums = (distributions.parent / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in sums} == names
    for line in sums:
        digest, name = line.split("  ")
        assert hashlib.sha256((distributions / name).read_bytes()).hexdigest() == digest


@pytest.mark.slow
def test_the_metadata_name_the_repository_and_all_files_have_one_time(distributions):
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
        dates = {info.date_time for info in archive.infolist()}
    addresses = dict(entry.split(", ") for entry in metadata.get_all("Project-URL"))
    assert addresses["Repository"] == REPOSITORY
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# gradcheck-suite" in metadata.get_payload()
    assert len(dates) == 1
