"""Find what an optimizer of the file keeps for each parameter, and never carries over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import (
    assigned_pairs,
    children,
    dotted_name,
    literal_key,
    plain_string,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["LostState", "lost_states"]


class LostState(NamedTuple):
    """An entry of an optimizer's state, and what is wrong with it.

    ``how`` is "never-stored" for one that is looked up alone, "never-updated" for zeros that stay
    zeros, and "reset" for zeros that are put there again in each step.
    """

    key: str
    how: str
    node: cst.CSTNode


class _Use(NamedTuple):
    key: str
    node: cst.CSTNode
    around: list[cst.CSTNode]
    scope: FunctionScope


def lost_states(function: FunctionModel) -> Iterator[LostState]:
    """Yield the entries of the state that mean nothing, once for each class, at its ``step``."""
    owner = function.scope.owner
    if owner is None or owner.methods.get("step") is not function.scope:
        return
    bases = [function.module.scopes.resolve_import(base) or base for base in owner.bases]
    if not any(base.rpartition(".")[2].endswith("Optimizer") for base in bases):
        return
    uses = list(_uses(owner))
    if any(not use.key for use in uses):  # somebody else may store or read anything
        return
    values = [(use, _stored(use)) for use in uses]
    stored = {use.key for use, value in values if value is not None}
    read = {use.key for use, value in values if value is None}
    written = {
        use.key
        for use, value in values
        if (_may_write(use) if value is None else not _is_zeros(value))
    }
    for key in sorted(read - stored if stored - read else ()):
        asked = [use for use in uses if use.key == key]
        if not _is_named_elsewhere(asked, function):
            yield LostState(f'"{key}"', "never-stored", asked[0].node)
    for key in sorted(stored & read):
        made = [use for use, value in values if use.key == key and value is not None]
        if key not in written:
            yield LostState(f'"{key}"', "never-updated", made[0].node)
        elif len(made) == 1 and _comes_each_time(made[0], function.scope):
            yield LostState(f'"{key}"', "reset", made[0].node)


def _uses(owner: ClassScope) -> Iterator[_Use]:
    """Yield each mention of an entry of ``self.state[p]``, by any name; "" is one of any key."""
    for scope in owner.methods.values():
        states = {f"{scope.first_parameter}.state"}
        entries = {
            dotted_name(target) or ""
            for target, value in scope.assignments
            if type(value) is cst.Subscript and dotted_name(value.value) in states
        }
        parents = {id(child): each for each in scope.nodes for child in children(each)}
        for node in scope.nodes:
            outer = parents.get(id(node))
            is_part = type(outer) is cst.Attribute and outer.attr is node
            if is_part or not _is_entry(node, states, entries):
                continue
            around = [node]
            while (parent := parents.get(id(around[-1]))) is not None:
                around.append(parent)
            key = _key_by(node, around, scope)
            if key is not None:
                yield _Use(key, around[1], around[1:], scope)


def _is_entry(node: cst.CSTNode, states: set[str], entries: set[str]) -> bool:
    if type(node) is cst.Subscript:
        return dotted_name(node.value) in states and literal_key(node) is None
    return type(node) is cst.Name and node.value in entries


def _key_by(node: cst.CSTNode, around: list[cst.CSTNode], scope: FunctionScope) -> str | None:
    """Return the key that the state of a parameter is asked for, None where it is asked for none.

    What stores or reads any key at all is "".
    """
    outer, further = around[1], around[2] if len(around) > 2 else None  # noqa: PLR2004
    if type(outer) is cst.Subscript and outer.value is node:
        index = outer.slice[0].slice
        return _text(index.value if type(index) is cst.Index else None, scope)
    if type(outer) is cst.Attribute and type(further) is cst.Call and further.args:
        is_one = outer.attr.value in {"get", "pop", "setdefault"}
        around[1:2] = []  # the call stands for what it returns
        return _text(further.args[0].value, scope) if is_one else ""
    if type(outer) is cst.ComparisonTarget and type(further) is cst.Comparison:
        around[1:2] = []
        return _text(further.left, scope)
    if type(outer) is cst.Arg:
        return None if type(further) is cst.Call and dotted_name(further.func) == "len" else ""
    if type(outer) is cst.AssignTarget:
        return "" if type(node) is cst.Subscript else None
    return None if isinstance(outer, (cst.Assign, cst.UnaryOperation, cst.If)) else ""


def _text(node: cst.CSTNode | None, scope: FunctionScope) -> str:
    """Return the string that an expression is: itself, or by the default of a parameter."""
    if type(node) is cst.Name and type(scope.node) is cst.FunctionDef:
        given = [each for each in scope.node.params.params if each.name.value == node.value]
        node = given[0].default if given else node
    return (plain_string(node) or "") if type(node) is cst.SimpleString else ""


def _stored(use: _Use) -> cst.BaseExpression | None:
    """Return what an entry is given here as a whole, if it is."""
    if type(use.node) is cst.Call:
        is_default = use.node.func.attr.value == "setdefault"  # type: ignore[attr-defined]
        return use.node.args[-1].value if is_default and len(use.node.args) > 1 else None
    for outer in use.around[1:4]:
        if type(outer) is cst.Assign:
            pairs = assigned_pairs(outer)
            return next((value for target, value in pairs if target is use.node), None) or (
                outer.value if any(each.target is use.node for each in outer.targets) else None
            )
    return None


def _may_write(use: _Use) -> bool:
    """Return whether what an entry holds may be changed here, or by the name that it is given."""
    node, outer = use.around[0], use.around[1]
    if type(outer) is cst.Subscript and outer.value is node:
        # A part: written where it is a target, as `state["k"][rows] = ...`; a copy otherwise.
        return isinstance(use.around[2], (cst.AssignTarget, cst.AugAssign))
    if type(outer) is cst.Attribute:
        return outer.attr.value not in _READING
    if type(node) is cst.Comparison or isinstance(outer, (cst.BinaryOperation, cst.Comparison)):
        return False
    made = next((each for each in use.around if type(each) is cst.Assign), None)
    pairs = [] if made is None else assigned_pairs(made)
    names = [dotted_name(target) for target, value in pairs if value is node]
    return not names or any(name is None or _is_changed(name, use.scope) for name in names)


def _is_changed(name: str | None, scope: FunctionScope) -> bool:
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


_ASKS_FOR_BEGINNING: Final = re.compile("state|step|init|first|^len$")
_READING: Final = frozenset({"clone", "sqrt", "norm", "abs", "pow", "detach", "mean", "sum"})
_ZEROS: Final = frozenset({"zeros", "zeros_like", "new_zeros"})


def _is_zeros(value: cst.BaseExpression) -> bool:
    return type(value) is cst.Call and (dotted_name(value.func) or "").rpartition(".")[2] in _ZEROS


def _comes_each_time(use: _Use, step: FunctionScope) -> bool:
    """Return whether zeros are stored in each step, whatever is there, and averaged into."""
    if use.scope is not step and not _calls(step, use.scope):
        return False
    for outer in use.around:
        if type(outer) is cst.If:
            words = {each.value for each in walk(outer.test) if type(each) is cst.Name}
            strings = (each for each in walk(outer.test) if type(each) is cst.SimpleString)
            if use.key in map(plain_string, strings) or any(map(_ASKS_FOR_BEGINNING.search, words)):
                return False
    owner = use.scope.owner
    return owner is not None and any(
        use.key == each.key and _is_averaged(each) for each in _uses(owner)
    )


def _calls(step: FunctionScope, scope: FunctionScope) -> bool:
    """Return whether ``step`` itself calls a method, under no condition."""
    own = f"{step.first_parameter}.{scope.name.rpartition('.')[2]}"
    called = [node for node in step.nodes_of(cst.Call) if dotted_name(node.func) == own]
    guarded = {id(each) for node in step.nodes_of(cst.If) for each in walk(node)}
    return any(id(node) not in guarded for node in called)


def _is_averaged(use: _Use) -> bool:
    """Return whether an entry, or the name it is given, is scaled in place: ``buf.mul_(beta)``."""
    names = {
        dotted_name(target)
        for each in use.around
        for target, value in assigned_pairs(each)
        if value is use.node
    } - {None}
    return any(
        node.attr.value in {"mul_", "lerp_"}
        and (node.value is use.node or dotted_name(node.value) in names)
        for node in use.scope.nodes_of(cst.Attribute)
    )


def _is_named_elsewhere(asked: list[_Use], function: FunctionModel) -> bool:
    """Return whether the file has the key of an entry anywhere but where the entry is read."""
    text = f'"{asked[0].key}"', f"'{asked[0].key}'"
    named = sum(
        node.value in text
        for known in function.module.scopes.functions
        for node in known.nodes_of(cst.SimpleString)
    )
    return named > len(asked)
