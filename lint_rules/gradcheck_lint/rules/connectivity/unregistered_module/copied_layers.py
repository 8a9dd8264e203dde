"""Copies of a layer, and lists of layers that another function of the file makes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import called_function, contents, copied, kind_of
from gradcheck_lint.model.function_class import assignments, returns
from gradcheck_lint.model.syntax import bound_names, dotted_name
from gradcheck_lint.rules.connectivity.unregistered_module.filled_lists import filled

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

_KEPT_ASIDE = re.compile(
    r"teacher|ema|target|momentum|frozen|ref|old|prev|shadow|average", re.IGNORECASE
)
"""Names of copies that are put into a plain list in order that nothing trains them."""


def kinds_returned(node: cst.BaseExpression, function: FunctionModel) -> set[str | None]:
    """Return the kinds of what is in a plain container that a function of the file returns.

    A copy of a parameter of that function is of the kind of what the call gives it.
    """
    called = called_function(node, function)
    if called is None or type(node) is not cst.Call:
        return set()
    inside = function.module.function(called)
    returned = [each.value for each in returns(called)]
    if len(returned) != 1 or returned[0] is None:
        return set()
    made = returned[0]
    elements = filled(made, inside) if type(made) is cst.Name else contents(made)
    given = _given(node, called.node)
    kinds: set[str | None] = set()
    for element in elements:
        source = given.get(dotted_name(copied(element, inside)) or "")
        kinds.add(kind_of(element, inside) if source is None else kind_of(source, function))
    return kinds


def _given(call: cst.Call, called: cst.FunctionDef | cst.Module) -> dict[str, cst.BaseExpression]:
    """Return what a call of a plain function gives its parameters, by their names."""
    if isinstance(called, cst.Module) or any(argument.star for argument in call.args):
        return {}
    names = [each.name.value for each in (*called.params.posonly_params, *called.params.params)]
    positional = [argument for argument in call.args if argument.keyword is None]
    given = {name: argument.value for name, argument in zip(names, positional, strict=False)}
    for argument in call.args:
        if argument.keyword is not None:
            given[argument.keyword.value] = argument.value
    return given


def are_copies_of_argument(
    elements: list[cst.BaseExpression], attribute: str, function: FunctionModel
) -> bool:
    """Tell whether every element is a copy of the same argument of the constructor."""
    node = function.scope.node
    if isinstance(node, cst.Module) or _KEPT_ASIDE.search(attribute):
        return False
    params = (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
    names = {each.name.value for each in params} - assignments(function.scope).keys()
    for loop in function.scope.nodes_of(cst.For, cst.CompFor):
        names.difference_update(bound_names(loop.target))
    sources = {dotted_name(copied(each, function)) for each in elements}
    (source,) = sources if len(sources) == 1 else (None,)
    return source in names and not _KEPT_ASIDE.search(source)
