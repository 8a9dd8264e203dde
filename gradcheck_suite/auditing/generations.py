"""Which graphs of earlier backwards are still alive, known without looking for them.

Each backward opens a generation. What it went through is marked with an object of that
generation, and so is each tensor saved since the backward before: a generation lives for as long
as anything keeps one of its graphs, and the weak dictionaries here count the living.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import node_metadata, node_sequence_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["MARK", "Generation", "Generations"]

MARK = "gradcheck_suite.generation"
"""The key in ``Node.metadata``, a dictionary that lives and dies with the C++ node."""

_WALK_LIMIT = 20_000


class Generation:
    """The graphs of one backward.

    Attributes:
        index: the number of the backward, counted from 0.
        site: where it was called.
        freed: whether that backward freed the buffers: no other can go through these graphs.
        step: the number of optimizer steps finished by then.
        chain: how many earlier generations, each of an earlier step than the next, these graphs
            go back through.
        reused: the earlier generations that these graphs reach first.
    """

    __slots__ = ("__weakref__", "chain", "freed", "index", "reused", "site", "step")

    def __init__(self, index: int, site: CallSite | None, step: int = 0) -> None:
        self.index = index
        self.site = site
        self.step = step
        self.freed = False
        self.chain = 0
        self.reused: list[weakref.ref[Generation]] = []

    def free(self) -> None:
        """Note that a backward has freed the buffers of these graphs and of those they reach."""
        self.freed = True
        for reference in self.reused:
            earlier = reference()
            if earlier is not None and not earlier.freed:
                earlier.free()


class Birth:
    """The time between two backwards in which a tensor was saved.

    ``sequence`` is the number that it began with, in the count of saves, writes and steps.
    """

    __slots__ = ("__weakref__", "index", "sequence")

    def __init__(self, index: int, sequence: int) -> None:
        self.index = index
        self.sequence = sequence


class Generations:
    """Opens generations and knows which of them are alive."""

    def __init__(self, tick: Callable[[], int]) -> None:
        self._tick = tick
        self.birth = Birth(0, tick())
        self._used: weakref.WeakValueDictionary[int, Generation] = weakref.WeakValueDictionary()
        self._births: weakref.WeakValueDictionary[int, Birth] = weakref.WeakValueDictionary()
        self._births[0] = self.birth
        # Sequence numbers count by thread, and so does what they prove.
        self._newest = threading.local()

    def open(
        self, index: int, roots: Iterable[Node], site: CallSite | None, step: int
    ) -> Generation:
        """Mark the graph under ``roots`` as used by backward number ``index``.

        The roots are marked, and the nodes next to the leaves: whatever is kept of the graph
        reaches back to one of those.
        """
        generation = Generation(index, site, step)
        known_until = getattr(self._newest, "number", 0)
        newest = known_until
        seen: set[Node] = set()
        waiting = list(roots)
        edge: list[Node] = list(waiting)
        while waiting and len(seen) < _WALK_LIMIT:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            number = node_sequence_number(node)
            if number is not None and number > newest:
                newest = number
            # A node younger than all that were looked at before bears no mark, and asking for one
            # would make it a dictionary.
            is_new = number is not None and number > known_until
            marked = None if is_new else node_metadata(node).get(MARK)
            if isinstance(marked, Generation):
                # Higher derivatives and inner loops reuse graphs within one step, as they should.
                link = 1 if marked.step < step else 0
                generation.chain = max(generation.chain, marked.chain + link)
                generation.reused.append(weakref.ref(marked))
                continue
            inner = False
            for function, _ in node.next_functions:
                if function is not None and function.next_functions:
                    waiting.append(function)
                    inner = True
            if not inner:
                edge.append(node)
        for node in edge:
            node_metadata(node).setdefault(MARK, generation)
        self._newest.number = newest
        self._used[index] = generation
        self.birth = Birth(index + 1, self._tick())
        self._births[index + 1] = self.birth
        return generation

    def spent(self) -> list[Generation]:
        """Return the living generations whose buffers a backward has freed, oldest first."""
        living = [generation for generation in self._used.values() if generation.freed]
        return sorted(living, key=lambda generation: generation.index)

    def oldest_save(self) -> int:
        """Return a number that no living saved tensor's is below."""
        return min(birth.sequence for birth in list(self._births.values()))

    def count_living(self) -> int:
        """Return how many generations have a graph that lives, at the cost of one look."""
        return len(self._used)
