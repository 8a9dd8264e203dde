"""Import all parts of a package, whatever some of them do, and say what could not be looked at."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["import_all", "without_example"]

_ENDS_THE_RUN = (KeyboardInterrupt, pytest.exit.Exception)


def import_all(package: str, subject: str) -> list[str]:
    """Import a package and what is below it; return what could not be looked at, a clause each.

    A part that leaves grad mode changed as it is imported would decide the outcome of every test:
    it is put back.

    Args:
        package: its name.
        subject: how to speak of the setting that names it.

    Raises:
        pytest.UsageError: the package itself can't be imported.
    """
    import torch  # noqa: PLC0415 - for packages that are checked

    grad = torch.is_grad_enabled()
    try:
        root = importlib.import_module(package)
    except ImportError as error:
        raise pytest.UsageError(
            f"{subject}: cannot import {package!r}: {error}; install it, or add "
            "its folder to pytest's setting pythonpath"
        ) from error
    except _ENDS_THE_RUN:
        raise
    except BaseException as error:
        raise pytest.UsageError(f"{subject}: cannot import {package!r}: {_named(error)}") from error
    remarks = list(_import_below(root))
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
        state = "disabled" if grad else "enabled"
        remarks.append(f"its import left grad mode {state}; it was put back")
    return remarks


def _import_below(package: ModuleType) -> Iterator[str]:
    # pkgutil.walk_packages would import packages itself, and end with what ends one of them.
    known = set()
    for found in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        known.add(found.name)
        if found.name.rpartition(".")[2] == "__main__":
            continue
        yield from _import_part(found.name)
    is_namespace = getattr(package, "__file__", None) is None
    for name in _bare_folders(package):
        if name in known:
            continue
        if is_namespace:
            yield from _import_part(name)
        else:  # may well be no part of the package: templates, data
            yield f"did not look into {name}, which has no __init__.py"


def _import_part(name: str) -> Iterator[str]:
    try:
        module = importlib.import_module(name)
    except _ENDS_THE_RUN:
        raise
    except BaseException as error:  # noqa: BLE001 - a script's sys.exit, pytest.skip
        yield f"could not import {name} ({_named(error)})"
    else:
        yield from _import_below(module)


def _bare_folders(package: ModuleType) -> list[str]:
    """Return the names of folders without an ``__init__.py`` that may be parts of a package.

    Of a package that has one itself, those with modules in them; of a namespace, all.
    """
    is_namespace = getattr(package, "__file__", None) is None
    return sorted(
        {
            f"{package.__name__}.{folder.name}"
            for path in getattr(package, "__path__", ())
            if Path(path).is_dir()
            for folder in Path(path).iterdir()
            if folder.name.isidentifier()
            and folder.name != "__pycache__"
            and folder.is_dir()
            and not (folder / "__init__.py").exists()
            and (is_namespace or any(folder.glob("*.py")))
        }
    )


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def without_example(package: str, known: set[int]) -> list[str]:
    """Return the modules and Functions of a package that nobody has given an example."""
    import torch  # noqa: PLC0415 - the package has just been imported

    found = set()
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith(f"{package}."):
            continue
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, (torch.nn.Module, torch.autograd.Function))
                and value.__module__ == name
                and id(value) not in known
            ):
                found.add(f"{name}.{value.__qualname__}".removeprefix(f"{package}."))
    return sorted(found)
