"""Keep a deep graph from overflowing the stack when it is released.

torch frees a chain of nodes in a loop, but not once the nodes have been looked at from Python:
each then has a Python object whose release releases the next one, by recursion in C. In torch
2.13 a chain of about 40,000 such nodes ends the process at the usual 8 MiB of stack.
"""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import node_metadata

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.graph.trace.walk import Walked

__all__ = ["release_without_recursion"]

_SEGMENT = 1_000
_DEEP = 5_000
_KEY = "gradcheck_suite.deep"
_STOP = object()


class _Handover:
    """Hand nodes over to another thread when the node that holds this object is released.

    torch releases a node's metadata before its inputs, so the inputs handed over outlive it.
    """

    __slots__ = ("inputs", "queue")

    def __init__(self, queue: SimpleQueue[object], inputs: list[Node]) -> None:
        self.queue = queue
        self.inputs = inputs

    def __del__(self) -> None:
        self.queue.put(self.inputs)


def release_without_recursion(walked: Walked) -> None:
    """Cut the release of a deep graph into segments; leave other graphs as they are.

    A node at the end of a segment gets an entry in its ``metadata`` that holds its inputs, which
    it keeps alive anyway. When the node goes, a thread of ours releases them: that starts the next
    segment on a stack of its own. No tensor lives longer, save for the moment that this takes.
    """
    if len(walked.order) < _DEEP:
        return
    heights: dict[Node, int] = {}
    for node, links in zip(reversed(walked.order), reversed(walked.links), strict=True):
        heights[node] = 1 + max((heights[target] for target, _ in links if target), default=0)
    if max(heights.values()) < _DEEP:
        return
    crossing: dict[Node, list[Node]] = defaultdict(list)
    for node, links in zip(walked.order, walked.links, strict=True):
        segment = heights[node] // _SEGMENT
        for target, _ in links:
            if target is not None and 0 < heights[target] // _SEGMENT < segment:
                crossing[node].append(target)
    for node, inputs in crossing.items():
        node_metadata(node)[_KEY] = _Handover(_releasing_queue(), inputs)


@cache
def _releasing_queue() -> SimpleQueue[object]:
    queue: SimpleQueue[object] = SimpleQueue()
    thread = threading.Thread(
        target=_release_until_stopped, args=(queue,), name="gradcheck-suite-release", daemon=True
    )
    thread.start()
    atexit.register(_stop, queue, thread)
    return queue


def _release_until_stopped(queue: SimpleQueue[object]) -> None:
    while queue.get() is not _STOP:
        pass


def _stop(queue: SimpleQueue[object], thread: threading.Thread) -> None:
    # A thread that the interpreter ends in the middle of a release takes the process down. What is
    # handed over later stays in the queue until the process ends.
    queue.put(_STOP)
    thread.join()
