"""Watch a backward: the size of every gradient on its way, worked out when somebody looks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import Node

from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._torch_compat import (
    add_post_hooks,
    engine_entry_points,
    inside_backward,
    is_view,
    next_sequence_number,
    node_sequence_number,
    sequence_numbers,
    transform_is_active,
    version_of,
    without_torch_function,
)
from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient
from gradcheck_suite.graph.recording.gradient_stats import MOST_COPIED, GradientStats
from gradcheck_suite.graph.recording.hook_placement import (
    HookCount,
    HookPlacement,
    SeenGradients,
    WalkedPart,
    add_implied_gradients,
    hook_every_node,
    place_sparse_hooks,
)
from gradcheck_suite.graph.trace.roots import FoundRoots, find_roots
from gradcheck_suite.graph.trace.safe_release import release_without_recursion
from gradcheck_suite.graph.trace.walk import Links, Walked, collect, collector_paused, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["BackwardRecorder", "RecordedBackward"]

_KEEP_GRAPH = 1
_INPUTS = 3
_KEPT = 32
_MANY = 5_000
"""Graphs of more nodes may be so deep that their release has to be seen to before anything else."""


_ByNumber: TypeAlias = "dict[tuple[int, int], EdgeGradient]"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What was done for a backward as forward ended, so that it need not be done in its time.

    ``hooked`` are the sequence numbers of the hooked nodes: the nodes themselves would keep the
    graph of a forward that no backward follows.
    """

    walked_part: WalkedPart
    stats: GradientStats
    hooked: tuple[int, ...]
    nodes: int
    unhook: Callable[[], None]


@dataclass(slots=True)
class RecordedBackward:
    """One backward: where it started, what flowed along its edges, and its graph as plain data."""

    found: FoundRoots
    keeps_graph: bool
    is_partial: bool
    placement: HookPlacement
    stats: GradientStats
    prepared: _Prepared | None = None
    seen: tuple[Node | int, ...] = ()
    failed: bool = False
    graph: AutogradGraph | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sorted: tuple[_ByNumber, _ByNumber] | None = None
    _links: Links | None = None

    @property
    def links(self) -> Links:
        """Return the nodes with what they lead to; none once they have been released."""
        if self._links is None:
            self._links, _ = collect(start.node for start in self.found.starts)
        return self._links

    @property
    def gradients(self) -> _ByNumber:
        """Return what left each node, by its sequence number and the index of the input."""
        return self._compute()[0]

    @property
    def incoming(self) -> _ByNumber:
        """Return what backward started with, by sequence number and output index."""
        return self._compute()[1]

    def walked(self) -> Walked:
        """Put the nodes in order."""
        return in_order(self.links, (start.node for start in self.found.starts))

    def release(self) -> None:
        """Keep no node alive from now on."""
        self._compute()
        self._links = {}
        self.seen = ()
        self.placement = HookPlacement()
        self.found = FoundRoots((), ())

    def _compute(self) -> tuple[_ByNumber, _ByNumber]:
        with self._lock:
            if self._sorted is None:
                self._sorted = self._sort()
            return self._sorted

    def _sort(self) -> tuple[_ByNumber, _ByNumber]:
        gradients: _ByNumber = {}
        incoming: _ByNumber = {}
        left: SeenGradients = {}
        entered: SeenGradients = {}
        starts = {start.node for start in self.found.starts}
        seen = self._seen_nodes()
        for number, index, gradient in self.stats.results():
            node = seen[~number if number < 0 else number]
            if node is None:
                continue
            if number < 0:
                if node in starts:
                    self._note(incoming, node, index, gradient)
                else:
                    entered[node, index] = gradient
                continue
            links = self.links[node]
            if index < len(links) and links[index][0] is not None:
                left[node, index] = gradient
        if self.placement.is_sparse:
            add_implied_gradients(self.links, starts, left, entered)
        for (node, index), gradient in left.items():
            self._note(gradients, node, index, gradient)
        return gradients, incoming

    def _seen_nodes(self) -> list[Node | None]:
        """Return the nodes that were hooked; None for those that this backward did not start."""
        if not any(isinstance(node, int) for node in self.seen):
            return [node for node in self.seen if isinstance(node, Node)]
        known = {node_sequence_number(node): node for node in self.links if self.links[node]}
        return [known.get(node) if isinstance(node, int) else node for node in self.seen]

    @staticmethod
    def _note(kept: _ByNumber, node: Node, index: int, gradient: EdgeGradient) -> None:
        number = node_sequence_number(node)
        if number is not None:
            kept[number, index] = gradient


