"""Tell which methods of the file a call may mean whose object is not known: those of callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.arguments import parameters_given
from gradcheck_lint.model.syntax import dotted_name, plain_string
from gradcheck_lint.model.values import NOTHING, sites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.model.flow import Call
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["as_given", "dispatched"]


def dispatched(call: Call, function: FunctionModel, calls: Sequence[Call]) -> list[FunctionScope]:
    """Return the methods of that name: ``each.on_epoch_end(...)``, ``getattr(each, hook)(...)``.

    ``calls`` lead to the function, and say what its parameters are. Only the methods of classes
    whose objects the file makes.
    """
    if call.function is not None or call.harmless or type(call.node) is not cst.Call:
        return []
    if any(each.function is None for each in calls):
        return []  # one such call on a way is enough: each may be many
    name = _name(call.node.func, function, calls)
    module = function.module
    key = ("methods made", name)
    if name and key not in module.memo:
        module.memo[key] = [
            scope
            for scope in module.scopes.by_name.get(name, ())
            if scope.owner is not None
            and scope.name.endswith(f".{name}")
            and module.mentions(f"{scope.owner.name.rpartition('.')[2]}(".encode())
        ]
    found: list[FunctionScope] = module.memo.get(key, [])
    return found if len(found) <= _MOST_METHODS else []


_MOST_METHODS: Final = 8


def as_given(
    call: Call, called: FunctionModel, function: FunctionModel
) -> dict[int, frozenset[int]]:
    """Return what the parameters of such a method stand for, where names are handed over."""
    assert type(call.node) is cst.Call
    arguments = [
        (
            place if each.keyword is None else each.keyword.value,
            function.bindings.get(dotted_name(each.value) or "", NOTHING),
        )
        for place, each in enumerate(call.node.args)
    ]
    given = parameters_given(called.scope, arguments, is_method=True)
    return {parameter: sites(values) for parameter, values in given.items()}


def _name(func: cst.BaseExpression, function: FunctionModel, calls: Sequence[Call]) -> str | None:
    if type(func) is cst.Attribute:
        return func.attr.value
    if type(func) is not cst.Call or dotted_name(func.func) != "getattr":
        return None
    named = next((argument.value for argument in func.args[1:]), func)
    if type(named) is cst.Name and calls and type(calls[-1].node) is cst.Call:
        named = argument_for(named.value, calls[-1].node, function.scope) or named
    return plain_string(named) if type(named) is cst.SimpleString else None
