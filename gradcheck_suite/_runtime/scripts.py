"""Refuse what is no script before anything slow is loaded for it."""

from __future__ import annotations

import difflib
from pathlib import Path

from gradcheck_suite.errors import UsageError

__all__ = ["refuse_no_script"]

_SUFFIXES = {".py", ".ipynb"}


def refuse_no_script(target: str) -> None:
    """Refuse a path that an audit can't run as a script.

    Raises:
        UsageError: it is empty, a directory or not there.
    """
    if not target:
        raise UsageError("audit: expected a Python script, or -m MODULE, got ''")
    path = Path(target)
    if path.is_dir():
        named = _scripts_in(path)
        such = f", such as {path / named[0]}" if named else ""
        raise UsageError(
            f"audit: {target} is a directory; give it a Python script{such}, or -m MODULE"
        )
    if not path.exists() and not path.is_symlink():
        near = difflib.get_close_matches(path.name, _scripts_in(path.parent), n=1)
        advice = (
            f"did you mean {path.with_name(near[0])}?"
            if near
            else "expected a Python script, or -m MODULE"
        )
        raise UsageError(f"audit: there is no file {target}; {advice}")


def _scripts_in(folder: Path) -> list[str]:
    """Return the names of the scripts in a folder; those called after training come first."""
    try:
        names = [each.name for each in folder.iterdir() if each.suffix.lower() in _SUFFIXES]
    except OSError:
        return []
    return sorted(names, key=lambda name: ("train" not in name, name.startswith("_"), name))
