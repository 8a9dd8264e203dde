from __future__ import annotations

import os

import pytest

from gradcheck_lint.config import Settings
from gradcheck_lint.discovery import find_files, is_hidden
from gradcheck_lint.runner import lint_paths


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(*paths):
        for path in paths:
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("import torch\n")
        return tmp_path

    return make


def _found(*paths, is_excluded=lambda *_, **__: False):
    return [item.path.replace(os.sep, "/") for item in find_files(paths, is_excluded=is_excluded)]


def test_directories_are_walked_in_order_and_only_for_python(tree):
    tree("b.py", "a/z.py", "a/y.pyi", "a/notes.txt", "c/d/e.py")
    assert _found(".") == ["b.py", "a/y.pyi", "a/z.py", "c/d/e.py"]


@pytest.mark.parametrize(
    "name", [".git", ".venv", ".hidden", "venv", "__pycache__", "node_modules"]
)
def test_directories_of_tools_are_left_out(tree, name):
    tree(f"{name}/a.py", f"src/{name}/b.py", "c.py")
    assert _found(".") == ["c.py"]


def test_named_file_is_read_wherever_it_lies_and_whatever_its_name(tree):
    tree(".venv/a.py", "script")
    assert _found(".venv/a.py", "script") == [".venv/a.py", "script"]


def test_directory_that_is_named_is_walked_even_if_hidden(tree):
    tree(".venv/lib/a.py")
    assert _found(".venv") == [".venv/lib/a.py"]


def test_file_is_found_once(tree):
    tree("a/b.py")
    assert _found("a", "a/b.py", "./a") == ["a/b.py"]


def test_symbolic_links_below_a_directory_are_not_followed(tree, tmp_path_factory):
    root = tree("a/b.py")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.py").write_text("import torch\n")
    (root / "a" / "loop").symlink_to(root, target_is_directory=True)
    (root / "a" / "out").symlink_to(outside, target_is_directory=True)
    (root / "a" / "file.py").symlink_to(outside / "secret.py")
    (root / "a" / "dangling.py").symlink_to(root / "nowhere.py")
    assert _found(".") == ["a/b.py"]


def test_link_that_is_named_is_followed(tree):
    root = tree("a/b.py")
    (root / "link").symlink_to(root / "a", target_is_directory=True)
    assert _found("link") == ["link/b.py"]


def test_excluded_directory_is_not_entered(tree):
    tree("keep/a.py", "drop/b.py")
    assert _found(".", is_excluded=lambda path, **_: path.endswith("drop")) == ["keep/a.py"]


def test_directory_that_cannot_be_read_is_told(tree, monkeypatch):
    tree("good/a.py", "locked/b.py")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    items = list(find_files(["."], is_excluded=lambda *_, **__: False))
    assert [(item.path, item.error) for item in items if item.error] == [
        (f".{os.sep}locked", "Permission denied")
    ]
    assert [item.path for item in items if not item.error] == [f"good{os.sep}a.py"]


def test_hidden_means_below_the_working_directory(tree):
    tree(".venv/a.py", "src/a.py")
    assert is_hidden(".venv/a.py")
    assert not is_hidden("src/a.py")
    assert not is_hidden("../.elsewhere/a.py")


def test_file_that_vanishes_is_a_finding_and_the_others_are_linted(tree, monkeypatch, buggy):
    root = tree("a.py", "b.py")
    (root / "b.py").write_text(buggy)
    real = os.open

    def vanished(path, *arguments, **options):
        if str(path).endswith("a.py"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, *arguments, **options)

    monkeypatch.setattr("gradcheck_lint.files.os.open", vanished)
    report = lint_paths(["."], settings_for=lambda _: Settings(root)).report
    assert [finding.code for finding in report.findings] == ["GCS000", "GCS301"]
    assert report.summary["files"] == 2
