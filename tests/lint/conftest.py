from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from gradcheck_lint.engine import lint_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gradcheck_suite.findings import Finding


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests off the user's cache."""
    monkeypatch.setenv("GRADCHECK_LINT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def lint() -> Callable[[str], tuple[Finding, ...]]:
    """Lint source, which may be indented as a whole."""

    def run(source: str) -> tuple[Finding, ...]:
        return lint_source(textwrap.dedent(source).lstrip("\n").encode(), "sample.py")

    return run


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed linter in a directory of its own."""

    def run(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gradcheck_lint", *words],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=600,  # only ends a hang: a loaded machine may take minutes
        )

    return run


BUGGY = """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def buggy() -> str:
    """Return source with one error, on line 7: no zero_grad."""
    return BUGGY
