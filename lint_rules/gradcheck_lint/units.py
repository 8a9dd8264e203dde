"""Parse what is read together with a file, and say where its nodes are."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.edits import node_of
from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.scopes import LinkedTree
from gradcheck_lint.model.syntax import walk
from gradcheck_lint.parsing import check_source, parse
from gradcheck_lint.positions import Positions
from gradcheck_lint.project.linking import NO_UNIT, Unit

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.rules._rule import Violation
    from gradcheck_suite.findings import Location


class Linked:
    """What of its project is read together with a file; nothing where there is no root."""

    def __init__(self, unit: Unit = NO_UNIT) -> None:
        self.unit = unit
        self.trees = tuple(
            LinkedTree(known.path, tree, known.bindings)
            for known in unit.slices
            if (tree := _parsed(known.text)) is not None
        )

    def anchored(self, violation: Violation, function: FunctionModel) -> Violation | None:
        """Return a violation of a function at a node of its own file: the call that leads there.

        None if no call is seen to: what is wrong in another file is told where that is linted.
        """
        if not self._is_elsewhere(violation.node):
            edited = [node_of(edit) for edit in violation.fix.edits] if violation.fix else []
            return (
                replace(violation, fix=None) if any(map(self._is_elsewhere, edited)) else violation
            )
        linked = (scope for scope in function.module.scopes.functions if scope.linked)
        place = next((scope for scope in linked if _is_in(violation.node, scope)), None)
        for event in function.events():
            if place is not None and isinstance(event, Call) and _leads_to(place, event, function):
                related = ((violation.node, "here"), *violation.related)
                return replace(violation, node=event.node, related=related, fix=None)
        return None

    def _is_elsewhere(self, node: cst.CSTNode | None) -> bool:
        return bool(self.trees) and id(node) in self._nodes

    @cached_property
    def _nodes(self) -> frozenset[int]:
        return frozenset(id(node) for known in self.trees for node in walk(known.tree))

    def locations(self, nodes: Collection[cst.CSTNode]) -> dict[int, Location]:
        """Return where nodes of the other files are, by their ``id``."""
        found: dict[int, Location] = {}
        slices = {known.path: known for known in self.unit.slices}
        for known in self.trees if nodes else ():
            positions, lines = Positions(known.tree, nodes), slices[known.path].lines
            for node in nodes:
                if positions.has(node):
                    found[id(node)] = positions.moved(node, known.path, lines)
        return found


@lru_cache(maxsize=64)
def _parsed(text: str) -> cst.Module | None:
    """Return the tree of a slice: files of one folder often use the same of another."""
    source = text.encode()
    if check_source(source, "", parsed_next=True) is not None:
        return None
    tree = parse(source, "")
    return tree if isinstance(tree, cst.Module) else None


def _is_in(node: cst.CSTNode, scope: FunctionScope) -> bool:
    return any(inner is node for inner in scope.nodes)


def _leads_to(place: FunctionScope, call: Call, function: FunctionModel) -> bool:
    """Return whether a call runs a function, by itself or through others."""
    waiting, seen = [call.function], set[int]()
    while waiting:
        scope = waiting.pop()
        if scope is place:
            return True
        if scope is not None and id(scope) not in seen:
            seen.add(id(scope))
            events = function.module.function(scope).events()
            waiting += [event.function for event in events if isinstance(event, Call)]
    return False
