"""The hooks for pre-commit, as a repository that uses them runs them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_HOOKS = {
    hook["id"]: hook for hook in yaml.safe_load((_ROOT / ".pre-commit-hooks.yaml").read_text())
}


def _entry(identifier):
    command, *words = shlex.split(_HOOKS[identifier]["entry"])
    assert command == "gradcheck-lint"
    return words


@pytest.mark.parametrize("identifier", ["gradcheck-lint", "gradcheck-lint-fix"])
def test_hook_is_complete(identifier):
    hook = _HOOKS[identifier]
    assert hook["language"] == "python"
    assert hook["require_serial"]
    assert {"python", "pyi", "jupyter"} == set(hook["types_or"])


@pytest.mark.parametrize("identifier", ["gradcheck-lint", "gradcheck-lint-fix"])
def test_commit_without_a_python_file_is_fine(command, identifier):
    """pre-commit gives no names where a hook always runs and nothing matches."""
    assert command(*_entry(identifier)).returncode == 0


def test_fix_hook_changes_the_file_and_passes_when_nothing_is_left(command, tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import torch\nx = 1  # noqa: GCS301\n")
    assert command(*_entry("gradcheck-lint-fix"), "a.py").returncode == 0
    assert path.read_text() == "import torch\nx = 1\n"


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_pre_commit_installs_and_runs_the_hooks(tmp_path, buggy):
    """`pre-commit try-repo` builds the working tree into an environment of its own."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "dist", "build")
    shutil.copytree(_ROOT, source, ignore=ignored)
    project = tmp_path / "project"
    project.mkdir()
    environment = {
        **os.environ,
        "PRE_COMMIT_HOME": str(tmp_path / "home"),
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip

    def run(*words, cwd):
        return subprocess.run(
            words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )

    for folder in (source, project):
        run("git", "init", "-q", cwd=folder)
        run("git", "add", "-A", cwd=folder)
        run("git", "commit", "-qm", "x", "--allow-empty", cwd=folder)

    def hook(identifier, *words):
        return run(
            sys.executable, "-m", "pre_commit", "try-repo", str(source), identifier, "--verbose",
            *words, cwd=project,
        )  # fmt: skip

    (project / "clean.py").write_text("import torch\n")
    (project / "notes.txt").write_text("torch\n")
    run("git", "add", "-A", cwd=project)
    done = hook("gradcheck-lint", "--files", "notes.txt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Skipped" in done.stdout
    assert hook("gradcheck-lint", "--files", "clean.py").returncode == 0
    (project / "bad.py").write_text(buggy + "x = 1  # noqa: GCS101\n")
    done = hook("gradcheck-lint", "--files", "bad.py", "clean.py")
    assert done.returncode == 1
    assert "bad.py:7:9: GCS301" in done.stdout
    done = hook("gradcheck-lint-fix", "--files", "bad.py")
    assert done.returncode == 1
    assert (project / "bad.py").read_text() == buggy + "x = 1\n"
