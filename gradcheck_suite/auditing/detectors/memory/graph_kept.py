"""Graphs that outlive their backward, step after step.

Counting is free: a generation lives while anything keeps one of its graphs. Only where several
live that backward has already freed is it worth asking who holds them, and a holder is reported
only if one thing keeps many and has never let go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_files_with
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFailed,
    BackwardFinished,
    BackwardStarted,
    GraphReused,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.retention import (
    HeldGraphs,
    Owner,
    find_holders,
    hook_around,
)
from gradcheck_suite.auditing.source_analysis.container_growth import Growth, growth_of
from gradcheck_suite.findings import Finding, Related, Severity
from gradcheck_suite.reporting.text import byte_count

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.memory.state_not_detached import StateNotDetached
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generation

__all__ = ["GraphKeptDetector"]

_CERTAIN = 32
"""The graphs of so many steps in one holder, none ever let go, are a leak while the loop still
runs, whatever the source says. A list that is emptied at the end of a window or epoch of fewer is
left alone."""

_LIKELY = 8
"""Of fewer steps, what may be a window that was not yet full is told as a warning. Chosen, at the
larger of usual windows; only the severity depends on it."""

_LARGE = 1_000
"""A deque or cache with a greater bound is as good as endless. Chosen, far above any window that a
program may want the graphs of."""

_ENDLESS = frozenset({"chain", "nodes", "tensor"})
"""Holders that can't let go of a part: no backward can go through a sum over graphs that are freed,
a node that keeps its own graph keeps it for ever, and each link of a chain keeps all before it."""

_MOST_FINDINGS = 20
"""Holders that are told; after those, none is searched for any more. A bound on cost and on the
length of a report: each search goes through all objects."""

_UNSTEPPED = 64
"""Backwards of a program that never steps an optimizer that are followed for a chain of graphs. A
bound on cost; a carried state shows from ``graph_limit`` of them on."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Holders that were found, and how many graphs there were then and at most since."""

    held: tuple[HeldGraphs, ...]
    oldest: int
    most: int
    backward: CallSite | None


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
            hint=_HINTS["unsearched"],
            evidence={
                "holder": None,
                "owner": None,
                "graphs": self.count,
                "oldest_backward": self.oldest,
            },
        )


class _Kept:
    """A holder that is told of, and the number of graphs that it keeps by now."""

    def __init__(
        self, held: HeldGraphs, suspect: _Suspect, growth: Growth, hook: str | None, count: int
    ) -> None:
        self._held = held
        self._oldest = suspect.oldest
        self._backward = location_of(suspect.backward)
        self._growth = growth
        self._hook = hook
        self._certain = _is_certain(held)
        self.count = count
        held_at = None if held.owner is None else held.owner.location
        self._others = growth.sites[1:]
        self.location = next(iter(growth.sites), self._backward or held_at)

    def is_held_by(self, held: HeldGraphs) -> bool:
        """Return whether this is the same thing, with some of the same graphs."""
        mine = self._held
        return mine.identity == held.identity and not set(mine.generations).isdisjoint(
            held.generations
        )

    def finding(self) -> Finding:
        """Return what there is to say of it now."""
        held, hook, owner = self._held, self._hook, self._held.owner
        # People count from 1.
        oldest = f"backward {self._oldest + 1:,}" if self._oldest else "the first backward"
        kept = f"keeps the graphs of {self.count} backwards alive, the oldest since {oldest}"
        if held.saved_bytes:
            kept += f" ({byte_count(held.saved_bytes)} of saved tensors)"
        filled = "" if hook is None else f", filled by a {hook},"
        certain = self._certain or self.count >= _LIKELY
        return Finding.of(
            catalogue.GRAPH_KEPT if hook is None else catalogue.HOOK_KEEPS_GRAPH,
            f"{_subject(held)}{filled} {kept}, and one more with each; no backward can use them "
            "again",
            detector="audit",
            severity=Severity.ERROR if certain else Severity.WARNING,
            location=self.location,
            related=self._related(),
            hint=_hint(held) if hook is None else _HINTS["hook"],
            evidence={
                "holder": held.container,
                "owner": None if owner is None else owner.name,
                "owner_kind": None if owner is None else owner.kind,
                "path": None if owner is None else owner.path,
                "through": held.through,
                "graphs": self.count,
                "oldest_backward": self._oldest,
                "bytes": held.saved_bytes,
            },
        )

    def _related(self) -> list[Related]:
        through = (self._backward, "backward() has been through these graphs here")
        places = related(through, apart_from=self.location)
        places += related(*((other, "or added here") for other in self._others))
        owner, site = self._held.owner, self._growth.site
        held_at = None if owner is None else owner.location
        if held_at is not None and (site is None or held_at.line != site.line):
            places += related((held_at, f"held in {_scope(owner)}"))
        return places


