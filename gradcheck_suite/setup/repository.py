"""Find the repository that a folder lies in, by asking git."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Repository", "find_repository"]

_PATIENCE = 30
"""How many seconds git may take to answer: far more than it does, also on a slow disk."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A work tree of git.

    ``root`` is its top folder, ``private`` git's own folder, in which nothing is ever committed,
    and ``hooks`` the folder that git runs hooks from. ``remotes`` are the addresses it is
    exchanged with.
    """

    root: Path
    private: Path
    hooks: Path
    remotes: tuple[str, ...]

    def hook_is_installed(self) -> bool:
        """Return whether git runs pre-commit before each commit."""
        try:
            text = (self.hooks / "pre-commit").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return "pre-commit" in text or "pre_commit" in text


def find_repository(folder: Path) -> Repository:
    """Return the repository that ``folder`` lies in.

    Raises:
        UsageError: there is none, or git does not say.
    """
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-path", "hooks")
    answer = _git(folder, "rev-parse", *asked)
    if answer.returncode != 0 or len(answer.stdout.splitlines()) != len(asked) - 1:
        raise UsageError(
            f"{folder} is in no work tree of git ({_reason(answer.stderr)}); begin one with "
            "`git init`, or go to yours"
        )
    root, private, hooks = answer.stdout.splitlines()
    urls = _git(folder, "config", "--get-regexp", r"^remote\..*\.url$").stdout.splitlines()
    return Repository(
        root=Path(root),
        private=Path(private),
        hooks=folder / hooks,
        remotes=tuple(line.partition(" ")[2] for line in urls),
    )


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = ("git", "-C", str(folder), *words)
    try:
        return subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("git is not installed here; expected `git` on PATH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git does not answer: {error}") from error


def _reason(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else "git says nothing"
