"""Walk the graph that torch keeps, and number its nodes in the order in which backward runs."""

from __future__ import annotations

import gc
import heapq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import node_sequence_number
from gradcheck_suite.reporting.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Link",
    "Links",
    "Walked",
    "collect",
    "collector_paused",
    "in_order",
    "progress_if_large",
    "walk",
]

_LARGE = 10_000
"""Less is done before anybody could wonder; progress costs a thread."""

Link: TypeAlias = "tuple[Node | None, int]"
Links: TypeAlias = "dict[Node, tuple[Link, ...]]"


@dataclass(frozen=True, slots=True)
class Walked:
    """Every node that backward may reach, in the order in which backward runs them.

    ``links[i]`` are the ``next_functions`` of ``order[i]``: the node that made each forward input
    and which of its outputs it was, or None for an input that needs no gradient. It holds the
    nodes, and with them the graph, alive: drop it when it has been read.
    """

    order: tuple[Node, ...]
    links: tuple[tuple[Link, ...], ...]


def walk(starts: Iterable[Node]) -> Walked:
    """Walk from ``starts`` to the leaves, without recursion, each node once.

    The order is that of torch's engine on one thread: a node runs when all gradients that flow
    into it are there; of those that are ready the one that forward made last runs first, and a
    leaf runs at once.
    """
    starts = tuple(dict.fromkeys(starts))
    return in_order(collect(starts)[0], starts)


def collect(starts: Iterable[Node]) -> tuple[Links, set[Node]]:
    """Find every node from ``starts`` to the leaves, each after a node that leads to it.

    Returns:
        The nodes with what they lead to, and those that are a start or that several edges lead to.
    """
    # A node's Python object must stay alive for its identity to last; keys of a dict do.
    links: Links = {}
    pending = list(dict.fromkeys(starts))
    pending.reverse()
    shared, met = set(pending), set(pending)
    while pending:
        node = pending.pop()
        found = links[node] = node.next_functions
        for target, _ in found:
            if target is None:
                continue
            if target in met:
                shared.add(target)
            else:
                met.add(target)
                pending.append(target)
    return links, shared


def in_order(links: Links, starts: Iterable[Node]) -> Walked:
    """Number what was collected from ``starts``; see :func:`walk`."""
    waiting_for: dict[Node, int] = {}
    for found in links.values():
        for target, _ in found:
            if target is not None:
                waiting_for[target] = waiting_for.get(target, 0) + 1
    ready: list[tuple[float, int, Node]] = []
    met = 0
    for node in dict.fromkeys(starts):
        if node not in waiting_for:
            heapq.heappush(ready, (_priority(node), met, node))
            met += 1
    order: list[Node] = []
    while ready:
        node = heapq.heappop(ready)[-1]
        order.append(node)
        for target, _ in links[node]:
            if target is None:
                continue
            waiting_for[target] -= 1
            if not waiting_for[target]:
                heapq.heappush(ready, (_priority(target), met, target))
                met += 1
    return Walked(tuple(order), tuple(links[node] for node in order))


def _priority(node: Node) -> float:
    number = node_sequence_number(node)
    return float("-inf") if number is None else -number


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause cyclic garbage collection, which doubles the time that a large graph takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def progress_if_large(nodes: int, description: str) -> Iterator[None]:
    """Show on a terminal that work on many nodes goes on, once it has lasted two seconds."""
    if nodes < _LARGE:
        yield
        return
    with progress(description):
        yield