class GraphKeptDetector:
    """Reports graph-kept (GCS201), state-not-detached (GCS202) and hook-keeps-graph (GCS207).

    Args:
        recorder: whose events these are.
        carried: is told of each backward, and explains those that torch refuses.
    """

    def __init__(self, recorder: Recorder, carried: StateNotDetached) -> None:
        self._recorder = recorder
        self._carried = carried
        self._threshold = recorder.options.graph_limit
        self._suspect: _Suspect | None = None
        self._kept: dict[object, _Kept] = {}
        self._newest: _Kept | None = None
        self._unowned = 0
        self._unsearched: _Unsearched | None = None
        self._nobody = False
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
        self._stepped = True
        self._look()

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if self._stepped:
            return Attention.ASLEEP
        # Losses over one graph within a turn add to gradients; a new turn makes them anew.
        if event.created and not event.failed:
            self._note_chain(self._unstepped.get(event.number, 0), event.site)
        self._look()
        return None

    def _at_the_end(self, _event: SessionEnded) -> None:
        if self._suspect is None and self._recorder.generations.living.count > 1:
            # A holder has the newest graph too, by now.
            self._suspect = self._ask_who(leave_out=0)
        spent = self._recorder.generations.freed()
        if self._suspect is not None:
            self._report(replace(self._suspect, most=max(self._suspect.most, len(spent))))
            self._suspect = None
        alive = len(set(self._turns(spent).values())) if self._nobody else 0
        self._unowned = alive if alive >= _LIKELY else 0
        if len(spent) >= _CERTAIN and not self._kept and self._recorder.heap.is_exhausted:
            self._unsearched = self._still_alive()

    def _still_alive(self) -> _Unsearched | None:
        """Return the graphs that live, and are no garbage, without a look for what keeps them."""
        self._recorder.heap.collect(2)
        alive = [each for each in self._recorder.generations.freed() if not each.partly]
        if len(set(self._turns(alive).values())) < _CERTAIN:
            return None
        return _Unsearched(len(alive), alive[0].index, alive[-1].site)

    def is_following(self) -> bool:
        """Return whether graphs are kept, so that more of them are to be counted."""
        return self._suspect is not None or bool(self._kept)

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
            *(kept.finding() for kept in self._kept.values()),
            *(() if self._unsearched is None else (self._unsearched.finding(),)),
            *self._chain_findings(),
            *self._carried.findings(),
        ]

    def _look(self) -> None:
        # The newest backward's graph may well be alive still: its loss has a name.
        living = self._recorder.generations.living.count
        if self._newest is not None:
            self._newest.count = max(self._newest.count, living - 1)
        if living <= self._threshold:
            if self._suspect is not None:
                self._let_go()
            return
        if self._suspect is not None:
            self._follow(self._recorder.generations.freed()[:-1])
        elif len(self._recorder.generations.freed()) > self._threshold:
            self._suspect = self._ask_who(leave_out=1)

    def _turns(self, spent: list[Generation]) -> dict[Generation, int]:
        """Return the generations with the step of each.

        Before the first step, and where nothing steps, with the backward that freed it: one that
        goes through the graphs of several others, as that of a meta-learner does, is one turn.
        """
        if self._stepped:
            return {each: each.step for each in spent}
        return {each: each.index if each.freed_by is None else each.freed_by for each in spent}

    def _ask_who(self, *, leave_out: int) -> _Suspect | None:
        """Look for holders of all graphs but the newest ``leave_out``.

        No list of generations may live on while the garbage is collected: a generation is taken
        to live as long as its graph does.
        """
        limit = self._recorder.options.graph_limit
        if self._recorder.heap.is_exhausted:
            self._threshold = 2 * self._recorder.generations.living.count
            return None
        indices = [each.index for each in self._recorder.generations.freed()]
        newest = indices[-1 - leave_out] if len(indices) > leave_out else -1
        # Most cycles are young: to look through all objects of a large program takes long.
        for generation in (1, 2):
            if len(set(self._turns(self._up_to(newest)).values())) < limit:
                return None
            self._recorder.heap.collect(generation)
        alive = self._up_to(newest)
        turns = self._turns(alive)
        held: tuple[HeldGraphs, ...] = ()
        if len(set(turns.values())) < limit:
            # All was garbage of a program that makes cycles. It will again, and to collect it takes
            # longer each time that a library is imported.
            self._threshold *= 2
            return None
        if len(self._kept) < _MOST_FINDINGS:
            held = find_holders(turns, self._recorder.heap, at_least=limit)
            self._nobody = not held
        endless = tuple(each for each in held if each.bound is None or each.bound > _LARGE)
        if not endless:
            # Nobody in particular, or a deque that can't grow on: ask again at twice as many.
            bound = max((each.bound or 0 for each in held), default=0)
            self._threshold = max(2 * len(alive), bound + limit)
            return None
        suspect = _Suspect(endless, alive[0].index, len(alive), alive[-1].site)
        if all(map(_is_certain, endless)):
            self._report(suspect)
            # Where one thing holds them all, it is told how it grows without another search.
            self._threshold = (2 if self._newest is None else 4) * len(alive)
            return None
        return suspect

    def _up_to(self, newest: int) -> list[Generation]:
        return [each for each in self._recorder.generations.freed() if each.index <= newest]

    def _follow(self, spent: list[Generation]) -> None:
        suspect = self._suspect
        if suspect is None:
            return
        if not spent or spent[0].index > suspect.oldest or len(spent) < suspect.most - 1:
            self._let_go()
            return
        self._suspect = replace(suspect, most=max(suspect.most, len(spent)))
        if len(spent) >= _CERTAIN:
            limit = self._recorder.options.graph_limit
            held = find_holders(self._turns(spent), self._recorder.heap, at_least=limit)
            if held or self._recorder.heap.is_exhausted:
                self._report(replace(self._suspect, held=held or self._suspect.held))
            self._threshold = 2 * len(spent)
            self._suspect = None

    def _let_go(self) -> None:
        """Take note that the suspect has dropped its graphs: it is a window, not a leak."""
        if self._suspect is not None:
            self._threshold = max(self._threshold, 2 * self._suspect.most)
        self._suspect = None

    def _report(self, suspect: _Suspect) -> None:
        """Tell of each holder, in place of what was told of it when it held less."""
        alone = len(suspect.held) == 1
        for held in suspect.held:
            key, known = next(
                (pair for pair in self._kept.items() if pair[1].is_held_by(held)), (None, None)
            )
            if known is not None and held.owner is None:
                # Its function has ended since, so that nobody knows its name any more.
                known.count = max(known.count, len(held.generations))
                continue
            count = max(len(held.generations), suspect.most if alone else 0)
            growth = _with_any_site(_growth_of(held.owner), held.owner)
            if growth.shrinks and count < _CERTAIN and held.container not in _ENDLESS:
                continue
            hook = None if growth.site is None else hook_around(growth.site, self._recorder.heap)
            kept = _Kept(held, suspect, growth, hook, count)
            if key is not None:
                # It had no name yet, as a list has none that list() is still filling.
                del self._kept[key]
            self._kept[kept.location, held.owner and held.owner.path] = kept
            # Where one thing holds them all, what lives tells how it grows on.
            self._newest = kept if alone else None

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


