"""Graphs that outlive their backward, step after step.

Counting is free: a generation lives while anything keeps one of its graphs. Only where several
live that backward has already freed is it worth asking who holds them, and a holder is reported
only if one thing keeps many and has never let go.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import (
    BackwardFinished,
    BackwardStarted,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.auditing.growth_sites import growth_site
from gradcheck_suite.auditing.holders import HeldGraphs, Owner, find_holder
from gradcheck_suite.findings import Finding, Related, Severity
from gradcheck_suite.reporting.text import byte_count

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.generations import Generation
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Location

__all__ = ["LifetimeDetector"]

_CERTAIN = 32
"""So many graphs of one holder, none ever let go, are a leak while the loop still runs. A list
that is emptied at the end of a window or epoch of fewer is left alone."""

_MOST_FINDINGS = 20
_UNSTEPPED = 64


@dataclass(frozen=True, slots=True)
class _Suspect:
    held: HeldGraphs
    oldest: int
    most: int
    backward: CallSite | None
    first_seen: int


class LifetimeDetector:
    """Reports graph-kept (GCS201) and state-not-detached (GCS202)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._threshold = recorder.options.graph_limit
        self._suspect: _Suspect | None = None
        self._reported: dict[object, Finding] = {}
        self._longest_chain = 0
        self._chain_growth = 0
        self._chain_site: CallSite | None = None
        self._stepped = False
        # Where no optimizer steps, cleared gradients tell one turn from the next.
        self._unstepped: dict[int, int] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the living generations after each step, or each backward if none steps."""
        return {
            BackwardStarted: self._follow_chain,
            BackwardFinished: self._after_backward,
            StepFinished: self._after_step,
            SessionEnded: self._at_the_end,
        }

    def _after_step(self, _event: StepFinished) -> None:
        if not self._stepped:
            self._longest_chain = self._chain_growth = 0
        self._stepped = True
        self._look()

    def _after_backward(self, event: BackwardFinished) -> None:
        if self._stepped:
            return
        # Losses over one graph within a turn add to gradients; a new turn makes them anew.
        if event.created and not event.failed:
            self._note_chain(self._unstepped.get(event.number, 0), event.site)
        self._look()

    def _at_the_end(self, _event: SessionEnded) -> None:
        if self._suspect is None:
            self._look()
        if self._suspect is not None:
            self._report(self._suspect)
            self._suspect = None

    def findings(self) -> list[Finding]:
        """Return the holders that are certain by now."""
        return [*self._reported.values(), *self._chain_findings()]

    def _look(self) -> None:
        # The newest backward's graph may well be alive still: its loss has a name.
        if self._recorder.generations.count_living() <= self._threshold:
            if self._suspect is not None:
                self._let_go()
            return
        spent = self._recorder.generations.spent()[:-1]
        if self._suspect is not None:
            self._follow(spent)
        elif len(spent) >= self._threshold:
            self._suspect = self._ask_who(spent)

    def _ask_who(self, spent: list[Generation]) -> _Suspect | None:
        gc.collect()
        spent = self._recorder.generations.spent()[:-1]
        limit = self._recorder.options.graph_limit
        held = None
        if len(spent) >= limit:
            held = find_holder([generation.index for generation in spent], at_least=limit)
        if held is None or held.bound is not None or len(self._reported) >= _MOST_FINDINGS:
            # Nobody in particular, or a deque that can't grow on: ask again at twice as many.
            bound = 0 if held is None or held.bound is None else held.bound
            self._threshold = max(2 * len(spent), bound + limit)
            return None
        suspect = _Suspect(
            held=held,
            oldest=spent[0].index,
            most=len(spent),
            backward=spent[-1].site,
            first_seen=self._recorder.step,
        )
        if held.container == "tensor":
            # No backward can go through a sum over graphs that are freed: it has no other use.
            self._report(suspect)
            self._threshold = 2 * len(spent)
            return None
        return suspect

    def _follow(self, spent: list[Generation]) -> None:
        suspect = self._suspect
        if suspect is None:
            return
        if not spent or spent[0].index > suspect.oldest or len(spent) < suspect.most - 1:
            self._let_go()
            return
        self._suspect = replace(suspect, most=max(suspect.most, len(spent)))
        if len(spent) >= _CERTAIN:
            held = find_holder(
                [generation.index for generation in spent],
                at_least=self._recorder.options.graph_limit,
            )
            if held is not None:
                self._report(replace(self._suspect, held=held))
            self._threshold = 2 * len(spent)
            self._suspect = None

    def _let_go(self) -> None:
        """Take note that the suspect has dropped its graphs: it is a window, not a leak."""
        if self._suspect is not None:
            self._threshold = max(self._threshold, 2 * self._suspect.most)
        self._suspect = None

    def _report(self, suspect: _Suspect) -> None:
        """Tell of a holder, in place of what was told of it when it held less."""
        owner = suspect.held.owner
        finding = _kept(suspect)
        self._reported[finding.location, owner and (owner.scope, owner.name)] = finding

    def _follow_chain(self, event: BackwardStarted) -> None:
        if not self._stepped and event.accumulates:
            self._follow_without_steps(event)
        self._note_chain(event.chain, event.site)

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


def _kept(suspect: _Suspect) -> Finding:
    held = suspect.held
    owner = held.owner
    count = max(len(held.generations), suspect.most)
    grown = _growth_of(owner)
    backward = location_of(suspect.backward)
    held_at = None if owner is None else owner.location
    location = grown or backward or held_at
    related = []
    if backward is not None and backward != location:
        related.append(Related(backward, "backward() has been through these graphs here"))
    if held_at is not None and (grown is None or held_at.line != grown.line):
        related.append(Related(held_at, f"held in {_scope(owner)}"))
    kept = (
        f"keeps the graphs of {count} backwards alive, the oldest since backward {suspect.oldest}"
    )
    if held.saved_bytes:
        kept += f" ({byte_count(held.saved_bytes)} of saved tensors)"
    return Finding.of(
        catalogue.GRAPH_KEPT,
        f"{_subject(held)} {kept}, and one more with each; no backward can use them again",
        detector="audit",
        severity=Severity.ERROR,
        location=location,
        related=related,
        hint=_hint(held),
        evidence={
            "holder": held.container,
            "owner": None if owner is None else owner.name,
            "owner_kind": None if owner is None else owner.kind,
            "through": held.through,
            "graphs": count,
            "oldest_backward": suspect.oldest,
            "bytes": held.saved_bytes,
        },
    )


def _growth_of(owner: Owner | None) -> Location | None:
    if owner is None or owner.file is None:
        return None
    function = owner.scope if owner.kind == "local" else None
    return growth_site(
        owner.file, owner.name, function=function, attribute=owner.kind == "attribute"
    )


def _subject(held: HeldGraphs) -> str:
    through = {"exception": " of exceptions", "closure": " of closures"}.get(held.through or "", "")
    what = "sum" if held.container == "tensor" else f"{held.container}{through}"
    owner = held.owner
    if owner is None:
        return f"a {what} ({held.length} long)" if held.container != "tensor" else "a sum tensor"
    what = f"{what} `{owner.name}`" if owner.direct else f"{what} inside `{owner.name}`"
    if owner.kind == "attribute":
        return f"{what} of {owner.scope}"
    return f"{what} in {_scope(owner)}"


def _scope(owner: Owner | None) -> str:
    if owner is None:
        return "the program"
    if owner.kind == "global":
        return f"module {owner.scope}"
    return f"{owner.scope}()"


def _hint(held: HeldGraphs) -> str:
    if held.through == "exception":
        return "keep str(error) or error.with_traceback(None), not the exception with its frames"
    if held.through == "closure":
        return "let the closure capture loss.item() or tensor.detach(), not the tensor itself"
    if held.container == "tensor":
        return "add numbers: total += loss.item(), or total += loss.detach()"
    return "store loss.item(), or tensor.detach()"
