"""Graphs that are kept, step after step, by one thing that has never let go of any.

Counting is free: what tells graphs apart lives as long as any of them. Only where several live is
it worth asking who holds them, and a holder is told only if one thing keeps many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_files_with
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.object_names.retention import (
    FreedGraphs,
    HeldGraphs,
    Owner,
    UnusedGraphs,
    find_holders,
    hook_around,
)
from gradcheck_suite.auditing.source_analysis.container_growth import (
    Growth,
    argument_added,
    growth_of,
    passed_from,
    put_under,
)
from gradcheck_suite.findings import Finding, Related, Severity
from gradcheck_suite.reporting.text import byte_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.auditing.object_names.retention import Wanted
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.run_state import Turn
    from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generation
    from gradcheck_suite.findings import Location

__all__ = [
    "CERTAIN",
    "LIKELY",
    "Freed",
    "Graphs",
    "KeptGraphs",
    "Unused",
    "UnusedCalls",
    "growth_of_owner",
    "with_any_site",
]

CERTAIN = 32
"""The graphs of so many steps in one holder, none ever let go, are a leak while the loop still
runs, whatever the source says."""

LIKELY = 8
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


class Graphs(Protocol):
    """Graphs of one sort, in groups that live as long as any graph in them.

    Attributes:
        noun: what a group is the graphs of.
        unusable: what is to be said of why they are kept in vain.
        certain: whether no backward can use them again, whatever comes.
        told_at: how many of them are told of while the run goes on.
    """

    noun: str
    unusable: str
    certain: bool
    told_at: int

    def count(self) -> int:
        """Return about how many groups live; this is asked in every step."""
        ...

    def living(self) -> Sequence[Group]:
        """Return the groups that live, oldest first."""
        ...

    def turns(self, groups: Sequence[Any], *, stepped: bool) -> dict[int, int]:
        """Return the numbers of these groups, each with the step or turn that it belongs to."""
        ...

    def wanted(self, groups: Sequence[Any]) -> Wanted:
        """Return what a search asks which of these graphs a tensor leads to."""
        ...

    def is_used(self, held: HeldGraphs) -> bool:
        """Return whether a holder's graphs are gone through again and again."""
        ...

    def may_come(self, count: int) -> bool:
        """Return whether a backward through so many of them may be still to come."""
        ...


class Group(Protocol):
    """The graphs of one backward, or of one time between two."""

    @property
    def index(self) -> int:
        """The number that comes before those of later groups."""
        ...

    @property
    def site(self) -> CallSite | None:
        """Where the backward was called that went through them."""
        ...


class Freed:
    """Graphs that outlive the backward that has freed them."""

    noun, unusable, certain = "backwards", "no backward can use them again", True
    told_at = CERTAIN

    def __init__(self, recorder: Recorder) -> None:
        self._generations = recorder.generations

    def count(self) -> int:
        """Return how many backwards have a graph that lives."""
        return self._generations.living.count

    def living(self) -> list[Generation]:
        """Return the living generations whose buffers a backward has freed, oldest first."""
        return self._generations.freed()

    def turns(self, groups: Sequence[Generation], *, stepped: bool) -> dict[int, int]:
        """Return the generations with the step of each.

        Before the first step, and where nothing steps, with the backward that freed it: one that
        goes through the graphs of several others, as that of a meta-learner does, is one turn.
        """
        if stepped:
            return {each.index: each.step for each in groups}
        return {
            each.index: each.index if each.freed_by is None else each.freed_by for each in groups
        }

    def wanted(self, groups: Sequence[Generation]) -> Wanted:
        """Return what tells of a tensor which of these freed graphs it leads to."""
        return FreedGraphs(groups)

    def is_used(self, held: HeldGraphs) -> bool:
        """Return False: they can't be."""
        del held
        return False

    def may_come(self, count: int) -> bool:
        """Return False, as well."""
        del count
        return False


@dataclass(frozen=True, slots=True)
class _Time:
    """A time in which tensors were saved that live, and no backward has freed them since."""

    index: int
    step: int
    birth: object
    site: CallSite | None = None


