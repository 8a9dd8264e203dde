from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A measurement of coverage would import modules of its own.
_ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}

_PROBE = """
import sys
sys.argv = ["gradcheck-lint", *sys.argv[1:]]
from gradcheck_lint.cli import main
status = main()
wanted = {"torch", "libcst", "rich", "numpy", "tomllib", "tomli", "gradcheck_lint.parsing"}
print("LOADED", *sorted(wanted & set(sys.modules)))
"""


def _loaded(directory, *words, before=""):
    done = subprocess.run(
        [sys.executable, "-c", before + _PROBE, *words],
        cwd=directory,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.fixture
def torch_file(tmp_path, buggy):
    path = tmp_path / "train.py"
    path.write_text(buggy)
    return path


@pytest.fixture
def fake_torch(tmp_path):
    """Return statements that put a module called torch where it would be imported from."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "torch.py").write_text("")
    return f"import sys; sys.path.insert(0, {str(tmp_path / 'fake')!r})\n"


def test_file_without_torch_needs_no_parser(tmp_path):
    (tmp_path / "plain.py").write_text("x = 1\n")
    assert _loaded(tmp_path, "plain.py") == set()


def test_torch_file_is_linted_without_torch(tmp_path, torch_file, fake_torch):
    loaded = _loaded(tmp_path, "train.py", before=fake_torch)
    assert "libcst" in loaded
    assert "torch" not in loaded


def test_the_test_above_can_fail(tmp_path, torch_file, fake_torch):
    assert "torch" in _loaded(tmp_path, "train.py", before=f"{fake_torch}import torch\n")


def test_torch_file_that_no_rule_concerns_is_not_given_to_libcst(tmp_path):
    (tmp_path / "loader.py").write_text("import torch\nx = torch.ones(3)\n")
    assert _loaded(tmp_path, "loader.py") == {"gradcheck_lint.parsing"}


@pytest.mark.parametrize("words", [["rules"], ["explain", "GCS301"]])
def test_texts_need_no_parser(tmp_path, words):
    assert not _loaded(tmp_path, *words) & {"torch", "libcst", "rich"}
