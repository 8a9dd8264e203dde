"""A term of a loss that reaches only parameters whose gradients no step ever uses.

Features of a discriminator that were computed from the detached output of the generator have a
graph: the generator's loss sends gradients through them into the discriminator, whose optimizer
clears them before its own step. The term adds to the value of the loss and trains nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindow
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.connectivity.constant_loss_term import live_terms
from gradcheck_suite.auditing.detectors.reachable_parameters import nodes_under, reachable_graph
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    OptimizerConstructed,
    StepSummarized,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["UnusedLossTermDetector"]

_ENOUGH = 3
"""Backwards of a line in all of which a term was for nothing, before it is told. Chosen, as for
backwards that no step uses."""
_LOOKED_AT = 6
"""Backwards of a line whose terms are followed: twice ``_ENOUGH``. So many of its first graphs are
walked, and then each that is a power of two. A bound on cost."""
_ALONE_FOR = 16
"""Backwards after which a program with one optimizer is taken to have no other that was made before
the audit. A bound on cost."""
_MOST_LOSSES = 32
"""Lines with a backward whose losses are looked at. A bound on cost."""
_MOST_TERMS = 32
"""Terms of one loss that are followed. A bound on cost."""


@dataclass(slots=True)
class _Loss:
    """What was seen of the backwards of one line.

    Attributes:
        seen: how many backwards there were.
        followed: of how many of them it was followed who uses their gradients.
        concluded: of how many all owners have stepped since.
        terms: the most terms that one of them had.
        unused: whose parameters alone the terms reach that were for nothing in each of these, and
            how many such terms there were.
        owners: the optimizer that owns what these reach, and where it was made.
    """

    seen: int = 0
    followed: int = 0
    concluded: int = 0
    terms: int = 0
    unused: dict[frozenset[int], int] | None = None
    owners: dict[str, CallSite | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Followed:
    """A backward of which it is not known yet who uses its gradients.

    Attributes:
        loss: what is known of its line.
        terms: for each term, the windows of the optimizers whose parameters it reaches.
        waiting: the windows that have not stepped since, by identity.
        used: those whose step has used gradients of this backward.
    """

    loss: _Loss
    terms: list[frozenset[int]]
    waiting: dict[int, AccumulationWindow]
    used: set[int] = field(default_factory=set)


class UnusedLossTermDetector:
    """Reports constant-loss-term (GCS411) of terms that train nothing that is stepped."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._losses: dict[CallSite | None, _Loss] = {}
        self._followed: dict[int, _Followed] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the first backwards of each line, and at the steps after them."""
        return {
            BackwardStarted: self._before_backward,
            StepSummarized: self._after_step,
            OptimizerConstructed: self._wake,
        }

    def _wake(self, _event: OptimizerConstructed) -> Attention:
        return Attention.AWAKE

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if self._windows.is_alone():
            return Attention.ASLEEP if event.number >= _ALONE_FOR else None
        windows = self._windows.all()
        loss = self._losses.get(event.site)
        if loss is None:
            if len(self._losses) >= _MOST_LOSSES:
                return None
            loss = self._losses[event.site] = _Loss()
        loss.seen += 1
        # A term may come in later: one that begins after a warm-up.
        is_due = loss.followed or loss.seen <= _LOOKED_AT or not loss.seen & (loss.seen - 1)
        if loss.followed >= _LOOKED_AT or not is_due or not event.accumulates:
            return None
        graph = reachable_graph(event)
        reached = [window for window in windows if not window.ids.isdisjoint(graph.leaves)]
        terms = live_terms(event.roots)
        if len(reached) == 1 or not graph.complete or not 1 < len(terms) <= _MOST_TERMS:
            return None
        # One that has not stepped yet may wait until a warm-up is over.
        if not all(window.steps for window in reached):
            return None
        loss.followed += 1
        owned = [_owners(node, reached) for node in terms]
        self._followed[event.number] = _Followed(
            loss, owned, {id(window): window for window in reached}
        )
        for window in reached:
            window.awaited += 1
        return Attention.AWAKE

    def _after_step(self, _event: StepSummarized) -> Attention | None:
        if not self._followed:
            return Attention.ASLEEP
        window = self._windows.stepped
        summary = window.summary
        if summary is None:
            return None
        lost = (fill for each in (*summary.discarded, *summary.dismissed) for fill in each.fills)
        numbers = {fill.number for fill in summary.fills}
        for number in {*numbers, *(fill.number for fill in lost)}:
            followed = self._followed.get(number)
            if followed is None or followed.waiting.pop(id(window), None) is None:
                continue
            window.awaited -= 1
            if number in numbers:
                followed.used.add(id(window))
            else:
                made = type(window.optimizer()).__name__
                followed.loss.owners[made] = window.constructed_at
            if not followed.waiting:
                del self._followed[number]
                _conclude(followed)
        return None

    def findings(self) -> list[Finding]:
        """Return one finding for each line whose loss has such terms, each time."""
        return [
            _finding(site, loss, sum(loss.unused.values()))
            for site, loss in self._losses.items()
            if loss.concluded >= _ENOUGH and loss.unused
        ]


def _owners(term: Node, windows: list[AccumulationWindow]) -> frozenset[int]:
    """Return the windows whose parameters a term reaches; none where it reaches others too."""
    leaves = {
        id(leaf)
        for node in nodes_under([term])
        if not node.next_functions and (leaf := getattr(node, "variable", None)) is not None
    }
    reached = [window for window in windows if not window.ids.isdisjoint(leaves)]
    is_owned = leaves <= set[int]().union(*(window.ids for window in reached))
    return frozenset(map(id, reached)) if is_owned else frozenset()


def _conclude(followed: _Followed) -> None:
    """Count the terms whose gradients no step has used, where others were used."""
    loss = followed.loss
    loss.concluded += 1
    loss.terms = max(loss.terms, len(followed.terms))
    unused = Counter(
        owners
        for owners in followed.terms
        if followed.used and owners and owners.isdisjoint(followed.used)
    )
    before = unused if loss.unused is None else loss.unused
    loss.unused = {key: min(count, before[key]) for key, count in unused.items() if key in before}


def _finding(site: CallSite | None, loss: _Loss, unused: int) -> Finding:
    place = location_of(site)
    optimizer, made = next(iter(loss.owners.items()))
    one = unused == 1
    return Finding.of(
        catalogue.CONSTANT_LOSS_TERM,
        f"{unused} of {loss.terms} terms of this loss reach{'es' if one else ''} only parameters "
        f"of an optimizer ({optimizer}) that clears these gradients before it steps: "
        f"{'it adds' if one else 'they add'} to the value of the loss and train{'s' if one else ''}"
        " nothing; expected each term to reach what is stepped after this backward()",
        detector="audit",
        severity=Severity.WARNING,
        location=place,
        related=related((location_of(made), "that optimizer"), apart_from=place),
        hint="compute the term from outputs that are not detached, or leave it out of the loss",
        evidence={"terms": loss.terms, "unused": unused, "backwards": loss.concluded},
    )