def _is_certain(held: HeldGraphs) -> bool:
    """Return whether the holder can't let go: as its source says, or because of what it is."""
    return held.container in _ENDLESS or _growth_of(held.owner).is_endless


def _growth_of(owner: Owner | None) -> Growth:
    name = None if owner is None else owner.grows
    if name is None:
        return Growth()
    told = [
        growth_of(
            file,
            name.name,
            function=name.function,
            attribute=name.attribute,
            classes=name.classes,
            base=name.base,
            key=name.key,
        )
        for file in name.files
    ]
    sites = [each.site for each in told if each.site is not None]
    return Growth(
        site=sites[0] if len(sites) == 1 else None,
        sites=tuple(site for each in told for site in each.sites),
        adds=any(each.adds for each in told),
        shrinks=any(each.shrinks for each in told),
    )


def _with_any_site(growth: Growth, owner: Owner | None) -> Growth:
    """Look for the statement that adds to an attribute wherever the program may have it."""
    name = None if owner is None else owner.grows
    if name is None or not name.attribute or growth.sites or growth.adds:
        return growth
    found = [
        site
        for file in user_files_with(f".{name.name}")
        for site in growth_of(
            file, name.name, attribute=True, classes=name.classes, key=name.key, anybody=True
        ).sites
    ]
    if len(found) != 1:
        return growth
    return replace(growth, site=found[0], sites=tuple(found))


