"""What a constructor puts into a plain container of layers after it has made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import contents
from gradcheck_lint.model.function_class import assignments
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    dotted_name,
    is_none,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["appended", "filled", "is_made_empty"]


def appended(
    node: cst.Assign | cst.AnnAssign,
    made: cst.BaseExpression,
    target: cst.Attribute,
    function: FunctionModel,
) -> list[cst.BaseExpression]:
    """Return what the method appends to a list that it makes empty, or that has a name."""
    if type(made) is cst.Name:
        return filled(made, function)
    if not is_made_empty(made):
        return []
    path = dotted_name(target)
    assigned: dict[str, list[cst.BaseExpression]] = {}
    put_in: list[cst.BaseExpression] = []
    for other in function.scope.nodes_of(cst.Assign, cst.Call, cst.AugAssign):
        if type(other) is cst.Assign and _is_item_of(other.targets[0].target, path):
            put_in.append(other.value)
        elif type(other) is cst.Assign and type(other.targets[0].target) is cst.Name:
            assigned.setdefault(other.targets[0].target.value, []).append(other.value)
        elif isinstance(other, (cst.Call, cst.AugAssign)) and (added := _added(other, path)):
            put_in.extend(added)
        elif isinstance(other, (cst.Assign, cst.AugAssign)) and other is not node:
            targets = [other.target] if isinstance(other, cst.AugAssign) else other.targets
            if (
                any(dotted_name(getattr(item, "target", item)) == path for item in targets)
                and not is_none(other.value)
                and not _are_exclusive(node, other, function)
            ):
                return []
    registered = {
        dotted_name(other.value)
        for other in function.scope.nodes_of(cst.Assign)
        if type(other.targets[0].target) is cst.Attribute
    }
    found: list[cst.BaseExpression] = []
    for value in put_in:
        name = dotted_name(value)
        if name is not None and name in registered:
            return []
        found.extend(assigned.get(name or "") or [value])
    return found


def is_made_empty(node: cst.BaseExpression) -> bool:
    """Tell whether this is a container without anything, or a list with room: ``[None] * n``."""
    if isinstance(node, (cst.List, cst.Dict)):
        return not node.elements
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
        room = node.left
        return type(room) is cst.List and all(is_none(each.value) for each in room.elements)
    if type(node) is not cst.Call:
        return False
    last = last_word(dotted_name(node.func))
    handed = [dotted_name(argument.value) for argument in node.args]
    if last == "defaultdict":
        return handed in (["list"], ["dict"])
    return last in _EMPTY and not handed


_EMPTY = frozenset({"OrderedDict", "dict", "list"})


def _are_exclusive(one: cst.CSTNode, other: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether two statements stand in different arms of an ``if``."""
    return any(
        any(node is one for node in walk(arms[0])) and any(node is other for node in walk(arms[1]))
        for branch in function.scope.nodes_of(cst.If)
        if branch.orelse is not None
        for arms in ((branch.body, branch.orelse), (branch.orelse, branch.body))
    )


def _added(node: cst.Call | cst.AugAssign, path: str | None) -> list[cst.BaseExpression]:
    """Return what is put into a list by ``append``, ``extend`` or ``+=``."""
    if isinstance(node, cst.AugAssign):
        return contents(node.value) if dotted_name(node.target) == path else []
    func, handed = node.func, positional(node)
    name = dotted_name(func)
    if (
        type(func) is cst.Attribute
        and func.attr.value == "append"
        and _is_item_of(func.value, path)
    ):
        return handed
    if name == f"{path}.append":
        return handed
    return contents(handed[0]) if name == f"{path}.extend" and len(handed) == 1 else []


def filled(known: cst.Name, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return what fills a list of the function that is used here and nowhere else."""
    name, nodes = known.value, function.scope.nodes
    if any(name in nested.words for nested in function.scope.nested.values()):
        return []
    uses = {id(known), *(id(node.attr) for node in nodes if type(node) is cst.Attribute)}
    made: list[cst.BaseExpression] = []
    found: list[cst.BaseExpression] = []
    for node in nodes:
        if type(node) in ASSIGNING:
            target, value = assigned_once(node)
            if type(target) is cst.Name and target.value == name and value is not None:
                made.append(value)
                uses.add(id(target))
        elif (type(node) is cst.Call or type(node) is cst.AugAssign) and (
            added := _added(node, name)
        ):
            found.extend(added)
            where = node.func if isinstance(node, cst.Call) else node.target
            uses.add(id(where.value if type(where) is cst.Attribute else where))
    if len(made) != 1 or not isinstance(made[0], (cst.List, cst.ListComp)):
        return []
    if any(
        type(node) is cst.Name and node.value == name and id(node) not in uses for node in nodes
    ):
        return []
    assigned = assignments(function.scope)
    return [
        source
        for value in (*contents(made[0]), *found)
        for source in assigned.get(dotted_name(value) or "") or [value]
    ]


def _is_item_of(target: cst.BaseExpression, path: str | None) -> bool:
    return type(target) is cst.Subscript and dotted_name(target.value) == path
