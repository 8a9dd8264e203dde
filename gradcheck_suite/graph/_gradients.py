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
from gradcheck_suite.graph._deep import release_without_recursion
from gradcheck_suite.graph._figures import MOST_COPIED, Figures
from gradcheck_suite.graph._roots import FoundRoots, find_roots
from gradcheck_suite.graph._walk import Links, Walked, collect, collector_paused, in_order
from gradcheck_suite.graph._watchpoints import (
    Border,
    Clearing,
    Seen,
    Watchpoints,
    everywhere,
    follow,
    sparsely,
)
from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["BackwardWatch", "WatchedBackward"]

_KEEP_GRAPH = 1
_INPUTS = 3
_KEPT = 32
_MANY = 5_000
"""Graphs of more nodes may be so deep that their release has to be seen to before anything else."""


_ByNumber: TypeAlias = "dict[tuple[int, int], EdgeGradient]"


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What was done for a backward as forward ended, so that it need not be done in its time.

    ``hooked`` are the sequence numbers of the hooked nodes: the nodes themselves would keep the
    graph of a forward that no backward follows.
    """

    border: Border
    figures: Figures
    hooked: tuple[int, ...]
    nodes: int
    unhook: Callable[[], None]


@dataclass(slots=True)
class WatchedBackward:
    """One backward: where it started, what flowed along its edges, and its graph as plain data."""

    found: FoundRoots
    keeps_graph: bool
    is_partial: bool
    watchpoints: Watchpoints
    figures: Figures
    ahead: _Ahead | None = None
    seen: tuple[Node | int, ...] = ()
    failed: bool = False
    graph: AutogradGraph | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sorted: tuple[_ByNumber, _ByNumber] | None = None
    _links: Links | None = None

    @property
    def links(self) -> Links:
        """Return the nodes with what they lead to; none once they have been let go."""
        if self._links is None:
            self._links, _ = collect(start.node for start in self.found.starts)
        return self._links

    @property
    def gradients(self) -> _ByNumber:
        """Return what left each node, by its sequence number and the index of the input."""
        return self._look()[0]

    @property
    def incoming(self) -> _ByNumber:
        """Return what backward started with, by sequence number and output index."""
        return self._look()[1]

    def walked(self) -> Walked:
        """Put the nodes in order."""
        return in_order(self.links, (start.node for start in self.found.starts))

    def let_go(self) -> None:
        """Keep no node alive from now on."""
        self._look()
        self._links = {}
        self.seen = ()
        self.watchpoints = Watchpoints()
        self.found = FoundRoots((), ())

    def _look(self) -> tuple[_ByNumber, _ByNumber]:
        with self._lock:
            if self._sorted is None:
                self._sorted = self._sort()
            return self._sorted

    def _sort(self) -> tuple[_ByNumber, _ByNumber]:
        gradients: _ByNumber = {}
        incoming: _ByNumber = {}
        left: Seen = {}
        entered: Seen = {}
        starts = {start.node for start in self.found.starts}
        seen = self._seen_nodes()
        for number, index, gradient in self.figures.results():
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
        if self.watchpoints.is_sparse:
            follow(self.links, starts, left, entered)
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


class BackwardWatch:
    """Stands where every backward and autograd.grad of one thread passes through.

    The graph is walked, and its nodes are hooked, as backward begins. For what a
    module returned that no other called, that is done at once, as long as a backward follows before
    the next such module is called.
    """

    def __init__(self) -> None:
        self.backwards: list[WatchedBackward] = []
        self.forgotten = 0
        self._ahead: _Ahead | None = None
        self._looks_ahead = True
        self._thread = 0
        self._active = False
        self._clearing: Clearing | None = None
        self._patches = Patches()

    def start(self) -> None:
        """Stand in the way."""
        self._thread = threading.get_ident()
        self._active = True
        self._clearing = Clearing()
        for module, name in engine_entry_points():
            self._patches.replace(module, name, self._watching(getattr(module, name)))

    def stop(self) -> None:
        """Go away; where somebody else has stepped in since, let everything through."""
        self._active = False
        self._patches.restore()
        self._forget_ahead()

    def look_ahead(self, outputs: Sequence[torch.Tensor]) -> None:
        """Prepare for a backward from what a module has returned."""
        if not (self._active and self._looks_ahead) or self._clearing is None:
            return
        if self._ahead is not None:
            # Modules called one after another: most of the graph would be walked again and again.
            self._do_not_look_ahead()
            return
        # A look at the node of a view that was written to would make one.
        if any(is_view(output) and version_of(output) for output in outputs):
            return
        starts = [output.grad_fn for output in outputs if output.grad_fn is not None]
        with collector_paused():
            chosen = sparsely(starts, self._clearing)
            last = None if next_sequence_number is None else next_sequence_number() - 1
            if chosen is None or last is None or chosen.nodes > _MANY:
                self._looks_ahead = False
                return
            figures = Figures(has_streams=_has_streams())
            self._ahead = _Ahead(
                Border(frozenset(sequence_numbers(starts)), last),
                figures,
                sequence_numbers(chosen.hooked),
                chosen.nodes,
                add_post_hooks(_leaving(figures, chosen.hooked)),
            )

    def _do_not_look_ahead(self) -> None:
        self._looks_ahead = False
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.unhook()

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            # Those of torch.func are its own: nobody can read the numbers in its wrappers.
            is_theirs = inside_backward() or transform_is_active()
            if not self._active or threading.get_ident() != self._thread or is_theirs:
                if self._ahead is not None:
                    self._do_not_look_ahead()
                return original(outputs, *args, **kwargs)
            with collector_paused(), without_torch_function():
                watched = self._prepare(outputs, args)
                unhook = self._hook(watched) if watched is not None else None
            if watched is None or unhook is None:
                return original(outputs, *args, **kwargs)
            try:
                return original(outputs, *args, **kwargs)
            except BaseException:
                watched.failed = True
                raise
            finally:
                with collector_paused(), without_torch_function():
                    unhook()
                    watched.figures.finish()
                self._keep(watched)

        return run

    def _keep(self, watched: WatchedBackward) -> None:
        """Keep the latest backwards: a training loop would fill the memory with their nodes."""
        self.backwards.append(watched)
        if len(self.backwards) > _KEPT:
            del self.backwards[0]
            self.forgotten += 1
        if sum(each.figures.copied_bytes for each in self.backwards) > MOST_COPIED:
            for each in self.backwards:
                each.figures.look()

    def _prepare(self, outputs: Any, args: Sequence[Any]) -> WatchedBackward | None:
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
        if self._clearing is not None and not is_partial:
            if self._ahead is not None:
                chosen = sparsely(starts, self._clearing, self._ahead.border)
            if chosen is None:
                self._forget_ahead()
                chosen = sparsely(starts, self._clearing)
        if chosen is None:
            self._do_not_look_ahead()
            chosen = everywhere(collect(starts)[0])
        ahead, self._ahead = self._ahead, None
        watched = WatchedBackward(
            found=found,
            keeps_graph=len(args) > _KEEP_GRAPH and bool(args[_KEEP_GRAPH]),
            is_partial=is_partial,
            watchpoints=chosen,
            figures=Figures(has_streams=_has_streams()) if ahead is None else ahead.figures,
            ahead=ahead,
        )
        if chosen.nodes + (0 if ahead is None else ahead.nodes) > _MANY:
            release_without_recursion(watched.walked())
        return watched

    def _hook(self, watched: WatchedBackward) -> Callable[[], None]:
        """Hook the nodes to be watched; return what takes all hooks away."""
        figures, hooked, ahead = watched.figures, watched.watchpoints.hooked, watched.ahead
        starts = dict.fromkeys(start.node for start in watched.found.starts)
        before = () if ahead is None else ahead.hooked
        watched.seen = (*before, *hooked, *starts)
        remove = add_post_hooks(_leaving(figures, hooked, len(before)))
        handles = [
            node.register_prehook(figures.entering(number))
            for number, node in enumerate(starts, start=len(before) + len(hooked))
        ]
        if self._clearing is not None:
            self._clearing.add(len(handles))

        def unhook() -> None:
            remove()
            if ahead is not None:
                ahead.unhook()
            for handle in handles:
                handle.remove()

        return unhook


def _leaving(
    figures: Figures, hooked: Mapping[Node, bool], first: int = 0
) -> Iterator[tuple[Node, Callable[[Any, Any], None]]]:
    """Yield nodes with the hooks that take what leaves them, numbered from ``first``."""
    for number, (node, looks_back) in enumerate(hooked.items(), start=first):
        yield node, figures.leaving(number, looks_back=looks_back)


def _has_streams() -> bool:
    """Whether gradients may be on a device whose work is queued."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started
