"""A state that goes from step to step with its graph, where torch refuses to follow it.

A backward that reaches the graph of an earlier step fails: its buffers were freed, or, if it was
retained, the optimizer has changed the weights since. Such an edge is one from a node that was
made after the earlier backward to one that was made before it, where the same parameters are used
on both sides: the program has gone through the same forward again. So has one whose backward is
called again on the same line before a step, as on each chunk of a sequence. Two losses over one
trunk, or a generator's output that the discriminator's loss has freed, have other parameters on
each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_sequence_number
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_of_node
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import BackwardFailed, BackwardStarted
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["Entry", "StateNotDetached"]

_MOST_NODES = 20_000
"""Nodes that are looked at above and below the edge to the older graph. A bound on cost, see
``MOST_NODES`` of ``reachable_parameters``; beyond, nothing is told."""

_LOOKS = 16
"""Backwards that reach an earlier step's graph and are looked at before they run. A bound on cost
where that goes well each time; one that fails later is looked at then."""

_FREED = "backward through the graph a second time"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the graph of an earlier step is entered.

    Attributes:
        number: of the backward that enters it.
        site: the line that was given the state; None where it is not known.
        earlier: where the backward was called that went through that graph before.
        whole: whether nothing at all is new: the loss itself is of an earlier step.
    """

    number: int
    site: CallSite | None
    earlier: CallSite | None
    whole: bool


class StateNotDetached:
    """Looks at graphs that reach an older one, and tells of the failures that follow."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks = self._looked_at = 0
        self._entry: Entry | None = None
        self._found: dict[object, Finding] = {}

    @property
    def entry(self) -> Entry | None:
        """Where the backward that runs now enters the graph of an earlier step, if it does."""
        entry = self._entry
        runs = entry is not None and entry.number == self._recorder.state.backwards - 1
        return entry if runs else None

    def begin(self, event: BackwardStarted) -> None:
        """Look at a graph that reaches an earlier one, before its nodes are freed one by one."""
        self._entry = None
        if self._looks >= _LOOKS:
            return
        self._looked_at = event.number
        generation = self._recorder.generations.newest()
        if generation is None or generation.index != event.number:
            return
        older = (reference() for reference in generation.reused)
        earlier = [
            each
            for each in older
            if each is not None and (each.step < generation.step or each.site == event.site)
        ]
        if earlier:
            self._looks += 1
            newest = max(earlier, key=lambda each: each.index)
            self._entry = _entry_of(event, generation.known, newest.site)

    def fail(self, event: BackwardFailed) -> None:
        """Take note of torch's refusal to go through a graph that was freed."""
        entry, self._entry = self._entry, None
        if _FREED not in str(event.error):
            return
        generation = self._recorder.generations.newest()
        if self._looked_at != event.number and generation is not None and self._recorder.state.step:
            # Not each backward is asked beforehand which graphs it reaches, other than its own.
            entry = _entry_of(event, generation.known, None)
        if entry is not None and entry.number == event.number:
            finding = _finding(entry, event)
            self._found.setdefault(finding.location, finding)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return list(self._found.values())


def _entry_of(
    event: BackwardStarted | BackwardFailed, known: int, earlier: CallSite | None
) -> Entry | None:
    """Return where new nodes lead to old ones, if the same parameters lie under both."""
    waiting: list[tuple[Node, CallSite | None]] = [
        (node, None) for root in event.roots if (node := root.grad_fn) is not None
    ]
    new_leaves: set[Node] = set()
    old: list[tuple[Node, CallSite | None]] = []
    seen: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        node, site = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if not node.next_functions:
            new_leaves.add(node)
            continue
        number = node_sequence_number(node)
        if number is not None and number <= known:
            old.append((node, site))
            continue
        here = line_of_node(node) or site
        waiting.extend((edge, here) for edge, _ in node.next_functions if edge is not None)
    if not old:
        return None
    whole = len(seen) == len(old)
    if not whole and new_leaves.isdisjoint(_leaves_under([node for node, _ in old])):
        return None
    site = next((site for _, site in old if site is not None), None)
    return Entry(event.number, site, earlier, whole)


def _leaves_under(waiting: list[Node]) -> set[Node]:
    seen: set[Node] = set()
    leaves: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if not node.next_functions:
            leaves.add(node)
        waiting.extend(edge for edge, _ in node.next_functions if edge is not None)
    return leaves


def _finding(entry: Entry, event: BackwardFailed) -> Finding:
    backward = location_of(event.site)
    where = location_of(entry.site) or backward
    if entry.whole:
        message = (
            "backward() starts from a loss of an earlier step, whose graph a backward() has freed "
            "already; torch refuses; expected a forward in each step"
        )
        hint = "compute the loss anew in each step, before backward()"
    else:
        known = entry.site is not None
        given = "what this line was given" if known else "a state that was carried over"
        message = (
            "backward() came to the graph of an earlier one, which has freed it already: "
            f"{given} from the step before still has its graph; torch refuses; expected each step "
            "to begin with a detached state"
        )
        hint = "detach the state between steps: h = h.detach(); a total adds up loss.item()"
    earlier = location_of(entry.earlier)
    through = (earlier, "this backward() had gone through that graph")
    return Finding.of(
        catalogue.STATE_NOT_DETACHED,
        message,
        detector="audit",
        location=where,
        related=[
            *related(through, apart_from=backward),
            *related((backward, "this backward() fails"), apart_from=where),
        ],
        hint=hint,
        evidence={"backward": event.number, "refused": True},
    )
