from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from gradcheck_lint.flake8_plugin import Flake8Checker


def _run(source):
    checker = Flake8Checker(None, "x.py", source.splitlines(keepends=True))
    return [(line, column, text) for line, column, text, _ in checker.run()]


def test_findings_have_lines_columns_from_0_and_codes(buggy):
    ((line, column, text),) = _run(buggy)
    assert (line, column) == (7, 8)
    assert text.startswith("GCS301 `optimizer.step()` repeats")


def test_source_that_flake8_reports_itself_is_left_to_it():
    assert _run("import torch\nx = = 1\n") == []


def test_declared_encoding_is_heeded():
    line = "café = 1; w = torch.ones(2, requires_grad=True); w += 1\n"
    ((_, column, _),) = _run(f"# coding: latin-1\nimport torch\n{line}")
    assert column == line.index("w += 1")


def test_file_without_torch_is_passed_over():
    assert _run("x = 1  # noqa: GCS301\n") == []


def test_plugin_is_registered():
    (entry,) = [entry for entry in entry_points(group="flake8.extension") if entry.name == "GCS"]
    assert entry.load() is Flake8Checker


def test_flake8_runs_it(tmp_path, buggy):
    pytest.importorskip("flake8")
    (tmp_path / "a.py").write_text(buggy)
    words = ["-m", "flake8", "--isolated", "--select", "GCS", "a.py"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("a.py:7:9: GCS301 ")
    assert done.returncode == 1
