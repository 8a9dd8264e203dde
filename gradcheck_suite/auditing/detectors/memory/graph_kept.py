"""Graphs that outlive their backward, step after step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.memory.kept_graphs import (
    CERTAIN,
    LIKELY,
    Freed,
    KeptGraphs,
)
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFailed,
    BackwardFinished,
    BackwardStarted,
    GraphReused,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.memory.state_not_detached import StateNotDetached
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["GraphKeptDetector"]

_UNSTEPPED = 64
"""Backwards of a program that never steps an optimizer that are followed for a chain of graphs. A
bound on cost; a carried state shows from ``graph_limit`` of them on."""


@dataclass(frozen=True, slots=True)
class _Unsearched:
    """Graphs that were alive at the end, where there was no time to look for what keeps them."""

    count: int
    oldest: int
    backward: CallSite | None

    def finding(self) -> Finding:
        """Return what there is to say of them."""
        return Finding.of(
            catalogue.GRAPH_KEPT,
            f"the graphs of {self.count} backwards are still alive, the oldest since backward "
            f"{self.oldest}, and no backward can use them again; what keeps them was not searched "
            "for, as there was no time left for searches (see what was not covered)",
            detector="audit",
            severity=Severity.WARNING,
            location=location_of(self.backward),
            hint="keep loss.item() or tensor.detach(); for the name of what keeps them, run fewer "
            "steps, or with overhead=inf",
            evidence={
                "holder": None,
                "owner": None,
                "graphs": self.count,
                "oldest": self.oldest,
            },
        )


class GraphKeptDetector:
    """Reports graph-kept (GCS201), state-not-detached (GCS202) and hook-keeps-graph (GCS207).

    Args:
        recorder: whose events these are.
        carried: is told of each backward, and explains those that torch refuses.
    """

    def __init__(self, recorder: Recorder, carried: StateNotDetached) -> None:
        self._recorder = recorder
        self._carried = carried
        self._freed = KeptGraphs(recorder, Freed(recorder))
        self._unowned = 0
        self._unsearched: _Unsearched | None = None
        self._longest_chain = 0
        self._chain_growth = 0
        self._chain_site: CallSite | None = None
        self._stepped = False
        # Where no optimizer steps, cleared gradients tell one turn from the next.
        self._unstepped: dict[int, int] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the living generations after each step, or each backward if none steps."""
        return {
            BackwardStarted: self._before_backward,
            GraphReused: self._follow_chain,
            BackwardFailed: self._carried.fail,
            BackwardFinished: self._after_backward,
            StepFinished: self._after_step,
            SessionEnded: self._at_the_end,
        }

    def _after_step(self, _event: StepFinished) -> None:
        if not self._stepped:
            self._longest_chain = self._chain_growth = 0
        self._stepped = self._freed.stepped = True
        self._freed.count_living()

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if self._stepped:
            return Attention.ASLEEP
        # Losses over one graph within a turn add to gradients; a new turn makes them anew.
        if event.created and not event.failed:
            self._note_chain(self._unstepped.get(event.number, 0), event.site)
        self._freed.count_living()
        return None

    def _at_the_end(self, _event: SessionEnded) -> None:
        self._freed.end()
        nobody = self._freed.nobody and not self._freed.any_kept
        alive = self._freed.alive() if nobody else 0
        self._unowned = alive if alive >= LIKELY else 0
        exhausted = self._recorder.heap.is_exhausted
        if self._freed.alive() >= CERTAIN and not self._freed.any_kept and exhausted:
            self._unsearched = self._still_alive()

    def _still_alive(self) -> _Unsearched | None:
        """Return the graphs that live, and are no garbage, without a look for what keeps them."""
        self._recorder.heap.collect(2)
        alive = [each for each in self._recorder.generations.freed() if not each.partly]
        if self._freed.alive() < CERTAIN:
            return None
        return _Unsearched(len(alive), alive[0].index, alive[-1].site)

    def is_following(self) -> bool:
        """Return whether graphs are kept, so that more of them are to be counted."""
        return self._freed.is_following()

    def not_covered(self) -> list[str]:
        """Return what to say of graphs that live and whose holder was not found."""
        lines = self._recorder.heap.not_covered()
        if self._unowned and self._unsearched is None:
            what = f"who keeps the graphs of {self._unowned:,} steps, which were alive at the end"
            lines.append(f"{what}: no one thing was found to hold them")
        return lines

    def findings(self) -> list[Finding]:
        """Return the holders that are certain by now."""
        return [
            *self._freed.findings(),
            *(() if self._unsearched is None else (self._unsearched.finding(),)),
            *self._chain_findings(),
            *self._carried.findings(),
        ]

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if self._stepped:
            return Attention.ASLEEP
        if event.accumulates:
            self._follow_without_steps(event)
        return None

    def _follow_chain(self, event: GraphReused) -> None:
        self._carried.begin(event.started)
        self._note_chain(event.started.chain, event.started.site)

    def _follow_without_steps(self, event: BackwardStarted) -> None:
        generation = self._recorder.generations.newest()
        if generation is None or generation.index != event.number or event.number > _UNSTEPPED:
            return
        earlier = (reference() for reference in generation.reused)
        links = [1 + self._unstepped.get(each.index, 0) for each in earlier if each is not None]
        self._unstepped[event.number] = max(links, default=0)

    def _note_chain(self, chain: int, site: CallSite | None) -> None:
        if chain > self._longest_chain:
            self._longest_chain = chain
            self._chain_growth += 1
            self._chain_site = site

    def _chain_findings(self) -> list[Finding]:
        limit = self._recorder.options.graph_limit
        if self._longest_chain < limit or self._chain_growth < limit:
            return []
        return [
            Finding.of(
                catalogue.STATE_NOT_DETACHED,
                f"backward() went back through the graphs of {self._longest_chain} earlier "
                "backwards, one more each time: a state carried over from step to step still "
                "has its graph; expected each step to begin with a detached state",
                detector="audit",
                location=location_of(self._chain_site),
                hint="detach the state between steps: h = h.detach()",
                evidence={"backwards": self._longest_chain},
            )
        ]
