"""Results written slice by slice into one tensor (GCS106)."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_metadata
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import Attention, BackwardStarted, IndexedAssigned
from gradcheck_suite.auditing.object_names.tensor_names import local_name
from gradcheck_suite.findings import Finding
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog

__all__ = ["SliceWriteInLoopDetector"]

_COPY_SLICES = "CopySlices"
_MARK = "gradcheck_suite.slice_writes"
_LEAST = 16
"""Assignments of one line in one graph that make a loop worth a word. Chosen: backward copies the
gradient of the whole tensor for each, which is no matter where there are few."""

_NAMELESS = 2 * _LEAST
"""After so many assignments to what is no variable, none is looked for. Chosen: as many again as
are counted before the first look, a bound on cost."""

_WORTH_A_WARNING = 1_000_000
"""Elements that backward copies: about a millisecond on one thread of a CPU, torch 2.13."""
_WALK_LIMIT = 20_000
"""Nodes of a backward's graph that are looked at for marked assignments. A bound on cost, see
``MOST_NODES`` of ``reachable_parameters``; beyond, nothing is told."""


class _Run:
    """Assignments by one line to slices of one tensor, each on top of the one before."""

    __slots__ = ("__weakref__", "constant", "count", "name", "shape")

    def __init__(self) -> None:
        self.count = 0
        self.constant = True
        self.name: str | None = None
        self.shape: tuple[int, ...] = ()


class SliceWriteInLoopDetector:
    """Reports slice-write-in-loop (GCS106).

    It counts indexed assignments that need gradients, and whether a backward goes through them.
    What is counted is only ever found in a graph by a mark on its nodes: nothing is kept alive.
    """

    def __init__(self, write_log: WriteLog) -> None:
        self._write_log = write_log
        self._runs: dict[CallSite, _Run] = {}
        self._found: dict[CallSite, Finding] = {}
        self._last: tuple[CallSite | None, _Run | None] = (None, None)

    def subscriptions(self) -> Subscriptions:
        """Count indexed assignments, and look for them in the graphs of backwards."""
        return {IndexedAssigned: self._note, BackwardStarted: self._before_backward}

    def _note(self, event: IndexedAssigned) -> Attention | None:
        had_none = not self._runs
        self._count(*event)
        self._write_log.on_repeat = self._count
        return Attention.AWAKE if had_none and self._runs else None

    def _count(self, tensor: Tensor, site: CallSite | None) -> None:
        # Runs for each element that a loop assigns: each line here counts.
        node = tensor.grad_fn
        if site is None or node is None or type(node).__name__ != _COPY_SLICES:
            return
        following = node.next_functions
        last, run = self._last
        if last is not site:  # the hash of a site goes through all constants of its code
            if site in self._found:
                return
            run = self._runs.get(site)
        before = following[0][0]
        if run is None or before is None or type(before).__name__ != _COPY_SLICES:
            run = self._runs[site] = _Run()
        self._last = site, run
        run.count += 1
        if run.constant:
            run.constant = all(function is None for function, _ in following[1:])
        if run.count >= _LEAST:
            if run.name is None and run.count < _NAMELESS:
                run.name = local_name(tensor)
            run.shape = tensor.shape
            node_metadata(node)[_MARK] = weakref.ref(run)

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if not self._runs:
            return Attention.ASLEEP
        long = {run: site for site, run in self._runs.items() if run.count >= _LEAST}
        self._runs.clear()
        self._last = (None, None)
        if long:
            self._look_for(long, event)
        return None

    def _look_for(self, long: dict[_Run, CallSite], event: BackwardStarted) -> None:
        waiting: list[Node] = [root.grad_fn for root in event.roots if root.grad_fn is not None]
        seen: set[Node] = set()
        while waiting and len(seen) < _WALK_LIMIT:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if type(node).__name__ == _COPY_SLICES:
                mark = node_metadata(node).get(_MARK)
                run = None if mark is None else mark()
                if run in long:
                    self._tell(long.pop(run), run)
                    if not long:
                        return
            waiting.extend(function for function, _ in node.next_functions if function is not None)

    def _tell(self, site: CallSite, run: _Run) -> None:
        shape = "x".join(map(str, run.shape))
        copied = run.count * math.prod(run.shape)
        self._found[site] = Finding.of(
            catalogue.SLICE_WRITE_IN_LOOP,
            f"{'a tensor' if run.name is None else f'`{run.name}`'} ({shape}) was assigned to "
            f"slice by slice, {run.count} times in one graph: backward copies the gradient of the "
            f"whole tensor for each, {copied:,} elements in all",
            detector="audit",
            severity=Severity.WARNING if copied >= _WORTH_A_WARNING else Severity.NOTE,
            location=location_of(site),
            hint="write them all at once, by an index or by torch.where"
            if run.constant
            else "collect the parts in a list and join them with torch.stack or torch.cat",
            evidence={"count": run.count, "shape": tuple(run.shape), "elements_copied": copied},
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return list(self._found.values())