class Unused:
    """Graphs of earlier steps that still wait for a backward."""

    noun, unusable, certain = "steps", "no backward has freed them", False
    told_at = CERTAIN

    def __init__(self, recorder: Recorder) -> None:
        self._generations = recorder.generations

    def count(self) -> int:
        """Return of how many times between backwards a saved tensor lives, but for this one."""
        return self._generations.turns.count - 1

    def living(self) -> list[_Time]:
        """Return these times, oldest first."""
        turns: list[Turn] = self._generations.living_turns()
        return [_Time(each.index, each.step, each) for each in turns[:-1]]

    def turns(self, groups: Sequence[_Time], *, stepped: bool) -> dict[int, int]:
        """Return these times, each with its step; where nothing steps, each is one by itself."""
        return {each.index: each.step if stepped else each.index for each in groups}

    def wanted(self, groups: Sequence[_Time]) -> Wanted:
        """Return what tells of a tensor in which of these times its graph was recorded."""
        return UnusedGraphs({each.birth: each.index for each in groups})

    def is_used(self, held: HeldGraphs) -> bool:
        """Return whether it is a state through which backwards go that retain what they use."""
        retained = {each.index for each in self._generations.retained()}
        return held.container == "tensor" and not retained.isdisjoint(held.generations)

    def may_come(self, count: int) -> bool:
        """Return whether it may: few losses wait for more than some steps of another network."""
        return count < LIKELY


