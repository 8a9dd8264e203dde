"""Quote source in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst

_LONGEST = 40


def source_of(tree: cst.Module, node: cst.CSTNode) -> str:
    """Return the source of a node on one line, shortened where it is long."""
    text = " ".join(tree.code_for_node(node).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
