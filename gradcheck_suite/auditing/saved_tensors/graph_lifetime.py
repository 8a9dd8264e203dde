"""Which graphs of earlier backwards are still alive, known without looking for them.

Each backward opens a generation. What it went through is marked with an object of that
generation, and so is each tensor saved since the backward before: a generation lives for as long
as anything keeps one of its graphs, and the weak dictionaries here count the living.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import (
    NO_SEQUENCE_NUMBER,
    node_metadata,
    sequence_number_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.autograd.graph import Node

    from gradcheck_suite._torch_compat import Following
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.run_state import Birth, Clock, Turn

__all__ = ["MARK", "Generation", "Generations"]

MARK = "gradcheck_suite.generation"
"""The key in ``Node.metadata``, a dictionary that lives and dies with the C++ node."""

_WALK_LIMIT = 20_000
"""Nodes of a graph that are looked at for earlier marks. A bound on cost, see ``MOST_NODES`` of
``reachable_parameters``; of a larger graph, the reuse may not be seen."""

_EVERY_ITERATION_UNTIL = 8
"""In so many first steps each graph is looked through. Chosen: above the three steps that the
findings about reuse take; detectors and forwards keep to the same steps."""

_ITERATIONS = 8
"""After those, the graphs of each step that this divides. A bound on cost: an eighth of the
walks."""

_WORTH_CLEARING = 64
"""References to what is dead, at least, before lists are cleared of them. A bound on cost: so each
clearing is paid for by as many additions."""

_MOST_NUMBERS = 50_000
"""Numbers of marked nodes that are remembered, 3.5 MB of Python's objects. Beyond, all nodes up to
the highest of them are asked for a mark, which takes longer and misses nothing."""


class Generation:
    """The graphs of one backward.

    Attributes:
        index: the number of the backward, counted from 0.
        site: where it was called.
        freed_by: the backward that freed the buffers, after which no other can go through these
            graphs: this one or a later one that went through them; None while they last.
        partly: whether that one was asked for the gradients of some tensors alone: it has freed
            what leads to these, and nothing else.
        step: the number of optimizer steps finished by then.
        chain: how many earlier generations, each of an earlier step than the next, these graphs
            go back through.
        reused: the earlier generations that these graphs reach first.
        births: find the times in which the tensors that these graphs keep were saved, while one
            of them lives.
        known: the highest sequence number of this thread's nodes that earlier backwards looked at.
    """

    __slots__ = (
        "__weakref__",
        "births",
        "chain",
        "freed_by",
        "index",
        "known",
        "partly",
        "reused",
        "site",
        "step",
    )

    def __init__(self, index: int, site: CallSite | None, step: int = 0) -> None:
        self.index = index
        self.site = site
        self.step = step
        self.freed_by: int | None = None
        self.partly = False
        self.births: list[weakref.ref[Birth]] = []
        self.chain = self.known = 0
        self.reused: list[weakref.ref[Generation]] = []

    def free(self, by: int, *, partly: bool) -> None:
        """Note that a backward has freed the buffers of these graphs and of those they reach."""
        self.freed_by, self.partly = by, partly
        for reference in self.reused:
            earlier = reference()
            if earlier is not None and (
                earlier.freed_by is None or (earlier.partly and not partly)
            ):
                earlier.free(by, partly=partly)


class _Living:
    """Counts things of one kind; it refers to none, and they to nothing else when they die."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def note_death(self, _: object) -> None:
        self.count -= 1


