"""One report for all ranks, which one of them tells."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakMethod

from gradcheck_suite._version import __version__
from gradcheck_suite.auditing.distributed.channel import ANSWERS_WITHIN
from gradcheck_suite.auditing.distributed.divergence import compare_ranks, not_compared
from gradcheck_suite.auditing.distributed.merging import merge_ranks, packed, unpacked
from gradcheck_suite.auditing.distributed.step_records import StepRecord
from gradcheck_suite.auditing.events import Attention, StepFinished
from gradcheck_suite.auditing.output.report_delivery import say
from gradcheck_suite.findings import Report
from gradcheck_suite.reporting.text import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gradcheck_suite.auditing.distributed.channel import Channel
    from gradcheck_suite.auditing.distributed.job import Job
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.findings import Finding

__all__ = ["RankReports"]

_AFTER_A_FAILURE = 5.0
"""Seconds that rank 0 waits for the others where the program has failed or is asked to end.
Chosen: launchers leave 10 s (Slurm 30) between SIGTERM and SIGKILL."""

_GONE_WITHIN = 10.0
"""Seconds that rank 0 gives the others to come to the end of their process, before it exits with
the status of the findings: what runs then is what programs have registered with ``atexit``."""

_SO_FAR_EVERY = 1.0
"""Seconds between two reports so far, which are all that is left of a rank that is killed."""

_SO_FAR_FIRST = 8
"""Steps after each of which a report so far is made, whatever the time. Chosen: mistakes show in
the first steps."""


_VERSION = __version__.encode()
"""What a rank says as it begins: what the audits of two versions write down is not compared."""

_LONGEST_VERSION = 32
"""Characters of another's version that are shown. A bound: anything may stand there."""


