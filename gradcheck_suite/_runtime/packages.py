"""Where a file stands in a package, and which folder a module of the user's is in."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["folder_that_has", "module_command", "module_of_file"]


def module_of_file(path: Path, *, levels: int = 0) -> tuple[Path, str] | None:
    """Return the folder that a file's package is imported from, and the name of its module.

    A package is a folder with an ``__init__.py``, and so is the one that it lies in, as pytest
    takes them; None for a file that lies in none.

    Args:
        path: the file.
        levels: how many folders are packages, whatever they hold: as many as there are dots in
            the file's relative imports.
    """
    path = path.absolute()
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    depth = 0
    while folder.name.isidentifier() and (depth < levels or (folder / "__init__.py").is_file()):
        names.insert(0, folder.name)
        folder = folder.parent
        depth += 1
    if not depth or not all(name.isidentifier() for name in names):
        return None
    return folder, ".".join(names)


def folder_that_has(module: str) -> Path | None:
    """Return the folder below the working directory that ``module`` can be imported from.

    That is ``src``, or one that the settings of pytest in ``pyproject.toml`` name.
    """
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    file = Path(*parts)
    for name in ("src", *_paths_of_pytest()):
        folder = Path(name)
        if (folder / file.with_suffix(".py")).is_file() or (
            folder / file / "__main__.py"
        ).is_file():
            return folder
    return None


def _paths_of_pytest() -> list[str]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    settings: Any
    try:
        settings = toml.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        for name in ("tool", "pytest", "ini_options", "pythonpath"):
            settings = settings[name]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    listed = settings.split() if isinstance(settings, str) else settings
    return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []


def module_command(folder: Path, module: str) -> str:
    """Return the command that audits a module which is imported from ``folder``."""
    import shlex  # noqa: PLC0415 - rare

    here = Path.cwd()
    folder = folder.absolute()
    command = f"gradcheck-suite audit -m {module}"
    if folder == here:
        return command
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return f"PYTHONPATH={shlex.quote(shown.as_posix())} {command}"
