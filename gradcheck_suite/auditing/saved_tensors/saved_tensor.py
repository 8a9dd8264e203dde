"""What is kept in the graph in place of a saved tensor, and which line of the program saved it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gradcheck_suite._torch_compat import read_saved, saved_attribute_names
from gradcheck_suite.auditing.call_sites import is_user_code

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterable

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.run_state import Moment
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = [
    "CHECKSUMMED",
    "PackedTensor",
    "line_near",
    "line_of_node",
    "line_of_root",
    "packed_tensors_of",
]

CHECKSUMMED: Final = -2
"""Stands for an address that no tensor has, so that each use of this one takes a closer look."""


class PackedTensor:
    """What is kept in the graph in place of a saved tensor.

    Attributes:
        tensor: the saved tensor itself for a leaf, so that ``leaf.data = ...`` acts as it does
            without an audit, and an alias cut from the graph for any other: the tensor itself
            would close a reference cycle through its node that no garbage collector sees.
        version: its version when it was saved.
        address: for a leaf, where its memory lay; None where that can't change (an alias of ours)
            or isn't known; ``CHECKSUMMED`` where ``fingerprint`` is to be compared.
        fingerprint: set only where ``address`` is ``CHECKSUMMED``.
        checked_address: set with ``fingerprint``: where the memory lay.
        first: set with ``fingerprint``: who has taken it when the same tensor was saved before;
            None for this one.
        proven_at: set with ``fingerprint``: when the contents were last seen to be the same.
        original: finds the saved tensor while it lives, to name its producer as torch would.
        moment: when it was saved: what happened before, and between which backwards and steps.
        site: the line of the user's code that saved it.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "checked_address",
        "fingerprint",
        "first",
        "moment",
        "original",
        "proven_at",
        "site",
        "tensor",
        "version",
    )

    tensor: Tensor
    version: int
    address: int | None
    fingerprint: Fingerprint
    checked_address: int
    first: PackedTensor | None
    proven_at: Moment | None
    original: weakref.ref[Tensor] | None
    moment: Moment
    site: CallSite | None


def packed_tensors_of(node: Node, kind: type) -> list[PackedTensor]:
    """Return what ``node``, of this class, has saved and no backward has freed."""
    found: list[PackedTensor] = []

    def note(data: object) -> None:
        if isinstance(data, PackedTensor):
            found.append(data)

    for attribute in saved_attribute_names(kind):
        read_saved(node, attribute, note)
    return found


def line_of_node(node: Node) -> CallSite | None:
    """Return the line that made a node, if it saved anything there."""
    packed = packed_tensors_of(node, type(node))
    return packed[0].site if packed else None


def line_near(node: Any) -> CallSite | None:
    """Return the line that made one of the nodes that ``node`` leads to."""
    for edge, _ in node.next_functions:
        if edge is not None:
            site = line_of_node(edge)
            if site is not None:
                return site
    return None


_NODES_NEAR_A_ROOT = 32
"""Nodes that are looked at for the line of a root. Chosen: what a library does to a loss that it is
given (a mean, a division, a scaling) is fewer, and a look at one takes some microseconds."""


def line_of_root(roots: Iterable[Node], *, apart_from: CallSite) -> CallSite | None:
    """Return the user's line that made the roots of a graph, or what is nearest to them.

    Args:
        roots: where a backward starts.
        apart_from: the line that has called a library, which has made nodes there as well.
    """
    waiting = deque(roots)
    seen: set[Node] = set()
    while waiting and len(seen) < _NODES_NEAR_A_ROOT:
        node = waiting.popleft()
        if node in seen:
            continue
        seen.add(node)
        site = line_of_node(node)
        if site is not None and site[:2] != apart_from[:2] and is_user_code(site[0]):
            return site
        waiting.extend(edge for edge, _ in node.next_functions if edge is not None)
    return None