class RankReports:
    """Hands this rank's report to the one that tells of all, or tells of all.

    Rank 0 tells, at its end. Where a rank fails, the first to do so tells what is known by then,
    since rank 0 may not come to its end; where rank 0 has begun no audit, the first that ends.

    Args:
        job: the ranks.
        so_far: a method that returns what is known of this rank by now.
        seconds: how long rank 0 waits for the reports of the others at its end.
    """

    def __init__(
        self,
        job: Job,
        so_far: Callable[..., Report],
        *,
        seconds: float,
    ) -> None:
        self.job = job
        # Whoever owns this is gone with the last reference to it.
        self._so_far = WeakMethod(so_far)
        self._seconds = seconds
        self._began = False
        self._last = 0.0

    def begin(self) -> None:
        """Let the others know that this rank audits itself, as soon as they can be reached."""
        channel = self.job.channel() if not self._began else None
        if channel is not None:
            self._began = True
            channel.put(f"{self.job.rank}/began", _VERSION)

    def subscriptions(self) -> Subscriptions:
        """Leave what is known with the others, now and then."""
        return {StepFinished: self._tell_so_far}

    def findings(self) -> list[Finding]:
        """Return nothing: it only passes on what others find."""
        return []

    def _tell_so_far(self, event: StepFinished) -> Attention | None:
        if self.job.size == 1:
            return Attention.ASLEEP
        self.begin()
        now = monotonic()
        so_far = self._so_far()
        if so_far is None:
            return Attention.ASLEEP
        if self._began and (event.number < _SO_FAR_FIRST or now >= self._last + _SO_FAR_EVERY):
            self._put("so far", so_far())
            self._last = monotonic()
        return None

    def conclude(self, report: Report, *, failed: bool, at_once: bool = False) -> Report | None:
        """Return what this rank is to tell at its end, or None where another tells.

        Args:
            report: this rank's own.
            failed: whether the program ends with an exception, a signal or a status other than 0.
            at_once: do not wait for anyone.
        """
        channel = self.job.channel()
        self.begin()
        reason = self.job.why_alone()
        if channel is None or reason is not None:
            return _alone(report, reason)
        # Rank 0 may end, and the store with it, once it has this report.
        is_told = not self.job.rank or bool(channel.get(["0/began"], seconds=ANSWERS_WITHIN))
        self._put("report", report)
        if self.job.rank:
            if failed and channel.add("tellers", seconds=ANSWERS_WITHIN) == 1:
                return self._of_all(channel, report, seconds=0.0)
            if not channel.flush(seconds=ANSWERS_WITHIN):
                return _alone(report, channel.trouble or "the store does not answer")
            if not is_told and channel.add("tellers", seconds=ANSWERS_WITHIN) == 1:
                return self._of_all(channel, report, seconds=min(self._seconds, _AFTER_A_FAILURE))
            return None
        seconds = 0.0 if at_once else min(self._seconds, _AFTER_A_FAILURE if failed else inf)
        whole = self._of_all(channel, report, seconds=seconds)
        if (channel.add("tellers", seconds=ANSWERS_WITHIN) or 1) > 1:
            # What it has begun to write, this report is to replace.
            channel.get(["told"], seconds=ANSWERS_WITHIN)
        return whole

    def told(self) -> None:
        """Say that this rank's telling is done."""
        channel = self.job.channel()
        if channel is not None and self.job.rank:
            channel.put("told", b"1")
            channel.flush(seconds=ANSWERS_WITHIN)

    def leave(self) -> None:
        """Say that this process ends now."""
        channel = self.job.channel() if self._began else None
        if channel is not None:
            channel.put(f"{self.job.rank}/gone", b"1")
            channel.flush(seconds=ANSWERS_WITHIN)

    def others_are_gone(self) -> bool:
        """Return whether the others have all ended, waiting for it for a while.

        A launcher that sees one rank exit with a status of its own ends those that still run.
        """
        channel = self.job.channel()
        if channel is None or self.job.rank:
            return False
        wanted = [f"{rank}/gone" for rank in range(1, self.job.size)]
        return len(channel.get(wanted, seconds=_GONE_WITHIN)) == len(wanted)

    def _put(self, key: str, report: Report) -> None:
        channel = self.job.channel()
        if channel is not None:
            channel.put(f"{self.job.rank}/{key}", packed(report))

    def _of_all(self, channel: Channel, report: Report, *, seconds: float) -> Report:
        others = [rank for rank in range(self.job.size) if rank != self.job.rank]
        began = _by_rank(channel, others, "began", seconds=0.0)
        reports = _wait_for(channel, sorted(began), seconds)
        silent = [rank for rank in began if rank not in reports]
        so_far = _by_rank(channel, silent, "so far", seconds=0.0)
        read = {rank: _read(message) for rank, message in {**so_far, **reports}.items()}
        known = {rank: each for rank, each in read.items() if each is not None}
        known[self.job.rank] = report
        whole = merge_ranks(known, size=self.job.size, own=self.job.rank)
        alike = [rank for rank, version in began.items() if version == _VERSION]
        compared = self._compared(channel, (self.job.rank, *alike))
        lines = [*whole.not_covered, *compared.not_covered]
        for rank in sorted(began.keys() - set(alike)):
            other = began[rank].decode("ascii", "replace")[:_LONGEST_VERSION]
            told = "are told" if rank in known else "can't be read, and are not told"
            lines.append(
                f"what differs between rank {rank} and others: its audit is of gradcheck-suite "
                f"{other}, that of rank {self.job.rank} of {__version__}; its findings {told}"
            )
        for rank in silent:
            steps = known[rank].summary.get("steps") if rank in known else None
            until = f"; what it had found by step {steps} is told" if rank in so_far else ""
            within = f" within {seconds:g} s" if seconds else " by then"
            lines.append(f"rank {rank}, which did not hand in its report{within}{until}")
        unaudited = [rank for rank in others if rank not in began]
        if unaudited:
            file = self.job.file()
            apart = f", or which have another {file}, the file that ranks meet in" if file else ""
            lines.append(f"{ranks_in_words(unaudited)}, where no audit was begun{apart}")
        findings = (*compared.findings, *whole.findings)
        return replace(whole, findings=findings, not_covered=tuple(lines))

    def _compared(self, channel: Channel, ranks: Sequence[int]) -> Report:
        """Return what differs between the ranks, of the steps that all have told of."""
        found: list[Finding] = []
        lines: list[str] = []
        for keys in self.job.told.values():
            wanted = {f"{rank}/{key}": (rank, step) for step, key in keys.items() for rank in ranks}
            steps: dict[int, dict[int, StepRecord]] = {}
            for key, message in channel.get(wanted, seconds=0.0).items():
                rank, step = wanted[key]
                steps.setdefault(rank, {})[step] = StepRecord.unpacked(message)
            found += compare_ranks(steps, size=self.job.size)
            lines.append(not_compared(steps) or "")
        return Report("", tuple(found), not_covered=tuple(dict.fromkeys(filter(None, lines))))


def _alone(report: Report, reason: str | None) -> Report:
    line = f"findings of the other ranks, and what differs between ranks: {reason}"
    return replace(report, not_covered=(*report.not_covered, line))


def _read(message: bytes) -> Report | None:
    """Return the report of another rank, or None for one that another version has written."""
    try:
        return unpacked(message)
    except (KeyError, TypeError, ValueError):
        return None


def _wait_for(channel: Channel, ranks: list[int], seconds: float) -> dict[int, bytes]:
    """Return the last reports of these ranks, and say so where that takes time."""
    try:
        found = _by_rank(channel, ranks, "report", seconds=min(seconds, ANSWERS_WITHIN))
        missing = [rank for rank in ranks if rank not in found]
        if missing and seconds > ANSWERS_WITHIN:
            left = seconds - ANSWERS_WITHIN
            say(f"waiting up to {left:g} s for the reports of {ranks_in_words(missing)}")
            found |= _by_rank(channel, missing, "report", seconds=left)
    except KeyboardInterrupt:
        # Whoever waits may have enough of it; what is known is told.
        found = _by_rank(channel, ranks, "report", seconds=0.0)
    return found


def _by_rank(
    channel: Channel, ranks: Iterable[int], key: str, *, seconds: float
) -> dict[int, bytes]:
    wanted = {f"{rank}/{key}": rank for rank in ranks}
    return {wanted[each]: value for each, value in channel.get(wanted, seconds=seconds).items()}