class UnusedCalls(Unused):
    """Graphs that calls of modules have recorded since the last backward, if there was any."""

    noun = "calls"
    told_at = 8 * CERTAIN

    def count(self) -> int:
        """Return how many parts of the time since then have a saved tensor that lives."""
        return self._generations.births.count

    def living(self) -> list[_Time]:
        """Return these parts, oldest first."""
        births = self._generations.births_since_backward()
        return [_Time(each.call, each.call, each) for each in births]

    def may_come(self, count: int) -> bool:
        """Return True: the first may be that of a long sequence."""
        del count
        return True


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Holders that were found, and how many graphs there were then and at most since."""

    held: tuple[HeldGraphs, ...]
    oldest: int
    most: int
    backward: CallSite | None


class _Kept:
    """A holder that is told of, and the number of graphs that it keeps by now."""

    def __init__(
        self,
        graphs: Graphs,
        held: HeldGraphs,
        suspect: _Suspect,
        growth: Growth,
        *,
        hook: str | None,
        count: int,
        doubts: Sequence[str],
    ) -> None:
        self._graphs = graphs
        self._held = held
        self._oldest = suspect.oldest
        self._backward = location_of(suspect.backward)
        self._recorded = location_of(held.recorded)
        self._hook = hook
        self._endless = growth.is_endless or held.container in _ENDLESS
        self._doubts = doubts
        self.count = count
        self._held_at = None if held.owner is None else held.owner.location
        made = _made_at(growth, held, self._recorded)
        places = [made, *growth.sites, self._recorded, self._backward, self._held_at]
        self.location = next((each for each in places if each is not None), None)
        self._added = growth.sites

    def is_held_by(self, held: HeldGraphs) -> bool:
        """Return whether this is the same thing, with some of the same graphs."""
        mine = self._held
        return mine.identity == held.identity and not set(mine.generations).isdisjoint(
            held.generations
        )

    def still_keeps(self, alive: set[int]) -> bool:
        """Return whether most of the graphs that it was seen to keep live still."""
        mine = self._held.generations
        return 2 * len(alive.intersection(mine)) >= len(mine)

    def finding(self) -> Finding:
        """Return what there is to say of it now."""
        held, hook, owner = self._held, self._hook, self._held.owner
        graphs = self._graphs
        one = graphs.noun.removesuffix("s")
        # People count from 1.
        oldest = f"{one} {self._oldest + 1:,}" if self._oldest else f"the first {one}"
        kept = f"keeps the graphs of {self.count} {graphs.noun} alive, the oldest since {oldest}"
        if held.saved_bytes:
            kept += f" ({byte_count(held.saved_bytes)} of saved tensors)"
        filled = "" if hook is None else f", filled by a {hook},"
        return Finding.of(
            catalogue.GRAPH_KEPT if hook is None else catalogue.HOOK_KEEPS_GRAPH,
            f"{_subject(held, self.location)}{filled} {kept}, and one more with each; "
            f"{graphs.unusable}",
            detector="audit",
            severity=self._severity(),
            doubts=self._doubts,
            location=self.location,
            related=self._related(),
            hint=_hint(held, graphs) if hook is None else _HINTS["hook"],
            evidence={
                "holder": held.container,
                "owner": None if owner is None else owner.name,
                "owner_kind": None if owner is None else owner.kind,
                "path": None if owner is None else owner.path,
                "through": held.through,
                "graphs": self.count,
                "of": graphs.noun,
                "oldest": self._oldest,
                "bytes": held.saved_bytes,
            },
        )

    def _severity(self) -> Severity:
        many = self.count >= LIKELY
        if self._graphs.certain:
            return Severity.ERROR if many or self._endless else Severity.WARNING
        return Severity.WARNING if many or self._endless else Severity.NOTE

    def _related(self) -> list[Related]:
        through = (self._backward, "backward() has been through these graphs here")
        recorded = (self._recorded, "recorded here")
        places = related(through, recorded, apart_from=self.location)
        added = ((each, "added here") for each in self._added[:1])
        others = ((each, "or added here") for each in self._added[1:])
        places += related(*added, *others, apart_from=self.location)
        held_at = self._held_at
        lines = {each.line for each in self._added if len(self._added) == 1}
        if held_at is not None and held_at.line not in lines:
            places += related((held_at, f"held in {_scope(self._held.owner)}"))
        return places


class KeptGraphs:
    """Follows the graphs of one sort, and who keeps them.

    Args:
        recorder: knows how far the run is, and the objects of the process.
        graphs: those that are followed.
    """

    def __init__(self, recorder: Recorder, graphs: Graphs) -> None:
        self._recorder = recorder
        self._graphs = graphs
        self._limit = recorder.options.graph_limit
        self._threshold = self._limit
        self._suspect: _Suspect | None = None
        self._kept: dict[object, _Kept] = {}
        self._newest: _Kept | None = None
        self.nobody = False
        self.stepped = False

    def findings(self) -> list[Finding]:
        """Return the holders that are told of."""
        return [kept.finding() for kept in self._kept.values()]

    @property
    def any_kept(self) -> bool:
        """Whether a holder was found."""
        return bool(self._kept)

    def is_following(self) -> bool:
        """Return whether graphs are kept, so that more of them are to be counted."""
        return self._suspect is not None or bool(self._kept)

    def forget(self) -> None:
        """Take back what was told: a backward has come for it."""
        self._suspect = self._newest = None
        self._kept.clear()

    def count_living(self) -> None:
        """Look whether more live than should; constant work as long as there are few."""
        # The newest graph may well be alive still: its loss has a name.
        living = self._graphs.count()
        if self._newest is not None:
            self._newest.count = max(self._newest.count, living - 1)
        if living <= self._threshold:
            if self._suspect is not None:
                self._let_go()
            return
        if self._suspect is not None:
            self._follow()
        elif len(self._graphs.living()) > self._threshold:
            self._suspect = self._ask_who(leave_out=1)

    def take_back(self) -> None:
        """Take back what was told of graphs that a backward has now gone through."""
        alive = {each.index for each in self._graphs.living()}
        for key, kept in tuple(self._kept.items()):
            if not kept.still_keeps(alive):
                del self._kept[key]
                self._threshold = max(self._threshold, 2 * kept.count)
        if self._newest not in self._kept.values():
            self._newest = None

    def end(self, *, most: int = 0) -> None:
        """Tell of what is kept at the end of the run, though nobody knows whether it would grow.

        Args:
            most: how many were seen to live at once, by those who count them oftener.
        """
        if self._suspect is None and self._graphs.count() > 1:
            # A holder has the newest graph too, by now.
            self._suspect = self._ask_who(leave_out=0)
        if self._suspect is not None:
            most = max(most, self._suspect.most, len(self._graphs.living()))
            self._report(replace(self._suspect, most=most))
            self._suspect = None

    def alive(self) -> int:
        """Return of how many turns graphs live."""
        return self._turns_of(self._graphs.living())

    def _turns_of(self, groups: Sequence[Group]) -> int:
        return len(set(self._graphs.turns(groups, stepped=self.stepped).values()))

    def _ask_who(self, *, leave_out: int) -> _Suspect | None:
        """Look for holders of all graphs but the newest ``leave_out``.

        No list of groups may live on while the garbage is collected: a group is taken to live as
        long as its graph does.
        """
        heap = self._recorder.heap
        if heap.is_exhausted:
            self._threshold = 2 * self._graphs.count()
            return None
        newest = self._newest_but(leave_out)
        if not self._outlives_garbage(newest):
            return None
        alive = self._up_to(newest)
        held: tuple[HeldGraphs, ...] = ()
        if len(self._kept) < _MOST_FINDINGS:
            held = self._search(alive)
            self.nobody = not held
        held = tuple(each for each in held if not self._graphs.is_used(each))
        endless = tuple(each for each in held if each.bound is None or each.bound > _LARGE)
        if not endless:
            # Nobody in particular, or a deque that can't grow on: ask again at twice as many.
            bound = max((each.bound or 0 for each in held), default=0)
            self._threshold = max(2 * len(alive), bound + self._limit)
            return None
        suspect = _Suspect(endless, alive[0].index, len(alive), alive[-1].site)
        if self._graphs.certain and all(map(_is_certain, endless)):
            self._report(suspect)
            # Where one thing holds them all, it is told how it grows without another search.
            self._threshold = (2 if self._newest is None else 4) * len(alive)
            return None
        return suspect

    def _newest_but(self, leave_out: int) -> int:
        indices = [each.index for each in self._graphs.living()]
        return indices[-1 - leave_out] if len(indices) > leave_out else -1

    def _outlives_garbage(self, newest: int) -> bool:
        """Return whether enough of the groups up to this one live once garbage is collected."""
        if self._turns_of(self._up_to(newest)) < self._limit:
            return False
        # Most cycles are young: to look through all objects of a large program takes long.
        for generation in (1, 2):
            if self._turns_of(self._up_to(newest)) < self._limit:
                return False
            self._recorder.heap.collect(generation)
        if self._turns_of(self._up_to(newest)) >= self._limit:
            return True
        # All was garbage of a program that makes cycles. It will again, and to collect it takes
        # longer each time that a library is imported.
        self._threshold *= 2
        return False

    def _search(self, groups: Sequence[Group]) -> tuple[HeldGraphs, ...]:
        turns = self._graphs.turns(groups, stepped=self.stepped)
        wanted = self._graphs.wanted(groups)
        return find_holders(wanted, turns, self._recorder.heap, at_least=self._limit)

    def _up_to(self, newest: int) -> list[Group]:
        return [each for each in self._graphs.living() if each.index <= newest]

    def _follow(self) -> None:
        suspect = self._suspect
        if suspect is None:
            return
        alive = self._graphs.living()[:-1]
        if not alive or alive[0].index > suspect.oldest or len(alive) < suspect.most - 1:
            self._let_go()
            return
        self._suspect = replace(suspect, most=max(suspect.most, len(alive)))
        if len(alive) >= self._graphs.told_at:
            held = self._search(alive)
            if held or self._recorder.heap.is_exhausted:
                self._report(replace(self._suspect, held=held or self._suspect.held))
            self._threshold = 2 * len(alive)
            self._suspect = None

    def _let_go(self) -> None:
        """Take note that the suspect has dropped its graphs: it is a window, not a leak."""
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return
        self._threshold = max(self._threshold, 2 * suspect.most)
        # Where nothing steps, a part of a graph may have been freed, and the rest used since.
        if self._graphs.certain and self.stepped and suspect.most >= LIKELY:
            self._report(suspect, ["they were let go of later", "it may be a window"])

    def _report(self, suspect: _Suspect, doubts: Sequence[str] = ()) -> None:
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
            growth = with_any_site(growth_of_owner(held.owner), held.owner)
            if growth.shrinks and count < LIKELY and held.container not in _ENDLESS:
                continue  # a small window: nothing speaks for a leak
            hook = None if growth.site is None else hook_around(growth.site, self._recorder.heap)
            against = [*doubts, *self._doubts(held, growth, count)]
            kept = _Kept(
                self._graphs, held, suspect, growth, hook=hook, count=count, doubts=against
            )
            if key is not None:
                # It had no name yet, as a list has none that list() is still filling.
                del self._kept[key]
            self._kept[kept.location, held.owner and held.owner.path] = kept
            # Where one thing holds them all, what lives tells how it grows on.
            self._newest = kept if alone else None

    def _doubts(self, held: HeldGraphs, growth: Growth, count: int) -> list[str]:
        """Return what speaks against a leak."""
        if held.container in _ENDLESS:
            return []
        found = []
        if growth.shrinks and count < CERTAIN:
            found.append("the source takes things out of it, or begins it anew")
        owner = held.owner
        local = owner is not None and owner.kind == "local" and owner.direct
        if local and self._graphs.may_come(count):
            found.append("it is a variable of a function that runs, which may yet use it")
        return found


def _made_at(growth: Growth, held: HeldGraphs, recorded: Location | None) -> Location | None:
    """Return the line to change, where that is not the one that adds to the holder."""
    if held.key is not None:
        made = put_under(held.key, user_files_with(held.key))
        if made is not None:
            return made
    argument = None if growth.site is None else argument_added(growth.site)
    # Calls of a module do not name its `forward`: what does is somebody else.
    if argument is None or argument[0] == "forward":
        return None
    base = None if held.owner is None or held.owner.grows is None else held.owner.grows.base
    passed = passed_from(argument, user_files_with(f"{argument[0]}("), base)
    if passed is None or recorded is None or recorded.path != passed.path:
        return passed or recorded
    # A graph that nothing goes through is best not recorded where it is passed on.
    return recorded if recorded.function == passed.function else passed


def _is_certain(held: HeldGraphs) -> bool:
    """Return whether the holder can't let go: as its source says, or because of what it is."""
    return held.container in _ENDLESS or growth_of_owner(held.owner).is_endless


