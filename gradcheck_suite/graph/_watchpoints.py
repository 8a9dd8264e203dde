"""Choose the nodes whose hooks see every gradient of a backward: as few as will do.

A gradient can be seen where it leaves one node or where it enters the next. A hook after a node
sees both what it was given and what it returns, so that every second node of a chain will do; and a
node that only views or copies what it is given needs none. That holds as long as nobody changes
gradients between two nodes. Hooks of the user's may, and so may custom Functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import (
    expanded_from,
    hooks_registered,
    next_sequence_number,
    node_output_types,
    node_sequence_number,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gradcheck_suite.graph._walk import Link, Links

__all__ = ["Clearing", "Watchpoints", "everywhere", "sparsely"]

_PASS_ON = frozenset(
    {
        *("AliasBackward0", "CloneBackward0", "PermuteBackward0", "ReshapeAliasBackward0"),
        *("SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "TBackward0"),
        *("TransposeBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0"),
    }
)
"""What they return holds the numbers that they were given, each once; perhaps in other places."""
_EXPAND = "ExpandBackward0"
"""Sums over what was expanded; an expansion to the same size, as matmul makes, passes it on."""
_EXTENSION = "CppFunction"
"""The class of the nodes that extensions bring along, of which nothing is known."""


Way: TypeAlias = "tuple[Node, int, tuple[Node, ...], Node, int]"
"""The way of one gradient: the node that makes it and for which of its inputs, the nodes that only
pass it on, the node where it ends, and which of the outputs of that one it belongs to."""


@dataclass(slots=True)
class Watchpoints:
    """Where to stand, and which gradients are the same as which.

    Attributes:
        hooked: the nodes to hook, each with whether what it was given is wanted too.
        ways: the ways that several edges, or an edge seen only at its end, lie on.
        may_be_written: whether somebody could write into a gradient that has been seen.
    """

    hooked: dict[Node, bool] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    may_be_written: bool = True


class Clearing:
    """Tells whether anything can change a gradient between the nodes of a graph.

    True of graphs that were made since it began, if no hook was registered since: all hooks that
    Python code puts on tensors, nodes and modules take a number.
    """

    def __init__(self) -> None:
        self._hooks = hooks_registered()
        self._nodes = None if next_sequence_number is None else next_sequence_number()

    def add(self, count: int) -> None:
        """Leave out so many hooks of our own."""
        if self._hooks is not None:
            self._hooks += count

    def has_no_hooks(self) -> bool:
        """Whether no hook has been registered since the beginning."""
        return self._hooks is not None and self._hooks == hooks_registered()

    def covers(self, node: Node) -> bool:
        """Whether a node was made since the beginning."""
        number = node_sequence_number(node)
        return number is not None and self._nodes is not None and number >= self._nodes


def everywhere(links: Links) -> Watchpoints:
    """Look at what every node returns."""
    return Watchpoints({node: False for node, found in links.items() if found})


def sparsely(  # noqa: PLR0912 - one loop over all nodes, which runs before each backward
    links: Links, shared: Collection[Node], clearing: Clearing
) -> Watchpoints | None:
    """Look at every second node; None if somebody may change gradients on the way.

    Args:
        links: the graph.
        shared: the nodes that get their gradient from several edges, or from outside.
        clearing: what is known of hooks.
    """
    if not clearing.has_no_hooks():
        return None
    kinds = _Kinds()
    is_custom = False
    forced: dict[Node, bool] = {}
    ways: list[Way] = []
    open_ways: list[tuple[Node, Node]] = []
    passed: set[Node] = set()
    for node, found in links.items():
        if not found or node in passed:
            continue
        # What is older than a node lies behind it, so that a look at the last ones will do.
        is_last = True
        must = kinds[type(node)] == _CUSTOM
        is_custom |= must
        index = -1
        for target, slot in found:
            index += 1
            if target is None:
                continue
            kind = kinds[type(target)]
            is_shared = target in shared
            on_the_way: tuple[Node, ...] = ()
            if kind >= _PASSES_ON and not is_shared:
                while kind >= _PASSES_ON and not is_shared:
                    passed_to = _passed_to(target, links[target], kind)
                    if passed_to is None:
                        break
                    on_the_way += (target,)
                    target, slot = passed_to  # noqa: PLW2901 - the next on the way
                    kind, is_shared = kinds[type(target)], target in shared
                passed.update(on_the_way)
            if links[target]:
                is_last = False
                if not is_shared and kind != _CUSTOM:
                    ways.append((node, index, on_the_way, target, slot))
                    open_ways.append((node, target))
                    continue
            elif on_the_way and not clearing.covers(on_the_way[-1]):
                return None
            must = True
            if on_the_way:
                ways.append((node, index, on_the_way, target, slot))
        if must:
            forced[node] = False
        if is_last and not clearing.covers(node):
            return None
    for node, target in open_ways:
        if node not in forced:
            forced[target] = True
    return Watchpoints(forced, ways, may_be_written=is_custom)


_CUSTOM, _ORDINARY, _PASSES_ON, _MAY_PASS_ON = range(4)


class _Kinds(dict[type, int]):
    """What is known of the classes of nodes."""

    def __missing__(self, node: type) -> int:
        name = node.__name__
        kind = _ORDINARY
        if node.__module__ != "builtins" or name == _EXTENSION:
            kind = _CUSTOM
        elif name in _PASS_ON:
            kind = _PASSES_ON
        elif name == _EXPAND:
            kind = _MAY_PASS_ON
        self[node] = kind
        return kind


def _passed_to(node: Node, found: Sequence[Link], kind: int) -> tuple[Node, int] | None:
    """Return where a node passes on what it is given; None if it does something to it."""
    if len(found) != 1:
        return None
    target, slot = found[0]
    if target is None:
        return None
    if kind == _MAY_PASS_ON:
        after = node_output_types(node)
        if len(after) != 1 or after[0] is None or expanded_from(node) != after[0][0]:
            return None
    return target, slot
