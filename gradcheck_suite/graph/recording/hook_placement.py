"""Choose the nodes whose hooks see every gradient of a backward: as few as will do.

A gradient can be seen where it leaves one node or where it enters the next. A hook after a node
sees both what it was given and what it returns, so that every second node of a chain will do; and a
node that only views, copies or pads with zeros what it is given needs none. That holds as long as
nobody changes gradients between two nodes. Hooks of the user's may, and so may custom Functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import (
    has_gradient_hooks,
    hooks_registered,
    keeps_its_size,
    next_sequence_number,
    node_output_types,
    node_sequence_number,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gradcheck_suite.graph.model import EdgeGradient
    from gradcheck_suite.graph.trace.walk import Links

__all__ = [
    "HookCount",
    "HookPlacement",
    "SeenGradients",
    "WalkedPart",
    "add_implied_gradients",
    "hook_every_node",
    "place_sparse_hooks",
]

SeenGradients: TypeAlias = "dict[tuple[Node, int], EdgeGradient]"

_PASS_ON = frozenset(
    {
        *("AliasBackward0", "CloneBackward0", "PermuteBackward0", "ReshapeAliasBackward0"),
        *("SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "TBackward0"),
        *("TransposeBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0"),
    }
)
"""What they return holds the numbers that they were given, each once; perhaps in other places."""
_PAD = frozenset({"SelectBackward0", "SliceBackward0"})
"""What they return holds the numbers that they were given, each once, and zeros."""
_ACCUMULATE = "AccumulateGrad"
_EXPAND = "ExpandBackward0"
"""Sums over what was expanded; an expansion to the same size, as matmul makes, passes it on."""
_EXTENSION = "CppFunction"
"""The class of the nodes that extensions bring along, of which nothing is known."""


@dataclass(slots=True)
class HookPlacement:
    """Which nodes of a graph to hook.

    Attributes:
        hooked: the nodes to hook, each with whether what it was given is wanted too.
        is_sparse: whether gradients that are not seen follow from those that are.
        nodes: how many nodes the graph has, or has but leaves.
    """

    hooked: dict[Node, bool] = field(default_factory=dict)
    is_sparse: bool = False
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class WalkedPart:
    """Where a part of the graph begins that was walked before, by sequence numbers.

    Attributes:
        roots: the nodes that lead into that part.
        last: the greatest number that a node in it can have.
    """

    roots: frozenset[int]
    last: int

    def contains(self, node: Node) -> bool:
        """Return whether a node lies in that part, or is older than it."""
        number = node_sequence_number(node)
        return number is None or number <= self.last

    def begins_at(self, node: Node) -> bool:
        """Return whether a node is where that part begins."""
        return node_sequence_number(node) in self.roots


class HookCount:
    """Counts hooks, to know whether anything can change a gradient between the nodes of a graph.

    Nothing can in graphs that were made since it began, if no hook was registered since: all hooks
    that Python code puts on tensors, nodes and modules take a number.
    """

    def __init__(self) -> None:
        self._hooks = hooks_registered()
        self._nodes = None if next_sequence_number is None else next_sequence_number()

    def add(self, count: int) -> None:
        """Leave out so many hooks of our own."""
        if self._hooks is not None:
            self._hooks += count

    def has_no_hooks(self) -> bool:
        """Return whether no hook has been registered since the beginning."""
        return self._hooks is not None and self._hooks == hooks_registered()

    def covers(self, nodes: Iterable[Node]) -> bool:
        """Return whether all of these nodes were made since the beginning."""
        first = self._nodes
        numbers = map(node_sequence_number, nodes)
        return first is not None and all(
            number is not None and number >= first for number in numbers
        )


def hook_every_node(links: Links) -> HookPlacement:
    """Hook every node, for what it returns."""
    return HookPlacement({node: False for node, found in links.items() if found}, nodes=len(links))


def place_sparse_hooks(  # noqa: PLR0912, PLR0915 - one loop over all nodes, which runs before each backward
    starts: Iterable[Node], hook_count: HookCount, walked_part: WalkedPart | None = None
) -> HookPlacement | None:
    """Walk the graph as ``collect`` does, and choose about every fourth of its nodes.

    Each gradient is made by one node, may be passed on by others, and ends in one that uses it; it
    is seen where the first or the last is hooked. Leaves are not hooked, and what several edges
    lead to is given their sum, so that there it has to be the first.

    What the nodes lead to is not kept: it can be asked for again, and thousands of tuples that
    outlived this would start Python's collector.

    Args:
        starts: where backward starts.
        hook_count: began before the graph was made.
        walked_part: a part that was walked before, and is not entered again.

    Returns:
        None if somebody may change gradients on the way, or if the graph leads into the part that
        was walked before by another way than its roots.
    """
    if not hook_count.has_no_hooks():
        return None
    kinds = _KINDS
    hooked: dict[Node, bool] = {}
    # Who made the gradient that enters a node; None where several did, or the caller. A node's
    # Python object must stay alive for its identity to last; keys of a dict do.
    makers: dict[Node, Node | None] = dict.fromkeys(starts)
    # Nodes that were taken for some that pass on what a single other node made.
    mistaken: list[Node] = []
    # Of those that pass on what they are given, the ones that were walked by.
    passed: set[Node] = set()
    last: list[Node] = []
    pending = [*makers]
    if walked_part is not None:
        outside = [node for node in pending if walked_part.contains(node)]
        if not all(map(walked_part.begins_at, outside)):
            return None
        pending = [node for node in pending if node not in outside]
    pending.reverse()
    while pending:
        node = pending.pop()
        found = node.next_functions
        maker = makers[node]
        kind = kinds[type(node)]
        if kind >= _PASSES_ON and (kind != _MAY_PASS_ON or keeps_its_size(node)):
            passed.add(node)
            if maker is None:
                maker = node
        else:
            if kind == _CUSTOM:
                hooked[node] = False
            if maker is not None and (kind == _CUSTOM or not found):
                hooked[maker] = False
            maker = node
        # What is older than a node lies behind it, so that a look at the last ones will do.
        is_last = True
        for target, _ in found:
            if target is None:
                continue
            if kinds[type(target)] == _LEAF:
                hooked[maker] = False
                if maker is not node and _has_hooks(target):
                    # It takes a view for its own, into which its hooks may write.
                    hooked[node] = False
                continue
            is_last = False
            if walked_part is not None and walked_part.contains(target):
                if not walked_part.begins_at(target):
                    return None
                hooked[maker] = False
            elif target not in makers:
                makers[target] = maker
                pending.append(target)
            else:
                hooked[maker] = False
                first, makers[target] = makers[target], None
                if first is not None:
                    hooked[first] = False
                    if target in passed:
                        mistaken.append(target)
        if is_last:
            last.append(node)
    if not hook_count.covers(last):
        return None
    for node in mistaken:
        user = _user_after(node, makers)
        if user is None:
            hooked[node] = False
        else:
            makers[user] = node
    # A gradient that is seen after the node that made it or after the one that uses it.
    for user, first in makers.items():
        if first is not None and first not in hooked and user not in passed:
            hooked[user] = True
    return HookPlacement(hooked, is_sparse=True, nodes=len(makers))


def _user_after(node: Node, makers: Mapping[Node, Node | None]) -> Node | None:
    """Return the node that uses what another passes on, if it is given nothing else."""
    while _passes_on(node):
        target = node.next_functions[0][0]
        if target is None or makers.get(target) is None:
            return None
        node = target
    return node if node.next_functions and _KINDS[type(node)] == _ORDINARY else None


def add_implied_gradients(
    links: Links, starts: Collection[Node], seen: SeenGradients, entered: SeenGradients
) -> None:
    """Add the gradients that were not seen and that those seen tell.

    Args:
        links: the graph, as ``collect`` returns it.
        starts: where backward started.
        seen: what left a node, by the node and the index of the input; it is added to.
        entered: what was given to a node, by the node and the index of the output.
    """
    leads: dict[Node, tuple[Node, int, int]] = {}
    shared = set(starts)
    for node, found in links.items():
        for index, (target, slot) in enumerate(found):
            if target is None:
                continue
            if target in leads:
                shared.add(target)
            leads[target] = node, index, slot
    single = {node: lead for node, lead in leads.items() if node not in shared}
    for node in reversed(links):
        if node not in single:
            continue
        before, index, slot = single[node]
        gradient = entered.get((node, slot))
        if gradient is None and (node, 0) in seen and _passes_on(node):
            gradient = _resized(seen[node, 0], _elements_of(node, slot))
        if gradient is not None:
            seen.setdefault((before, index), gradient)
    for node, found in links.items():
        if (node, 0) in seen or node not in single or not _passes_on(node):
            continue
        before, index, _ = single[node]
        target, slot = found[0]
        if (before, index) in seen and target is not None:
            seen[node, 0] = _resized(seen[before, index], _elements_of(target, slot))


_LEAF, _CUSTOM, _ORDINARY, _PASSES_ON, _PADS, _MAY_PASS_ON = range(6)


class _Kinds(dict[type, int]):
    """What is known of the classes of nodes; those that Python code makes are not remembered."""

    def __missing__(self, node: type) -> int:
        name = node.__name__
        if node.__module__ != "builtins" or name == _EXTENSION:
            return _CUSTOM
        kind = _ORDINARY
        if name == _ACCUMULATE:
            kind = _LEAF
        elif name in _PASS_ON:
            kind = _PASSES_ON
        elif name in _PAD:
            kind = _PADS
        elif name == _EXPAND:
            kind = _MAY_PASS_ON
        self[node] = kind
        return kind


_KINDS = _Kinds()


def _has_hooks(leaf: Node) -> bool:
    variable = getattr(leaf, "variable", None)
    return variable is not None and has_gradient_hooks(variable)


def _passes_on(node: Node) -> bool:
    kind = _KINDS[type(node)]
    return kind >= _PASSES_ON and (kind != _MAY_PASS_ON or keeps_its_size(node))


def _elements_of(node: Node, slot: int) -> int | None:
    types = node_output_types(node)
    kind = types[slot] if slot < len(types) else None
    return None if kind is None else math.prod(kind[0])


def _resized(gradient: EdgeGradient, elements: int | None) -> EdgeGradient:
    """Return the figures of a gradient that was padded with zeros to so many elements, or cut."""
    is_missing = gradient.norm is None and gradient.non_finite is None
    if elements is None or is_missing or elements == gradient.elements:
        return gradient
    zeros = gradient.zeros + elements - gradient.elements
    return replace(gradient, elements=elements, zeros=zeros)