class Generations:
    """Opens generations and knows which of them are alive.

    Attributes:
        living: counts those that have a graph that lives.
        turns: counts the times between backwards of which a saved tensor lives, this one too.
        births: counts the parts of these that began with the call of an outermost module.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: list[weakref.ref[Generation]] = []
        self.living = _Living()
        # The sequence numbers of marked nodes, and the highest of those that are forgotten.
        self._marked: set[int] = set()
        self._unsure = 0
        self.turns, self.births = _Living(), _Living()
        birth = clock.moment.birth
        self.turns.count = 1
        self._living_turns = [weakref.ref(birth.turn, self.turns.note_death)]
        self._births: deque[weakref.ref[Birth]] = deque([weakref.ref(birth)])
        # Those since the last backward.
        self._new_births: list[weakref.ref[Birth]] = [weakref.ref(birth)]
        self._saved = 0

    @cached_property
    def _newest(self) -> threading.local:
        # Sequence numbers count by thread, and so does what they prove.
        return threading.local()

    def open(
        self,
        index: int,
        roots: Iterable[Node],
        site: CallSite | None,
        step: int,
        following: dict[Node, Following],
    ) -> Generation:
        """Mark the graph under ``roots`` as used by backward number ``index``.

        The roots are marked each time. In the first steps, and in every eighth after, so are the
        nodes next to the leaves: whatever is kept of the graph reaches back to one of those.

        Args:
            index: the number of the backward.
            roots: the nodes that it starts from.
            site: where it was called.
            step: the number of optimizer steps finished by then.
            following: filled with what the nodes that are looked at lead to.
        """
        generation = Generation(index, site, step)
        waiting = tuple(roots)
        # A program without optimizers has backwards only to count by.
        iteration = step or index
        generation.known = getattr(self._newest, "number", 0)
        if iteration < _EVERY_ITERATION_UNTIL or iteration % _ITERATIONS == 0:
            self._walk(generation, waiting, following)
            if len(self._marked) > _MOST_NUMBERS:
                self._unsure = max(self._marked - {NO_SEQUENCE_NUMBER}, default=0)
                self._marked.clear()
        else:
            newest = generation.known
            for node in waiting:
                number = sequence_number_of(node)
                if newest < number < NO_SEQUENCE_NUMBER:
                    self._newest.number = newest = number
                self._marked.add(number)
                marked = node_metadata(node).setdefault(MARK, generation)
                if marked is not generation:
                    generation.reused.append(weakref.ref(marked))
        self._used.append(weakref.ref(generation, self.living.note_death))
        self.living.count += 1
        if len(self._used) > _WORTH_CLEARING + 2 * self.living.count:
            self._all_living()
        generation.births, self._new_births = self._new_births, []
        birth = self._clock.after_backward(index + 1)
        reference = weakref.ref(birth)
        self._births.append(reference)
        self._new_births.append(reference)
        self._living_turns.append(weakref.ref(birth.turn, self.turns.note_death))
        self.turns.count += 1
        if len(self._living_turns) > _WORTH_CLEARING + 2 * self.turns.count:
            self.living_turns()
            self._births = deque(each for each in self._births if each() is not None)
        return generation

    def begin_call(self, saved: int) -> None:
        """Begin a birth, if anything was saved in the last; ``saved`` counts what was so far."""
        if saved != self._saved:
            self._saved = saved
            reference = weakref.ref(self._clock.before_call(), self.births.note_death)
            self.births.count += 1
            self._births.append(reference)
            self._new_births.append(reference)
            if len(self._new_births) > _WORTH_CLEARING + 2 * self.births.count:
                self._new_births = [each for each in self._new_births if each() is not None]
                self._births = deque(each for each in self._births if each() is not None)

    def _walk(
        self, generation: Generation, roots: Iterable[Node], following: dict[Node, Following]
    ) -> None:
        step = generation.step
        newest, bearing, unsure = generation.known, self._marked, self._unsure
        edge: list[Node] = list(roots)
        # What a node leads to is asked for once: that takes longer than all else here.
        following.update((node, node.next_functions) for node in edge)
        waiting = list(following)
        left = _WALK_LIMIT
        while waiting and left:
            node = waiting.pop()
            left -= 1
            number = sequence_number_of(node)
            # Asking a node for a mark that it does not bear would make it a dictionary.
            marked = None
            if number <= unsure or number in bearing or number == NO_SEQUENCE_NUMBER:
                marked = node_metadata(node).get(MARK)
            elif number > newest:
                newest = number
            if isinstance(marked, Generation):
                # Higher derivatives and inner loops reuse graphs within one step, as they should.
                link = 1 if marked.step < step else 0
                generation.chain = max(generation.chain, marked.chain + link)
                generation.reused.append(weakref.ref(marked))
                continue
            inner = False
            for function, _ in following[node]:
                if function is None:
                    continue
                behind = following.get(function)
                if behind is None:
                    behind = following[function] = function.next_functions
                    if behind:
                        waiting.append(function)
                if behind:
                    inner = True
            if not inner:
                edge.append(node)
        for node in edge:
            bearing.add(sequence_number_of(node))
            node_metadata(node).setdefault(MARK, generation)
        self._newest.number = newest

    def newest(self) -> Generation | None:
        """Return the generation that was opened last, if it lives."""
        return self._used[-1]() if self._used else None

    def freed(self) -> list[Generation]:
        """Return the living generations whose buffers a backward has freed, oldest first."""
        return [each for each in self._all_living() if each.freed_by is not None]

    def living_turns(self) -> list[Turn]:
        """Return the times between backwards of which a saved tensor lives, oldest first."""
        self._living_turns = [each for each in self._living_turns if each() is not None]
        return [turn for each in self._living_turns if (turn := each()) is not None]

    def births_since_backward(self) -> list[Birth]:
        """Return the parts of the time since the last backward of which a saved tensor lives."""
        return [birth for each in self._new_births if (birth := each()) is not None]

    def retained(self) -> list[Generation]:
        """Return the living generations whose buffers no backward has freed, oldest first."""
        return [each for each in self._all_living() if each.freed_by is None]

    def _all_living(self) -> list[Generation]:
        living = []
        kept = []
        for reference in self._used:
            generation = reference()
            if generation is not None:
                living.append(generation)
                kept.append(reference)
        self._used = kept
        return living

    def oldest_save(self) -> int:
        """Return a number that no living saved tensor's is below."""
        births = self._births
        while (oldest := births[0]()) is None:
            births.popleft()
        return oldest.sequence
