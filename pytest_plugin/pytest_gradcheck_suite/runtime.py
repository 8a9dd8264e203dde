"""Load the half of gradcheck-suite that needs torch, and say why where it can't be.

pytest rewrites the assertions of every module of a distribution that has a plugin: it reads the
source of each, goes through its whole syntax tree and compiles it. Ours have nothing to rewrite
for, and a run that audits loads some eighty of them. Where no bytecode is kept
(``PYTHONDONTWRITEBYTECODE``, a folder that can't be written to, the first run after an upgrade)
that takes as long as many a suite of tests.
"""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import gradcheck_suite
from gradcheck_suite._torch_floor import complaint_about
from gradcheck_suite.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = [
    "import_without_rewriting",
    "refuse_to_start_without_torch",
    "runtime",
    "why_torch_is_unusable",
]


def runtime(needed_by: str = "gradcheck-suite") -> ModuleType:
    """Return ``gradcheck_suite`` with torch loaded; fail the running test if there is no torch.

    Args:
        needed_by: what of ours the test uses, for the message.
    """
    __tracebackhide__ = True
    problem = why_torch_is_unusable(needed_by)
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    return gradcheck_suite


def why_torch_is_unusable(needed_by: str) -> str | None:
    """Load torch; return what to say where it is missing, too old or broken, and None elsewhere."""
    try:
        import gradcheck_suite._torch_compat  # noqa: F401, PLC0415 - loads torch
    except MissingDependencyError as error:
        return f"{needed_by} can't be used: {error}"
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _not_installed(needed_by)
    return None


def refuse_to_start_without_torch(needed_by: str) -> None:
    """Refuse to start where every test would need a torch that isn't there, or is too old.

    Raises:
        pytest.UsageError: no torch is installed, or one that is too old. Nothing is loaded to
            know that: the main process of xdist's needs none.
    """
    if find_spec("torch") is None:
        raise pytest.UsageError(_not_installed(needed_by))
    try:
        complaint = complaint_about(metadata.version("torch"))
    except metadata.PackageNotFoundError:  # built from source: the tests will tell
        return
    if complaint is not None:
        raise pytest.UsageError(complaint)


def _not_installed(needed_by: str) -> str:
    return (
        f"{needed_by} needs PyTorch, which is not installed here; install it with: "
        "pip install 'gradcheck-suite[torch]'"
    )


class _OwnModulesFinder:
    """Finds modules of ours, and no others, where Python itself would."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of ours is; None, which lets others look for it, for any other."""
        if fullname.partition(".")[0] not in {"gradcheck_suite", "pytest_gradcheck_suite"}:
            return None
        return PathFinder.find_spec(fullname, path, target)


def import_without_rewriting(config: pytest.Config) -> None:
    """Spare our modules the rewriting of assertions, until the run is over."""
    if any(isinstance(finder, _OwnModulesFinder) for finder in sys.meta_path):
        return
    finder = _OwnModulesFinder()
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    config.add_cleanup(undo)
