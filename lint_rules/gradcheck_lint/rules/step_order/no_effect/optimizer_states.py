"""Find what an optimizer of the file keeps for each parameter, and never carries over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    dotted_name,
    last_word,
    literal_key,
    plain_string,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["LostState", "lost_states"]


class LostState(NamedTuple):
    """An entry of an optimizer's state: "never-stored", "never-updated", or "reset" each time."""

    key: str
    how: str
    node: cst.CSTNode


class _Use(NamedTuple):
    """What stands for an entry, what lies around it, and what the entry is given there."""

    key: str
    node: cst.CSTNode
    around: list[cst.CSTNode]
    scope: FunctionScope
    stored: cst.BaseExpression | None


def lost_states(function: FunctionModel) -> Iterator[LostState]:
    """Yield the entries of the state that mean nothing, once for each class, at its ``step``."""
    owner = function.scope.owner
    if owner is None or owner.methods.get("step") is not function.scope:
        return
    if not any(base.endswith("Optimizer") for base in owner.bases):
        return
    uses = [use for scope in owner.methods.values() for use in _uses(scope, function)]
    if any(not use.key for use in uses):  # somebody else may store or read anything
        return
    stored = {use.key for use in uses if use.stored is not None}
    read = {use.key for use in uses if use.stored is None}
    written = {use.key for use in uses if _may_write(use)}
    for key in sorted(read - stored if stored - read else ()):
        asked = [use for use in uses if use.key == key]
        if not _is_named_elsewhere(asked, function):
            yield LostState(f'"{key}"', "never-stored", asked[0].node)
    for key in sorted(stored & read):
        made = [use for use in uses if use.key == key and use.stored is not None]
        if key not in written:
            yield LostState(f'"{key}"', "never-updated", made[0].node)
        elif (
            len(made) == 1
            and _is_zeros(made[0].stored)
            and _comes_each_time(made[0], function)
            and any(use.key == key and _is_averaged(use) for use in uses)
        ):
            yield LostState(f'"{key}"', "reset", made[0].node)


def _uses(scope: FunctionScope, function: FunctionModel) -> Iterator[_Use]:
    """Yield each mention of an entry of ``self.state[p]``, by any name; "" is one of any key."""
    state = f"{scope.first_parameter}.state"
    if "state" not in scope.words:
        return
    entries = {
        dotted_name(target)
        for target, value in scope.assignments
        if type(value) is cst.Subscript and dotted_name(value.value) == state
    } - {None}
    parents = parents_of(function.module.function(scope))
    for node in scope.nodes_of(cst.Subscript, cst.Name):
        if type(node) is cst.Subscript:
            is_entry = dotted_name(node.value) == state and literal_key(node) is None
        else:
            is_entry = node.value in entries
        if not is_entry:
            continue
        around: list[cst.CSTNode] = [node]
        while (parent := parents.get(id(around[-1]))) is not None:
            around.append(parent)
        place, key = _asked(around, scope)
        if key is not None:
            stands, further = around[place], around[place + 1 :]
            yield _Use(key, stands, further, scope, _stored(stands, further))


def _asked(around: list[cst.CSTNode], scope: FunctionScope) -> tuple[int, str | None]:
    """Return what asks the state of a parameter for a key, and the key.

    None is for what asks for none, "" for what may store or read any.
    """
    node, outer, further = around[:3]
    if type(outer) is cst.Attribute and outer.attr is node:
        return 0, None
    if type(outer) is cst.Subscript and outer.value is node:
        index = outer.slice[0].slice
        return 1, _text(index.value if type(index) is cst.Index else None, scope)
    if type(outer) is cst.Attribute and type(further) is cst.Call and further.args:
        is_one = outer.attr.value in {"get", "pop", "setdefault"}
        return 2, _text(further.args[0].value, scope) if is_one else ""
    if type(outer) is cst.ComparisonTarget and type(further) is cst.Comparison:
        return 2, _text(further.left, scope)
    if type(outer) is cst.Arg and type(further) is cst.Call and dotted_name(further.func) == "len":
        return 0, None
    is_named = type(outer) is cst.AssignTarget and type(node) is cst.Name
    return 1, None if is_named or isinstance(
        outer, (cst.Assign, cst.UnaryOperation, cst.If)
    ) else ""


