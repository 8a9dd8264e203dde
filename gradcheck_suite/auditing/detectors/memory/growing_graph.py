"""A value that is computed from its own last value with its graph, at each step.

An average of the weights that autograd records is one: multiplying by a number and adding save
nothing, so that neither the count of saved tensors nor any backward takes note of it; but each
step adds nodes to a graph that is never gone through. The numbers of its nodes tell in which steps
they were made. As each thread has numbers of its own, that alone proves nothing: where a look has
found such a graph, its newest node is marked, and has to be a part of one at a later look.
"""

from __future__ import annotations

import bisect
import sys
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import (
    NO_SEQUENCE_NUMBER,
    next_sequence_number,
    node_metadata,
    node_of,
    sequence_number_of,
)
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.detectors.memory.kept_graphs import (
    CERTAIN,
    LIKELY,
    growth_of_owner,
    with_any_site,
)
from gradcheck_suite.auditing.events import SessionEnded, StepFinished
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.referrers import Owner, RunningFrames, owner_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    from gradcheck_suite.auditing.detectors.memory.graph_kept import GraphKeptDetector
    from gradcheck_suite.auditing.detectors.memory.graph_without_backward import (
        GraphWithoutBackwardDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["GrowingGraphDetector"]

_FIRST_LOOK = LIKELY + 2
"""Steps after which tensors are looked through: what each of them has computed since the first is
of more than ``LIKELY`` by then. Where something was found, the next comes a step later; others come
after four times as many."""

_SHARE = 0.01
"""The part of the run's time that later looks may take. A bound on cost."""

_BLOCKS = 3_000_000
"""Blocks that Python has allocated up to which the first look is made whatever it takes. A bound on
cost: 0.6 million took 0.05 s."""

_SECONDS_PER_BLOCK = 1e-7
"""Of a look: 0.045 s for 0.6 million blocks (one thread of a busy AMD EPYC)."""

_MOST_MARKS = 256
"""Steps whose first number is remembered; beyond, every second is. A bound on memory."""

_MOST_NODES = 50_000
"""Nodes that one look goes through. A bound on cost; beyond, nothing more is told."""

_MOST_NAMED = 4
"""Tensors of one look whose holder is searched for. A bound on cost: an average has as many tensors
as the model, all held alike."""

_MARK = "gradcheck_suite.growing"
"""The key in ``Node.metadata``, a dictionary that lives and dies with the C++ node."""

_ANEW = None, None
"""What nobody writes in place: its name is bound to another tensor in each step."""


@dataclass(slots=True)
class _Growing:
    """Tensors alike whose graphs go back through many steps.

    Attributes:
        used: whether a backward has gone through it since.
        owner: what holds the first, or None.
        location: the line that writes it.
        steps: through so many its graph goes.
        count: of tensors.
        operation: what is written in place; None where the name is bound anew.
    """

    owner: Owner | None
    location: Location | None
    steps: int
    count: int
    operation: str | None
    used: bool = False

    def note_use(self, _gradients: object) -> None:
        """Take note of a backward: it is what the graph was kept for."""
        self.used = True


class GrowingGraphDetector:
    """Reports graph-kept (GCS201) of values that carry their graph from step to step unused.

    Args:
        recorder: knows the objects of the process and who writes in place.
        others: what they tell is not told twice.
    """

    def __init__(
        self, recorder: Recorder, *others: GraphKeptDetector | GraphWithoutBackwardDetector
    ) -> None:
        self._recorder = recorder
        self._others = others
        # The numbers that the first node after each of some steps was to get, rising.
        self._marks: list[int] = []
        self._every, self._steps, self._next = 1, 0, _FIRST_LOOK
        self._began = perf_counter()
        self._found: tuple[_Growing, ...] = ()
        self._hooks: list[RemovableHandle] = []
        # The numbers of the nodes that were marked, and with what.
        self._marked: set[int] = set()
        self._token = object()

    def subscriptions(self) -> Subscriptions:
        """Take note of steps; look rarely."""
        if next_sequence_number is None:
            return {}
        return {StepFinished: self._after_step, SessionEnded: self._at_the_end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that writes such a value."""
        if any(other.findings() for other in self._others):
            return []
        return [_finding(each) for each in self._found if not each.used]

    def _after_step(self, _event: StepFinished) -> None:
        self._steps += 1
        if self._steps % self._every == 0 and next_sequence_number is not None:
            self._marks.append(next_sequence_number())
            if len(self._marks) > _MOST_MARKS:
                del self._marks[::2]
                self._every *= 2
        if self._steps >= self._next:
            is_new = not self._marked
            if self._may_look(first=self._steps <= _FIRST_LOOK + 1):
                self._look()
            self._next = self._steps + 1 if is_new and self._marked else 4 * self._steps

    def _at_the_end(self, _event: SessionEnded) -> None:
        if self._marked and self._may_look(first=False):
            self._look()
        self._let_go()

    def _may_look(self, *, first: bool) -> bool:
        blocks = sys.getallocatedblocks()
        if first:
            return blocks <= _BLOCKS
        return blocks * _SECONDS_PER_BLOCK <= _SHARE * (perf_counter() - self._began)

    def _look(self) -> None:
        heap = self._recorder.heap
        growing: dict[tuple[Location | None, str | None], list[tuple[Tensor, int]]] = {}
        try:
            tensors = heap.instances(torch.Tensor)
        except SearchEndedError:
            return
        left = _MOST_NODES
        for tensor in tensors:
            node = node_of(tensor)
            if node is None or left <= 0:
                continue
            steps, looked, grown = self._steps_under(node, left)
            left -= looked
            if steps >= LIKELY and not grown:
                self._marked.add(sequence_number_of(node))
                node_metadata(node)[_MARK] = self._token
            elif steps >= LIKELY:
                writes = self._recorder.write_log.since(-1, tensor)
                where = (location_of(writes[-1].site), writes[-1].operation) if writes else _ANEW
                growing.setdefault(where, []).append((tensor, steps))
        if growing:
            self._let_go()
            skip = {id(tensors), id(growing), *map(id, growing.values())}
            self._found = tuple(
                self._follow(where, operation, alike, skip)
                for (where, operation), alike in growing.items()
            )

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _follow(
        self,
        where: Location | None,
        operation: str | None,
        alike: list[tuple[Tensor, int]],
        skip: set[int],
    ) -> _Growing:
        """Describe tensors alike, and be told if a backward goes through the longest graph."""
        longest, steps = max(alike, key=itemgetter(1))
        # In the order in which they are computed: that of all objects is another in each run.
        alike.sort(key=lambda pair: _made_as(pair[0]))
        owner = self._owner_of(alike, skip)
        found = _Growing(owner, where or _line_of(owner), steps, len(alike), operation)
        node = node_of(longest)
        if node is not None:
            self._hooks.append(node.register_prehook(found.note_use))
        return found

    def _owner_of(self, alike: list[tuple[Tensor, int]], skip: set[int]) -> Owner | None:
        frames = RunningFrames()
        try:
            for pair in alike[:_MOST_NAMED]:
                owner = owner_of(pair[0], frames, self._recorder.heap, skip={*skip, id(pair)})
                if owner is not None:
                    return owner
            return None
        finally:
            frames.forget()

    def _steps_under(self, root: Node, most: int) -> tuple[int, int, bool]:
        """Return in how many of the steps nodes under ``root`` were made, and how many there are.

        Then whether the newest of an earlier look is among them. Between two marks that are further
        apart than one step lies one, at least.
        """
        marks = self._marks
        grown = False
        made: set[int] = set()
        seen = {root}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            number = sequence_number_of(node)
            if number != NO_SEQUENCE_NUMBER:
                made.add(bisect.bisect_right(marks, number))
            if number in self._marked and node is not root:
                grown = grown or node_metadata(node).get(_MARK) is self._token
            for edge, _ in node.next_functions:
                if edge is not None and edge not in seen:
                    if len(seen) >= most:
                        return 0, most, False
                    seen.add(edge)
                    waiting.append(edge)
        return len(made), len(seen), grown


def _made_as(tensor: Tensor) -> int:
    node = node_of(tensor)
    return NO_SEQUENCE_NUMBER if node is None else sequence_number_of(node)


def _line_of(owner: Owner | None) -> Location | None:
    """Return the statement that computes an attribute or a variable from itself."""
    return next(iter(with_any_site(growth_of_owner(owner), owner).sites), None)


def _finding(growing: _Growing) -> Finding:
    owner = growing.owner
    name = "a tensor" if owner is None else f"`{owner.path}`"
    more = growing.count - 1
    alike = f" (and {more:,} more tensors like it)" if more else ""
    how = "bound to" if growing.operation is None else "overwritten in place by"
    return Finding.of(
        catalogue.GRAPH_KEPT,
        f"{name}{alike} is {how} what is computed from its own last value, and autograd records "
        f"it: its graph goes back through {growing.steps} steps, and one more with each, and no "
        "backward() goes through it; expected an average to be kept without a graph",
        detector="audit",
        severity=Severity.ERROR if growing.steps >= CERTAIN else Severity.WARNING,
        location=growing.location or (None if owner is None else owner.location),
        hint="with torch.no_grad(): around the update, or add p.detach()",
        evidence={
            "owner": None if owner is None else owner.name,
            "path": None if owner is None else owner.path,
            "steps": growing.steps,
            "tensors": growing.count,
        },
    )
