"""Walk autograd's graph from outputs to everything that backward may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.autograd.graph import Node

__all__ = ["reachable"]


def reachable(*roots: Node | None) -> list[Node]:
    """List every node that backward from some nodes may run."""
    seen = {root for root in roots if root is not None}
    pending = list(seen)
    while pending:
        for child, _ in pending.pop().next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)
    return list(seen)
