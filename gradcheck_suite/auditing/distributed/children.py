"""Child processes of a script, each under an audit of its own that tells the parent's."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import fields
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.distributed.merging import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gradcheck_suite.auditing.options import AuditOptions
    from gradcheck_suite.findings import Report

__all__ = ["AuditedTarget", "Children", "is_of_user"]

_AT_THE_VERY_END = -2000
"""After the report of a child is made: see ``_LAST`` of ``session``."""


class Children:
    """The processes that multiprocessing starts for a script, and what they leave behind.

    A child writes its report to a folder on this machine, or, where children train together, the
    first of them that of all.

    Args:
        options: of the audit of the script.
        audit: opens the audit of a child, given such options.
    """

    def __init__(self, options: AuditOptions, audit: Callable[..., Any]) -> None:
        named = {each.name: getattr(options, each.name) for each in fields(options)}
        # The report goes to the folder.
        del named["report"]
        self._options = named
        self._audit = audit
        self._process = os.getpid()
        self._folder: Path | None = None
        self.started = 0

    def audited(self, target: Callable[..., object]) -> AuditedTarget:
        """Return what a child is to run in place of ``target``."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gradcheck-suite-"))
            atexit.register(self.remove)
        self.started += 1
        begin = partial(self._audit, **self._options)
        return AuditedTarget(target, begin, str(self._folder), self.started)

    def reports(self) -> list[Report]:
        """Return what children have reported by now."""
        return [unpacked(each.read_bytes()) for each in self._files("*.json")]

    def not_covered(self) -> list[str]:
        """Return what to say of those that left no report."""
        missing = self.started - len(self._files("*.ended"))
        if not missing:
            return []
        children = "1 child process" if missing == 1 else f"{missing:,} child processes"
        return [f"{children} of {self.started:,}, which ended, or run, without a report"]

    def remove(self) -> None:
        """Remove the folder."""
        if self._folder is not None and os.getpid() == self._process:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _files(self, pattern: str) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob(pattern))


class AuditedTarget:
    """Runs the target of a child process under an audit; goes to the child as the target would."""

    def __init__(
        self,
        target: Callable[..., object],
        audit: Callable[..., AbstractContextManager[Any]],
        folder: str,
        number: int,
    ) -> None:
        self._target = target
        self._audit = audit
        self._folder = folder
        self._number = number

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Run the target."""
        report = Path(self._folder, f"{self._number}.json")
        Finalize(None, self._end, exitpriority=_AT_THE_VERY_END)
        with self._audit(report=str(report)):
            return self._target(*args, **kwargs)

    def _end(self) -> None:
        # The parent may have ended.
        with suppress(OSError):
            Path(self._folder, f"{self._number}.ended").touch()


def is_of_user(target: object) -> bool:
    """Return whether a process with this target may train: Python's own pools do not, nor loaders.

    A pool runs functions of the program's one after another, and knows no end of its training.
    """
    module = str(getattr(target, "__module__", "") or "")
    own = module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}
    return callable(target) and not own and not module.startswith("torch.utils.data.")
