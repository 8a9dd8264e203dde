"""Which lines of the program saved what a node of the graph keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite._torch_compat import read_saved, saved_attribute_names
from gradcheck_suite.auditing.packed import Holder

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["holders_of", "line_near", "line_of_node"]


def holders_of(node: Node, kind: type) -> list[Holder]:
    """Return what ``node``, of this class, has saved and no backward has freed."""
    found: list[Holder] = []

    def note(data: object) -> None:
        if isinstance(data, Holder):
            found.append(data)

    for attribute in saved_attribute_names(kind):
        read_saved(node, attribute, note)
    return found


def line_of_node(node: Node) -> CallSite | None:
    """Return the line that made a node, if it saved anything there."""
    holders = holders_of(node, type(node))
    return holders[0].site if holders else None


def line_near(node: Any) -> CallSite | None:
    """Return the line that made one of the nodes that ``node`` leads to."""
    for edge, _ in node.next_functions:
        if edge is not None:
            site = line_of_node(edge)
            if site is not None:
                return site
    return None