_SUBJECTS = {
    "attribute": "{what} `{path}` of {scope}",
    "cache": "the cache of {scope}()",
    "class": "{what} `{path}`, shared by the class",
    "context": "{what} `{path}`, a context variable",
    "ctx": "{what} `{path}` of {scope}",
    "function": "{what} `{scope}.{path}`",
    "thread-local": "{what} `{path}` of a {scope} of this thread",
}


def _subject(held: HeldGraphs) -> str:
    owner = held.owner
    if held.container == "nodes":
        return f"`ctx.{owner.name}` of each {held.element}" if owner else f"each {held.element}"
    what = _container_words(held)
    if owner is None:
        return f"a {what} ({held.length} long)" if held.length > 1 else f"a {what}"
    words = _SUBJECTS.get(owner.kind, f"{{what}} `{{path}}` in {_scope(owner)}")
    return words.format(what=what, path=owner.path, scope=owner.scope)


def _container_words(held: HeldGraphs) -> str:
    if held.container == "tensor":
        return {"Add": "sum", "Sub": "sum", "Cat": "concatenation", "Stack": "stack"}.get(
            held.element or "", "tensor"
        )
    if held.container == "chain":
        return f"chain of {held.element} objects"
    through = {"exception": " of exceptions", "closure": " of closures"}.get(held.through or "", "")
    return f"{held.container}{through}"


def _scope(owner: Owner | None) -> str:
    if owner is None:
        return "the program"
    if owner.kind == "global":
        return f"module {owner.scope}"
    if owner.kind == "default":
        return f"the defaults of {owner.scope}()"
    if owner.kind in ("generator", "coroutine"):
        return f"{owner.kind} {owner.scope}()"
    return f"{owner.scope}()"


_HINTS = {
    "unsearched": (
        "keep loss.item() or tensor.detach(); for the name of what keeps them, run fewer steps, or "
        "with overhead=inf"
    ),
    "exception": "keep str(error) or error.with_traceback(None), not the exception with its frames",
    "closure": "let the closure capture loss.item() or tensor.detach(), not the tensor itself",
    "hook": "store output.detach(), and remove the hook after use",
    "sum": "add numbers: total += loss.item(), or total += loss.detach()",
    "tensor": "detach what goes into it: tensor.detach()",
    "nodes": "ctx.save_for_backward(...) in forward, ctx.saved_tensors in backward",
    "cache": "return tensor.detach() from the function that is cached",
}


def _hint(held: HeldGraphs) -> str:
    for key in (held.through, _container_words(held), held.container):
        if key in _HINTS:
            return _HINTS[key]
    return "store loss.item(), or tensor.detach()"
