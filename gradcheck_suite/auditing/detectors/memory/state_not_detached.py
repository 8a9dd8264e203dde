"""A graph that a second backward comes to: a state that goes from step to step, or two losses.

A backward that reaches the graph of an earlier step fails: its buffers were freed, or, if it was
retained, the optimizer has changed the weights since. Such an edge is one from a node that was
made after the earlier backward to one that was made before it, where the same parameters are used
on both sides: the program has gone through the same forward again. So has one whose backward is
called again on the same line before a step, as on each chunk of a sequence. A forward that stands
before the loop, two losses over one trunk, or a generator's output that the discriminator's loss
has freed, have other parameters on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_sequence_number
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.object_names.held_tensors import held_over, only_assignment
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_of_node
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import BackwardFailed, BackwardStarted
    from gradcheck_suite.auditing.object_names.held_tensors import HeldTensor
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generation

__all__ = ["Entry", "StateNotDetached", "edge_of", "leaves_under"]

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
        whole: whether nothing at all is new: the loss itself has been through a backward.
        carried: whether the same parameters are used on both sides: the program has gone through
            the same forward again.
        beside: whether another line's backward had gone through it, and no step lies between.
        again: whether this very line's had, in an earlier step.
        known: the highest sequence number of the old nodes.
    """

    number: int
    site: CallSite | None
    earlier: CallSite | None
    whole: bool
    carried: bool
    beside: bool
    again: bool
    known: int

    @property
    def is_of_an_earlier_step(self) -> bool:
        """Whether a state, or the loss itself, has come here from an earlier step."""
        return (self.whole or self.carried) and not self.beside


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
        if entry is None or entry.number != self._recorder.state.backwards - 1:
            return None
        return entry if entry.is_of_an_earlier_step else None

    def begin(self, event: BackwardStarted) -> None:
        """Look at a graph that reaches an earlier one, before its nodes are freed one by one."""
        self._entry = None
        if self._looks >= _LOOKS:
            return
        self._looked_at = event.number
        generation = self._recorder.generations.newest()
        if generation is None or generation.index != event.number or not generation.reused:
            return
        self._looks += 1
        self._entry = _entry_of(event, generation)

    def fail(self, event: BackwardFailed) -> None:
        """Take note of torch's refusal to go through a graph that was freed."""
        entry, self._entry = self._entry, None
        if _FREED not in str(event.error):
            return
        if entry is None or entry.number != event.number:
            # Not each backward is looked at beforehand; by now, what it has passed is freed too.
            generation = self._recorder.generations.newest()
            if generation is None or generation.index != event.number:
                return
            entry = _entry_of(event, generation)
        if entry is not None:
            finding = _explained(entry, event)
            self._found.setdefault(finding.location, finding)

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return list(self._found.values())


def _entry_of(event: BackwardStarted | BackwardFailed, generation: Generation) -> Entry | None:
    """Return where new nodes lead to old ones."""
    nodes, site, is_whole, is_carried = edge_of(event, generation.known)
    if not nodes:
        return None
    reused = [each for reference in generation.reused if (each := reference()) is not None]
    newest = max(reused, key=lambda each: each.index, default=None)
    again = newest is None or newest.site == event.site
    in_step = newest is not None and newest.step == generation.step
    return Entry(
        event.number,
        site,
        None if newest is None else newest.site,
        whole=is_whole,
        carried=is_carried,
        beside=in_step and not again,
        again=again and not in_step,
        known=generation.known,
    )


def edge_of(
    event: BackwardStarted | BackwardFailed, known: int
) -> tuple[list[Node], CallSite | None, bool, bool]:
    """Return the old nodes that are come to first, and the line that was given what they made.

    Then whether nothing is new, and whether the same parameters lie under both.
    """
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
    nodes = [node for node, _ in old]
    site = next((site for _, site in old if site is not None), None)
    carried = bool(nodes) and not new_leaves.isdisjoint(leaves_under([*nodes]))
    return nodes, site, len(seen) == len(old), carried


def leaves_under(waiting: list[Node]) -> set[Node]:
    """Return the nodes below these that lead to nothing more, those of leaves among them."""
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


def _explained(entry: Entry, event: BackwardFailed) -> Finding:
    """Tell why a backward has come to a graph that was freed."""
    if entry.is_of_an_earlier_step:
        return _finding(entry, event)
    # The state is a tensor of the program's: it lives where some function can reach it.
    nodes = set(edge_of(event, entry.known)[0])
    return (_computed_once if entry.again else _twice)(entry, event, held_over(nodes))


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


def _computed_once(entry: Entry, event: BackwardFailed, shared: HeldTensor | None) -> Finding:
    """Tell of a part of the forward that stands before the loop."""
    backward = location_of(event.site)
    given = location_of(entry.site)
    made = None if shared is None or shared.key is None else only_assignment(shared.key)
    where = made or given or backward
    name = "what this line was given" if shared is None else f"`{shared.name}`"
    return Finding.of(
        catalogue.STATE_NOT_DETACHED,
        f"{name} was computed once, and backward() of an earlier step has freed its graph: this "
        "one comes to it again, and torch refuses; expected it to be computed anew in each step",
        detector="audit",
        location=where,
        related=[
            *related((given, "used here"), apart_from=where),
            *related(
                (location_of(entry.earlier), "this backward() had gone through that graph"),
                apart_from=backward,
            ),
            *related((backward, "this backward() fails"), apart_from=where),
        ],
        hint="move its forward into the loop; or detach() it, if it is not to be trained",
        evidence={"backward": event.number, "refused": True},
    )


def _twice(entry: Entry, event: BackwardFailed, held: HeldTensor | None) -> Finding:
    """Tell of a second loss over a graph that the backward of the first has freed."""
    backward = location_of(event.site)
    shared = "a graph" if held is None else f"the graph of `{held.name}`"
    what = "its whole graph" if entry.whole else shared
    return Finding.of(
        catalogue.BACKWARD_TWICE,
        f"this backward() comes to {what} after an earlier one has freed it; torch refuses; "
        "expected one backward() for both losses, or a part that is detached or computed anew",
        detector="audit",
        location=backward,
        related=related(
            (location_of(entry.earlier), "this backward() has freed it"),
            (location_of(entry.site), "used here"),
            apart_from=backward,
        ),
        hint="(first + second).backward(); x.detach() where the first loss is not to train what "
        "x comes from; or retain_graph=True in the first",
        evidence={"backward": event.number, "refused": True},
    )
