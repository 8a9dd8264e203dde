"""Import the modules of gradcheck-suite as Python does, not as pytest would.

pytest rewrites the assertions of every module of a distribution that has a plugin: it reads the
source of each, goes through its whole syntax tree and compiles it. Ours have nothing to rewrite
for, and a run that audits loads some eighty of them. Where no bytecode is kept
(``PYTHONDONTWRITEBYTECODE``, a folder that can't be written to, the first run after an upgrade)
that takes as long as many a suite of tests.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    import pytest

__all__ = ["import_plainly"]

_OURS = frozenset({"gradcheck_suite", "pytest_gradcheck_suite"})


class _PlainFinder:
    """Finds modules of ours, and no others, where Python itself would."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of ours is; None, which lets others look for it, for any other."""
        if fullname.partition(".")[0] not in _OURS:
            return None
        return PathFinder.find_spec(fullname, path, target)


def import_plainly(config: pytest.Config) -> None:
    """Spare our modules the rewriting of assertions, until the run is over."""
    if any(isinstance(finder, _PlainFinder) for finder in sys.meta_path):
        return
    finder = _PlainFinder()
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    config.add_cleanup(undo)