class BackwardRecorder:
    """Records every backward and autograd.grad of one thread, from the entry points of the engine.

    The graph is walked, and its nodes are hooked, as backward begins. For what a
    module returned that no other called, that is done at once, as long as a backward follows before
    the next such module is called.
    """

    def __init__(self) -> None:
        self.backwards: list[RecordedBackward] = []
        self.forgotten = 0
        self._prepared: _Prepared | None = None
        self._prepares = True
        self._thread = 0
        self._active = False
        self._hook_count: HookCount | None = None
        self._patches = Patches()

    def start(self) -> None:
        """Replace the entry points."""
        self._thread = threading.get_ident()
        self._active = True
        self._hook_count = HookCount()
        for module, name in engine_entry_points():
            self._patches.replace(module, name, self._recording_run(getattr(module, name)))

    def stop(self) -> None:
        """Restore the entry points; where somebody else has replaced them since, record no more."""
        self._active = False
        self._patches.restore()
        self._discard_prepared()

    def prepare(self, outputs: Sequence[torch.Tensor]) -> None:
        """Prepare for a backward from what a module has returned."""
        if not (self._active and self._prepares) or self._hook_count is None:
            return
        if self._prepared is not None:
            # Modules called one after another: most of the graph would be walked again and again.
            self._stop_preparing()
            return
        # A look at the node of a view that was written to would make one.
        if any(is_view(output) and version_of(output) for output in outputs):
            return
        starts = [output.grad_fn for output in outputs if output.grad_fn is not None]
        with collector_paused():
            chosen = place_sparse_hooks(starts, self._hook_count)
            last = None if next_sequence_number is None else next_sequence_number() - 1
            if chosen is None or last is None or chosen.nodes > _MANY:
                self._prepares = False
                return
            stats = GradientStats(has_streams=_has_streams())
            self._prepared = _Prepared(
                WalkedPart(frozenset(sequence_numbers(starts)), last),
                stats,
                sequence_numbers(chosen.hooked),
                chosen.nodes,
                add_post_hooks(_post_hooks(stats, chosen.hooked)),
            )

    def _stop_preparing(self) -> None:
        self._prepares = False
        self._discard_prepared()

    def _discard_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.unhook()

    def _recording_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            # Those of torch.func are its own: nobody can read the numbers in its wrappers.
            is_theirs = inside_backward() or transform_is_active()
            if not self._active or threading.get_ident() != self._thread or is_theirs:
                if self._prepared is not None:
                    self._stop_preparing()
                return original(outputs, *args, **kwargs)
            with collector_paused(), without_torch_function():
                recorded = self._begin(outputs, args)
                unhook = self._hook(recorded) if recorded is not None else None
            if recorded is None or unhook is None:
                return original(outputs, *args, **kwargs)
            try:
                return original(outputs, *args, **kwargs)
            except BaseException:
                recorded.failed = True
                raise
            finally:
                with collector_paused(), without_torch_function():
                    unhook()
                    recorded.stats.finish()
                self._add(recorded)

        return run

    def _add(self, recorded: RecordedBackward) -> None:
        """Keep the latest backwards: a training loop would fill the memory with their nodes."""
        self.backwards.append(recorded)
        if len(self.backwards) > _KEPT:
            del self.backwards[0]
            self.forgotten += 1
        if sum(each.stats.copied_bytes for each in self.backwards) > MOST_COPIED:
            for each in self.backwards:
                each.stats.compute()

    def _begin(self, outputs: Any, args: Sequence[Any]) -> RecordedBackward | None:
        """Collect the nodes; None where there is no graph, which torch itself will say."""
        roots = outputs if isinstance(outputs, torch.Tensor) else tuple(outputs)
        if isinstance(roots, tuple) and len(roots) == 1:
            roots = roots[0]
        try:
            found = find_roots(roots, called="the tensor that backward started from")
        except Exception:  # noqa: BLE001 - whatever is wrong with it, torch's words come first
            return None
        starts = [start.node for start in found.starts]
        is_partial = len(args) > _INPUTS and bool(args[_INPUTS])
        chosen = None
        if self._hook_count is not None and not is_partial:
            if self._prepared is not None:
                chosen = place_sparse_hooks(starts, self._hook_count, self._prepared.walked_part)
            if chosen is None:
                self._discard_prepared()
                chosen = place_sparse_hooks(starts, self._hook_count)
        if chosen is None:
            self._stop_preparing()
            chosen = hook_every_node(collect(starts)[0])
        prepared, self._prepared = self._prepared, None
        recorded = RecordedBackward(
            found=found,
            keeps_graph=len(args) > _KEEP_GRAPH and bool(args[_KEEP_GRAPH]),
            is_partial=is_partial,
            placement=chosen,
            stats=GradientStats(has_streams=_has_streams()) if prepared is None else prepared.stats,
            prepared=prepared,
        )
        if chosen.nodes + (0 if prepared is None else prepared.nodes) > _MANY:
            release_without_recursion(recorded.walked())
        return recorded

    def _hook(self, recorded: RecordedBackward) -> Callable[[], None]:
        """Hook the nodes to be watched; return what takes all hooks away."""
        stats, hooked, prepared = recorded.stats, recorded.placement.hooked, recorded.prepared
        starts = dict.fromkeys(start.node for start in recorded.found.starts)
        before = () if prepared is None else prepared.hooked
        recorded.seen = (*before, *hooked, *starts)
        remove = add_post_hooks(_post_hooks(stats, hooked, len(before)))
        handles = [
            node.register_prehook(stats.entering(number))
            for number, node in enumerate(starts, start=len(before) + len(hooked))
        ]
        if self._hook_count is not None:
            self._hook_count.add(len(handles))

        def unhook() -> None:
            remove()
            if prepared is not None:
                prepared.unhook()
            for handle in handles:
                handle.remove()

        return unhook


def _post_hooks(
    stats: GradientStats, hooked: Mapping[Node, bool], first: int = 0
) -> Iterator[tuple[Node, Callable[[Any, Any], None]]]:
    """Yield nodes with the hooks that take what leaves them, numbered from ``first``."""
    for number, (node, takes_incoming) in enumerate(hooked.items(), start=first):
        yield node, stats.leaving(number, takes_incoming=takes_incoming)


def _has_streams() -> bool:
    """Return whether gradients may be on a device whose work is queued."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started
