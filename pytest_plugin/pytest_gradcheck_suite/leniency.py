"""What fails no test that has not asked to be audited, though an audit of every test finds it.

A mistake that torch itself refuses with an exception is no mistake of a test that has expected the
exception. Losses in a list of the test that it asserts something about hold their graphs for as
long as the test runs: in a training loop that is a leak, in a few steps of a test it harms nobody.
Both are told of at the end of the run.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from gradcheck_suite.findings import Finding

__all__ = ["fails_only_who_asks"]

_GRAPH_KEPT = "GCS201"


def fails_only_who_asks(finding: Finding, item: pytest.Item) -> bool:
    """Return whether a finding fails this test only if the test itself asks for an audit."""
    return finding.evidence.get("refused") is True or _is_kept_to_compare(finding, item)


def _is_kept_to_compare(finding: Finding, item: pytest.Item) -> bool:
    """Return whether graphs are kept in a local of the test's file that the test asserts on."""
    if finding.code != _GRAPH_KEPT or finding.evidence.get("owner_kind") != "local":
        return False
    path = str(finding.evidence.get("path"))
    if "." in path:  # in an object, whose class may be of a library
        return False
    place = finding.location
    if place is None or os.path.realpath(place.path) != os.path.realpath(item.path):
        return False
    keeper = (place.function or "").removesuffix("()").rpartition(".")[2]
    return _asserts_on(path.partition("[")[0], keeper, item)


def _asserts_on(name: str, keeper: str, item: pytest.Item) -> bool:
    """Return whether an assertion of a test reads a name, or what a function has returned."""
    try:
        source = textwrap.dedent(inspect.getsource(getattr(item, "function", None)))  # type: ignore[arg-type]
        test = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return False
    names = {name}
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and _calls(node.value, keeper):
            names.update(_names(*node.targets))
    return any(
        not names.isdisjoint(_names(told)) or _calls(told, keeper) for told in _asserted(test)
    )


def _asserted(test: ast.AST) -> Iterator[ast.AST]:
    """Yield what ``assert`` and the methods and functions named after it are about."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call) and _last(node.func).startswith("assert"):
            yield from node.args


def _names(*nodes: ast.AST) -> set[str]:
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _calls(node: ast.AST, function: str) -> bool:
    return any(
        isinstance(inner, ast.Call) and _last(inner.func) == function for inner in ast.walk(node)
    )


def _last(func: ast.expr) -> str:
    return getattr(func, "attr", getattr(func, "id", ""))