def growth_of_owner(owner: Owner | None) -> Growth:
    """Return what the source says of how what bears this name grows."""
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


def with_any_site(growth: Growth, owner: Owner | None) -> Growth:
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


def _subject(held: HeldGraphs, told_at: Location | None) -> str:
    owner = held.owner
    if held.container == "nodes":
        return f"`ctx.{owner.name}` of each {held.element}" if owner else f"each {held.element}"
    what = _container_words(held)
    if owner is None:
        return f"a {what} ({held.length} long)" if held.length > 1 else f"a {what}"
    words = _SUBJECTS.get(owner.kind, f"{{what}} `{{path}}` in {_scope(owner, told_at)}")
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


def _scope(owner: Owner | None, told_at: Location | None = None) -> str:
    if owner is None:
        return "the program"
    # Which method was asked for its `self` is chance: that of the line that is told knows it too.
    told_in = None if told_at is None else told_at.function
    if told_in is not None and owner.path.startswith("self.") and owner.kind == "local":
        of_class = owner.scope.rpartition(".")[0]
        if of_class and told_in.rpartition(".")[0] == of_class:
            return f"{told_in}()"
    if owner.kind == "global":
        return f"module {owner.scope}"
    if owner.kind == "default":
        return f"the defaults of {owner.scope}()"
    if owner.kind in ("generator", "coroutine"):
        return f"{owner.kind} {owner.scope}()"
    return f"{owner.scope}()"


_HINTS = {
    "exception": "keep str(error) or error.with_traceback(None), not the exception with its frames",
    "closure": "let the closure capture loss.item() or tensor.detach(), not the tensor itself",
    "hook": "store output.detach(), and remove the hook after use",
    "sum": "add numbers: total += loss.item(), or total += loss.detach()",
    "tensor": "detach what goes into it: tensor.detach()",
    "nodes": "ctx.save_for_backward(...) in forward, ctx.saved_tensors in backward",
    "cache": "return tensor.detach() from the function that is cached",
}


def _hint(held: HeldGraphs, graphs: Graphs) -> str:
    if not graphs.certain and held.container == "tensor":
        return "detach what is carried over: h = h.detach(); or torch.no_grad() around the calls"
    for key in (held.through, _container_words(held), held.container):
        if key in _HINTS:
            return _HINTS[key]
    if graphs.certain:
        return "store loss.item(), or tensor.detach()"
    return "store tensor.detach(), or record no graph: with torch.no_grad() around the call"
