"""Quote source in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst

    from gradcheck_lint.model.module import ModuleModel

_LONGEST = 40


def source_of(module: ModuleModel, node: cst.CSTNode) -> str:
    """Return the source of a node on one line, shortened where it is long."""
    text = module.code(node)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
