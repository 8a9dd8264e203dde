"""Walk the graph that torch keeps, and number its nodes in the order in which backward runs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import node_sequence_number

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Walked", "walk"]

Link = tuple["Node | None", int]


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
    # A node's Python object must stay alive for its identity to last; keys of a dict do.
    links: dict[Node, tuple[Link, ...]] = {}
    waiting_for: dict[Node, int] = {}
    starts = tuple(dict.fromkeys(starts))
    pending = list(reversed(starts))
    while pending:
        node = pending.pop()
        if node in links:
            continue
        links[node] = tuple(node.next_functions)
        for target, _ in links[node]:
            if target is not None:
                waiting_for[target] = waiting_for.get(target, 0) + 1
                if target not in links:
                    pending.append(target)

    ready: list[tuple[float, int, Node]] = []
    met = 0
    for node in starts:
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
