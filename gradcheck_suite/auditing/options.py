"""What an audit looks at and how often."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import format_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.findings import Finding, Report

__all__ = ["AuditOptions", "ReportTarget", "options_from"]

ReportTarget: TypeAlias = "bool | str | os.PathLike[str] | Callable[[Report], object]"
"""Where the report of an audit goes when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Say what an audit checks on each step.

    Attributes:
        checksum_first_steps: the number of steps, from the start, on which every saved tensor is
            checksummed. A deterministic mistake shows on the first.
        checksum_every: after those, every this many steps, whatever it takes; 0 means never again;
            None, the default, means every 20th, and later where ``overhead`` is used up.
        overhead: the per cent that the audit may add to the time of a step. Where it finds that it
            adds more, it passes over a part of the steps, once 200 have been watched and as long
            as all is well; ``math.inf`` watches each. Checksums may take a tenth of this, where
            ``checksum_every`` is None.
        name_writers: whether in-place methods are watched, so that a finding can name the line
            that overwrote a tensor.
        watch_writers: when saved tensors are watched line by line for who overwrites them, where
            writers take no note: ``"after_corruption"``, on the steps after one on which that was
            found; ``"from_start"``, on the first steps as well, for code that runs once, such as
            tests; or ``"never"``.
        graph_limit: the number of steps whose graphs one holder keeps that makes it worth a look.
        max_steps: watch so many steps and then no more, for the first of a long run; None watches
            all.
        wait_for_ranks: where many processes train together, how many seconds rank 0 waits at its
            end for the reports of the others.
        compare_optimizer_state: whether ranks also compare the state of their optimizers, such as
            moments, which takes as much time as to compare so many parameters.
        stream: a file that each finding is appended to the moment it is known, as one line of
            JSON, so that a process that is killed loses none.
        ignore: codes or names of mistakes that are not told, such as ``["GCS702"]``; how many were
            found is.
        report: where the report goes when the audit ends: True, to standard error, if there is
            something to say; False, nowhere; a function, which is given it; or a file, in the
            format of its suffix.
    """

    checksum_first_steps: int = 3
    checksum_every: int | None = None
    overhead: float = 5.0
    name_writers: bool = True
    watch_writers: Literal["after_corruption", "from_start", "never"] = "after_corruption"
    graph_limit: int = 3
    max_steps: int | None = None
    wait_for_ranks: float = 60.0
    compare_optimizer_state: bool = False
    stream: str | os.PathLike[str] | None = None
    ignore: Collection[str] = ()
    report: ReportTarget = True

    def __post_init__(self) -> None:
        for name, least in (
            ("checksum_first_steps", 0),
            ("checksum_every", 0),
            ("graph_limit", 2),
            ("max_steps", 1),
        ):
            value = getattr(self, name)
            if value is None and name in ("checksum_every", "max_steps"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(
                    f"audit: {name} must be a whole number of at least {least}, got {value!r}"
                )
        for name in ("name_writers", "compare_optimizer_state"):
            switch: object = getattr(self, name)
            if not isinstance(switch, bool):
                raise UsageError(f"audit: {name} must be a bool, got {switch!r}")
        if self.watch_writers not in _WATCHES:
            raise UsageError(
                f"audit: watch_writers must be one of {', '.join(map(repr, _WATCHES))}, got "
                f"{self.watch_writers!r}"
            )
        path: object = self.stream
        if path is not None and not (isinstance(path, (str, os.PathLike)) and os.fspath(path)):
            raise UsageError(f"audit: stream must be the path of a file, got {path!r}")
        self._check_ignored()
        self._check_report()
        for name, unit in (("overhead", "per cent"), ("wait_for_ranks", "seconds")):
            target: object = getattr(self, name)
            is_number = isinstance(target, (int, float)) and not isinstance(target, bool)
            if not is_number or not target >= 0:  # type: ignore[operator]  # as was just asked
                raise UsageError(
                    f"audit: {name} must be a number of {unit}, 0 or more, got {target!r}"
                )

    def _check_ignored(self) -> None:
        if isinstance(self.ignore, str):
            raise UsageError(
                f"audit: ignore must be a list of codes or names, got {self.ignore!r}; give "
                f"[{self.ignore!r}]"
            )
        for name in self.ignore:
            if catalogue.find(name) is None:
                raise UsageError(f"audit: ignore has {catalogue.unknown(name)}")

    def ignores(self, finding: Finding) -> bool:
        """Return whether a finding is one of those that are not to be told."""
        return any(catalogue.find(name) is catalogue.find(finding.code) for name in self.ignore)

    def _check_report(self) -> None:
        target: object = self.report
        if isinstance(target, bool) or (callable(target) and not isinstance(target, os.PathLike)):
            return
        if not (isinstance(target, (str, os.PathLike)) and os.fspath(target)):
            raise UsageError(
                "audit: report must be a bool, a function that takes the report, or the path of a "
                f"file, got {target!r}"
            )
        try:
            format_of_file(os.fspath(target))
        except ValueError as error:
            raise UsageError(f"audit: report={str(target)!r}: {error}") from None

    def checksums_from(self, step: int, *, last: int) -> int:
        """Return the first step, after this one, on which saved tensors may be checksummed.

        >>> options = AuditOptions(checksum_first_steps=2, checksum_every=10)
        >>> [options.checksums_from(step, last=0) for step in (0, 1, 10)]
        [1, 10, 20]
        >>> AuditOptions().checksums_from(9, last=2)
        22
        """
        if step + 1 < self.checksum_first_steps:
            return step + 1
        if self.checksum_every is None:
            return max(step + 1, last + _APART)
        if not self.checksum_every:
            return sys.maxsize
        return step - step % self.checksum_every + self.checksum_every

    def checksums_on(self, step: int, *, last: int, share: float) -> bool:
        """Return whether saved tensors are checksummed on this step, counted from 0.

        Args:
            step: the step.
            last: the last step on which they were.
            share: the part of the run's time that checksums have taken so far, 0 to 1.

        >>> options = AuditOptions(checksum_first_steps=2, checksum_every=10)
        >>> [step for step in range(25) if options.checksums_on(step, last=0, share=1.0)]
        [0, 1, 10, 20]
        >>> AuditOptions(overhead=5.0).checksums_on(40, last=2, share=0.004)
        True
        >>> AuditOptions(overhead=5.0).checksums_on(40, last=2, share=0.006)
        False
        """
        if step < self.checksum_first_steps:
            return True
        if self.checksum_every is None:
            return step - last >= _APART and 100 * share <= self.overhead * _OF_CHECKSUMS
        return self.checksum_every > 0 and step % self.checksum_every == 0


_APART = 20
"""Steps between two with checksums, at least. Chosen: the share of time that they take is limited
besides, so that this counts only where they cost little."""

_OF_CHECKSUMS = 0.1
"""The part of ``overhead`` that later checksums may take. Chosen: half a per cent of the run by
default; the rest is for what is done in each step."""

_WATCHES = ("after_corruption", "from_start", "never")


_DEFAULTS = AuditOptions()


def options_from(values: dict[str, Any]) -> AuditOptions:
    """Build the options from keyword arguments.

    Raises:
        UsageError: there is no such option, or a value is out of range.
    """
    if not values:
        return _DEFAULTS
    known = [field.name for field in fields(AuditOptions)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known)}"
            raise UsageError(f"audit has no option {name!r}; {advice}")
    return AuditOptions(**values)
