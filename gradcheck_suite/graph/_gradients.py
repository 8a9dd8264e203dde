"""Watch a backward: the size of every gradient on its way, worked out when somebody looks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import Node

from gradcheck_suite._patches import Patches
from gradcheck_suite._torch_compat import (
    add_post_hooks,
    engine_entry_points,
    inside_backward,
    node_sequence_number,
    transform_is_active,
)
from gradcheck_suite.graph._deep import release_without_recursion
from gradcheck_suite.graph._figures import MOST_COPIED, Figures
from gradcheck_suite.graph._roots import FoundRoots, find_roots
from gradcheck_suite.graph._walk import Links, Walked, collect, collector_paused, in_order
from gradcheck_suite.graph._watchpoints import (
    Clearing,
    Seen,
    Watchpoints,
    everywhere,
    follow,
    sparsely,
)
from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BackwardWatch", "WatchedBackward"]

_KEEP_GRAPH = 1
_INPUTS = 3
_KEPT = 32
_MANY = 5_000
"""Graphs of more nodes may be so deep that their release has to be seen to before anything else."""


_ByNumber: TypeAlias = "dict[tuple[int, int], EdgeGradient]"


@dataclass(slots=True)
class WatchedBackward:
    """One backward: where it started, what flowed along its edges, and its graph as plain data."""

    found: FoundRoots
    links: Links
    keeps_graph: bool
    is_partial: bool
    watchpoints: Watchpoints
    figures: Figures
    seen: tuple[Node, ...] = ()
    failed: bool = False
    graph: AutogradGraph | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sorted: tuple[_ByNumber, _ByNumber] | None = None

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
        self.links = {}
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
        for number, index, gradient in self.figures.results():
            if number < 0:
                node = self.seen[~number]
                if node in starts:
                    self._note(incoming, node, index, gradient)
                else:
                    entered[node, index] = gradient
                continue
            node = self.seen[number]
            links = self.links[node]
            if index < len(links) and links[index][0] is not None:
                left[node, index] = gradient
        if self.watchpoints.is_sparse:
            follow(self.links, starts, left, entered)
        for (node, index), gradient in left.items():
            self._note(gradients, node, index, gradient)
        return gradients, incoming

    @staticmethod
    def _note(kept: _ByNumber, node: Node, index: int, gradient: EdgeGradient) -> None:
        number = node_sequence_number(node)
        if number is not None:
            kept[number, index] = gradient


class BackwardWatch:
    """Stands where every backward and autograd.grad of one thread passes through."""

    def __init__(self) -> None:
        self.backwards: list[WatchedBackward] = []
        self.forgotten = 0
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

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            # Those of torch.func are its own: nobody can read the numbers in its wrappers.
            is_theirs = inside_backward() or transform_is_active()
            if not self._active or threading.get_ident() != self._thread or is_theirs:
                return original(outputs, *args, **kwargs)
            with collector_paused():
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
                with collector_paused():
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
            chosen = sparsely(starts, self._clearing)
        if chosen is None:
            links, _ = collect(starts)
            chosen = links, everywhere(links)
        links, watchpoints = chosen
        watched = WatchedBackward(
            found=found,
            links=links,
            keeps_graph=len(args) > _KEEP_GRAPH and bool(args[_KEEP_GRAPH]),
            is_partial=is_partial,
            watchpoints=watchpoints,
            figures=Figures(has_streams=_has_streams()),
        )
        if len(watched.links) > _MANY:
            release_without_recursion(watched.walked())
        return watched

    def _hook(self, watched: WatchedBackward) -> Callable[[], None]:
        """Hook the nodes to be watched; return what takes all hooks away."""
        figures, watchpoints = watched.figures, watched.watchpoints
        starts = dict.fromkeys(start.node for start in watched.found.starts)
        watched.seen = (*watchpoints.hooked, *starts)
        remove = add_post_hooks(
            (
                node,
                figures.leaving(number, looks_back=looks_back),
            )
            for number, (node, looks_back) in enumerate(watchpoints.hooked.items())
        )
        handles = [
            node.register_prehook(figures.entering(number))
            for number, node in enumerate(starts, start=len(watchpoints.hooked))
        ]
        if self._clearing is not None:
            self._clearing.add(len(handles))

        def unhook() -> None:
            remove()
            for handle in handles:
                handle.remove()

        return unhook


def _has_streams() -> bool:
    """Whether gradients may be on a device whose work is queued."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started