def _text(node: cst.CSTNode | None, scope: FunctionScope) -> str:
    """Return the string that an expression is: itself, or by the default of a parameter."""
    if type(node) is cst.Name and type(scope.node) is cst.FunctionDef:
        given = [each for each in scope.node.params.params if each.name.value == node.value]
        node = given[0].default if given else node
    return (plain_string(node) or "") if type(node) is cst.SimpleString else ""


def _stored(node: cst.CSTNode, around: list[cst.CSTNode]) -> cst.BaseExpression | None:
    """Return what an entry is given here as a whole, if it is."""
    if type(node) is cst.Call:
        is_default = last_word(dotted_name(node.func)) == "setdefault" and len(node.args) > 1
        return node.args[-1].value if is_default else None
    made = next((each for each in around[:4] if type(each) is cst.Assign), None)
    pairs = [] if made is None else assigned_pairs(made)
    return next((value for target, value in pairs if target is node), None)


def _may_write(use: _Use) -> bool:
    """Return whether an entry gets more than zeros here, itself or by the name it is given."""
    node, outer = use.node, use.around[0]
    if use.stored is not None:
        return not _is_zeros(use.stored)
    if type(outer) is cst.Subscript and outer.value is node:
        # A part: written where it is a target, as `state["k"][rows] = ...`; a copy otherwise.
        return isinstance(use.around[1], (cst.AssignTarget, cst.AugAssign))
    if type(outer) is cst.Attribute:
        return outer.attr.value not in _READING
    if type(node) is cst.Comparison or isinstance(outer, (cst.BinaryOperation, cst.Comparison)):
        return False
    names = _names_of(use)
    return not names or any(name is None or _is_changed(name, use.scope) for name in names)


def _names_of(use: _Use) -> list[str | None]:
    pairs = (pair for each in use.around for pair in assigned_pairs(each))
    return [dotted_name(target) for target, value in pairs if value is use.node]


def _is_changed(name: str, scope: FunctionScope) -> bool:
    """Return whether a function may write to what a name holds, or hands it on."""
    for node in scope.nodes_of(cst.Arg, cst.Attribute):
        is_method = type(node) is cst.Attribute and not node.attr.value.endswith("_")
        if dotted_name(node.value) == name and not is_method:
            return True
    for written in scope.nodes_of(cst.AugAssign, cst.AssignTarget):
        target: cst.BaseExpression = written.target
        while type(target) is cst.Subscript:
            target = target.value
        is_part = target is not written.target or type(written) is cst.AugAssign
        if is_part and dotted_name(target) == name:
            return True
    return False


_READING: Final = frozenset({"clone", "sqrt", "norm", "abs", "pow", "detach", "mean", "sum"})


def _is_zeros(value: cst.BaseExpression | None) -> bool:
    name = dotted_name(value.func) if type(value) is cst.Call else None
    return last_word(name) in {"zeros", "zeros_like", "new_zeros"}


def _comes_each_time(use: _Use, function: FunctionModel) -> bool:
    """Return whether zeros are stored in each step, whatever is there."""
    step = function.scope
    if use.scope is not step:
        own = f"{step.first_parameter}.{last_word(use.scope.name)}"
        guarded = {id(each) for node in step.nodes_of(cst.If) for each in walk(node)}
        calls = (node for node in step.nodes_of(cst.Call) if dotted_name(node.func) == own)
        if all(id(node) in guarded for node in calls):
            return False
    tests = [inner for each in use.around if type(each) is cst.If for inner in walk(each.test)]
    return not any(
        (type(each) is cst.Name and _ASKS_FOR_BEGINNING.search(each.value))
        or (type(each) is cst.SimpleString and plain_string(each) == use.key)
        for each in tests
    )


_ASKS_FOR_BEGINNING: Final = re.compile("state|step|init|first|^len$")


def _is_averaged(use: _Use) -> bool:
    """Return whether an entry, or the name it is given, is scaled in place: ``buf.mul_(beta)``."""
    names = _names_of(use)
    return any(
        node.attr.value in {"mul_", "lerp_"}
        and (node.value is use.node or (names and dotted_name(node.value) in names))
        for node in use.scope.nodes_of(cst.Attribute)
    )


def _is_named_elsewhere(asked: list[_Use], function: FunctionModel) -> bool:
    """Return whether the file has the key of an entry anywhere but where the entry is read."""
    named = sum(
        plain_string(node) == asked[0].key
        for known in function.module.scopes.functions
        for node in known.nodes_of(cst.SimpleString)
    )
    return named > len(asked)
