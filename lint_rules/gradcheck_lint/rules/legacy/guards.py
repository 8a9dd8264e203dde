"""Tell which parts of a function run on some versions of torch, or for some shapes, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def guarded_by_question(nodes: Iterable[cst.CSTNode]) -> set[int]:
    """Return the nodes in branches that ask for torch's version, or what a value is."""
    return {id(inner) for node in nodes if _asks(node) for inner in walk(node)}


def guarded_by_handler(nodes: Iterable[cst.CSTNode]) -> set[int]:
    """Return the nodes in a ``try`` that catches what is raised there."""
    return {
        id(inner)
        for node in nodes
        if type(node) is cst.Try and node.handlers
        for inner in walk(node)
    }


def top_level(module: cst.Module) -> Iterator[cst.CSTNode]:
    """Yield the nodes of the statements outside of functions and classes."""
    for statement in module.body:
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            yield from walk(statement)


def _asks(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.If, cst.IfExp)) and any(
        type(inner) is cst.Name and inner.value in _QUESTIONS for inner in walk(node.test)
    )


_QUESTIONS: Final = frozenset(
    {"__version__", "version", "hasattr", "isinstance", "dim", "ndim", "numel", "shape", "size"}
)
