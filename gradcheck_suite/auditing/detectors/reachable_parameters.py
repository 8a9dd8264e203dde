"""What the graph of one backward reaches, and through what: looked at for the first few only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor
from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import custom_function_class

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gradcheck_suite._torch_compat import Following
    from gradcheck_suite.auditing.events import BackwardStarted

__all__ = [
    "ALWAYS_WALKED",
    "MOST_NODES",
    "ReachableGraph",
    "in_order",
    "leaves_after",
    "nodes_of",
    "nodes_under",
    "reachable_graph",
]

MOST_NODES = 20_000
"""Nodes of one graph that are looked at. A bound on cost: a walk over so many took 0.03 to 0.05
seconds (one thread of a shared AMD EPYC, torch 2.13)."""

ALWAYS_WALKED = 4
"""The graphs of so many backwards are walked in any case. Chosen, above the steps without a
gradient that make a finding (``CERTAIN`` of ``missing_gradients``)."""

_MADE_OF = 2
"""Leaves of which a weight may be made, as weight normalization and low-rank products do. Chosen:
the output of a whole branch of layers is made of more."""

_FLAT = frozenset(
    ("Bernoulli", "Ceil", "Floor", "Normal", "Poisson", "Round", "Sgn", "Sign", "Trunc")
)
"""Ops whose derivative is zero wherever it exists, as torch names their nodes, in front of
``Backward`` and the number of the overload."""


@dataclass(slots=True)
class ReachableGraph:
    """What lies under the roots of a backward.

    Attributes:
        leaves: the leaves, by identity.
        sloped: those of them that are reached by a way without an op of zero slope.
        flat: the ops of zero slope that were met.
        functions: for each custom Function, the leaves that one of its inputs comes from directly.
        custom: the nodes of custom Functions.
        nodes: all that were met.
        compiled: whether a part of it was compiled, and shows as one node.
        complete: whether the whole graph was looked at.
    """

    leaves: dict[int, Tensor] = field(default_factory=dict)
    sloped: set[int] = field(default_factory=set)
    flat: set[str] = field(default_factory=set)
    functions: dict[int, type] = field(default_factory=dict)
    custom: list[Node] = field(default_factory=list)
    nodes: set[Node] = field(default_factory=set)
    compiled: bool = False
    complete: bool = True


def reachable_graph(event: BackwardStarted) -> ReachableGraph:
    """Return what lies under the roots of a backward, looked at once however many ask."""
    found: ReachableGraph | None = event.found_out.get(ReachableGraph)
    if found is None:
        found = event.found_out[ReachableGraph] = _walk(event.roots, event.following)
    return found


def nodes_of(event: BackwardStarted) -> Collection[Node]:
    """Return the nodes under the roots of a backward, met before if its graph was walked."""
    found: ReachableGraph | None = event.found_out.get(ReachableGraph)
    return nodes_under(event.roots) if found is None else found.nodes


def nodes_under(roots: Iterable[Tensor | Node], most: int = MOST_NODES) -> Collection[Node]:
    """Return the nodes under ``roots``, in the order of a walk that ends at the ``most``."""
    starts = (root.grad_fn if isinstance(root, Tensor) else root for root in roots)
    waiting = [node for node in starts if node is not None]
    seen: dict[Node, None] = {}
    while waiting and len(seen) < most:
        node = waiting.pop()
        if node in seen:
            continue
        seen[node] = None
        waiting.extend(edge for edge, _ in node.next_functions if edge is not None)
    return seen


def _walk(roots: Iterable[Tensor], known: Mapping[Node, Following]) -> ReachableGraph:
    found = ReachableGraph()
    behind_flat: list[Node] = []
    # A node may be met both ways; the better one counts, so those come first.
    starts = [node for root in roots if (node := root.grad_fn) is not None]
    _look(found, starts[::-1], known, behind_flat, sloped=True)
    _look(found, behind_flat, known, behind_flat, sloped=False)
    return found


def _look(
    found: ReachableGraph,
    waiting: list[Node],
    known: Mapping[Node, Following],
    behind_flat: list[Node],
    *,
    sloped: bool,
) -> None:
    # Few kinds of nodes make up a graph: whether one is flat, and of which custom Function.
    kinds: dict[type[Node], tuple[bool, type | None]] = {}
    seen = found.nodes
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if len(seen) >= MOST_NODES:
            found.complete = False
            return
        seen.add(node)
        following = known.get(node)
        if following is None:
            following = node.next_functions
        # Most nodes have no such attribute, and to find that out takes as long as all else here.
        leaf = None if following else getattr(node, "variable", None)
        if leaf is not None:
            found.leaves[id(leaf)] = leaf
            if sloped:
                found.sloped.add(id(leaf))
            continue
        kind = type(node)
        facts = kinds.get(kind)
        if facts is None:
            facts = kinds[kind] = (_name_of(kind) in _FLAT, custom_function_class(node))
        flat, custom = facts
        if flat:
            found.flat.add(_name_of(kind).lower())
        behind = behind_flat if flat else waiting
        for function, _ in following:
            if function is not None:
                behind.append(function)
        if custom is not None:
            _note_custom(found, node, custom, following)


def _name_of(kind: type[Node]) -> str:
    return kind.__name__.partition("Backward")[0]


def _note_custom(found: ReachableGraph, node: Node, custom: type, following: Following) -> None:
    found.custom.append(node)
    # The one name that all of AOTAutograd's graphs have.
    if type(node).__name__ == "CompiledFunctionBackward":
        # What it gives no gradient, the compiled code does not use: nobody wrote its backward.
        found.compiled = True
        return
    for function, _ in following:
        direct = getattr(function, "variable", None)
        if direct is not None:
            found.functions[id(direct)] = custom


def in_order(roots: list[Node]) -> list[Node] | None:
    """Return the nodes of these graphs, each after those that it depends on; None if too many."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > MOST_NODES:
            return None
        waiting.append((node, True))
        waiting.extend((child, False) for child, _ in node.next_functions if child is not None)
    return order


def leaves_after(order: list[Node], owned: set[int]) -> set[int]:
    """Return the leaves that meet, where they are used, what owned parameters have made.

    A weight may be normalized, or made of two, before it meets what comes out of trained layers.
    """
    trained: set[Node] = set()
    # Owned leaves, and what is made of them without data.
    weights: set[Node] = set()
    # What is nothing but another leaf under another name, and what is made of one or two alone.
    alias: dict[Node, int] = {}
    made_of: dict[Node, frozenset[int]] = {}
    found: set[int] = set()
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        # What does not require grad has no node: data, and constants.
        has_data = len(children) < len(node.next_functions)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not children:
            if id(leaf) in owned:
                trained.add(node)
                weights.add(node)
            else:
                alias[node] = id(leaf)
                made_of[node] = frozenset({id(leaf)})
            continue
        if any(child in trained for child in children):
            trained.add(node)
            if not has_data and all(child in weights for child in children):
                weights.add(node)
            if "Compiled" not in type(node).__name__:
                found.update(alias[child] for child in children if child in alias)
                if any(child in trained and child not in weights for child in children):
                    found.update(*(made_of[child] for child in children if child in made_of))
            continue
        if len(children) == 1 and children[0] in alias:
            alias[node] = alias[children[0]]
        if children and not has_data and all(child in made_of for child in children):
            leaves = frozenset[int]().union(*(made_of[child] for child in children))
            if len(leaves) <= _MADE_OF:
                made_of[node] = leaves
    return found
