"""The oldest torch that the run-time half works with, and what is said of any other."""

from __future__ import annotations

import importlib
import re
from typing import Final

from gradcheck_suite.errors import MissingDependencyError

__all__ = ["OLDEST", "complaint_about", "require_torch"]

OLDEST: Final = (2, 6)
"""Proved by ``make compat``: docs/compatibility.md has the versions and what differs."""


def require_torch() -> None:
    """Import torch, and refuse one that can't be worked with.

    Raises:
        ModuleNotFoundError: there is none.
        MissingDependencyError: it is older than ``OLDEST``, its import fails, or what the name
            ``torch`` stands for is not PyTorch.
    """
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise
        reason = " ".join(str(error).split())
        raise MissingDependencyError(
            "gradcheck-suite runs code with PyTorch, and the import of the torch that is installed "
            f"here fails ({type(error).__name__}: {reason}). Expected `python -c 'import torch'` "
            f"to work: install torch again. {_GOES_ON}"
        ) from error
    version = getattr(torch, "__version__", None)
    if version is None:
        where = getattr(torch, "__file__", None) or ", ".join(getattr(torch, "__path__", ()))
        raise MissingDependencyError(
            "gradcheck-suite runs code with PyTorch, and `import torch` finds something else here: "
            f"{where}. Rename it, or install PyTorch. {_GOES_ON}"
        )
    complaint = complaint_about(str(version))
    if complaint is not None:
        raise MissingDependencyError(complaint)


def complaint_about(version: str) -> str | None:
    """Return what to say of a version of torch that is too old; None for any other.

    >>> complaint_about("2.16.0.dev20261101+cpu"), complaint_about("2.6.0a0+git1234567")
    (None, None)
    >>> print(complaint_about("2.4.1+cpu"))
    gradcheck-suite needs PyTorch 2.6 or later to run code, and torch 2.4.1+cpu is installed here; \
upgrade it: pip install --upgrade 'torch>=2.6'. gradcheck-lint, explain and rules work without
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return (
        f"gradcheck-suite needs PyTorch {oldest} or later to run code, and torch {version} is "
        f"installed here; upgrade it: pip install --upgrade 'torch>={oldest}'. {_GOES_ON}"
    )


_GOES_ON = "gradcheck-lint, explain and rules work without"
