"""Find models and tensors that are given what they have already."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.syntax import bound_names, dotted_name, first_word, place_name, walk
from gradcheck_lint.rules._rule import Violation
from gradcheck_lint.rules.in_place.copy_onto_itself.kept_states import owner_of_state, without_copy
from gradcheck_lint.rules.in_place.copy_onto_itself.second_names import parameters_of
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["own_copies"]


def own_copies(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a model is loaded with its own state, or parameters are written to themselves."""
    is_test = function.scope.name.rpartition(".")[2].startswith("test")
    for node in function.scope.nodes_of(cst.Call, cst.For):
        given = _given_to_itself(node, function)
        if given is not None:
            yield Violation(
                node,
                f"`{given}` is given what it has already, which changes nothing: the other one "
                "that it is to follow is not read",
                Severity.NOTE if is_test or _STATE.search(given) else Severity.WARNING,
                "name the model or tensor whose values are wanted",
            )


_STATE: Final = re.compile(r"(?i)opt|sched|scaler")
"""What has a state that people load to try it, and follows nothing."""


def _given_to_itself(node: cst.Call | cst.For, function: FunctionModel) -> str | None:
    for one, other in _followed(node, function.module):
        if one == other:
            return one
    if isinstance(node, cst.For):
        return None
    return _copied(node) or _given_to_both(node, function)


def _followed(node: cst.CSTNode, module: ModuleModel) -> Iterator[tuple[str, str]]:
    """Yield what is loaded, or written to in a loop, and what it is given the values of."""
    if type(node) is cst.For and type(node.iter) is cst.Call and _writes(node):
        if dotted_name(node.iter.func) == "zip":
            owners = [parameters_of(argument.value) for argument in node.iter.args]
            known = [owner for owner in owners if owner is not None]
            yield from itertools.combinations(known, 2)
        return
    loaded = node.func if type(node) is cst.Call and node.args else None
    if type(loaded) is cst.Attribute and loaded.attr.value == "load_state_dict":
        owner = place_name(loaded.value)
        state = owner_of_state(without_copy(node.args[0].value), module)  # type: ignore[attr-defined]
        if owner is not None and state is not None:
            yield owner, state


def _copied(call: cst.Call) -> str | None:
    """Return ``x`` of ``x.copy_(x)`` and of ``x.data.copy_(x.detach())``."""
    if type(call.func) is not cst.Attribute or call.func.attr.value != "copy_" or not call.args:
        return None
    written = _place(call.func.value)
    return written if written is not None and written == _place(call.args[0].value) else None


def _place(node: cst.BaseExpression) -> str | None:
    """Return the tensor that this is, also as ``data``, detached or copied."""
    while True:
        called = node.func if type(node) is cst.Call and not node.args else node
        if type(called) is not cst.Attribute or called.attr.value not in _SAME_NUMBERS:
            return place_name(node)
        node = called.value


_SAME_NUMBERS: Final = frozenset({"data", "detach", "clone", "contiguous"})


def _writes(loop: cst.For) -> bool:
    """Return whether a loop writes to what it goes through."""
    names = frozenset(bound_names(loop.target))
    for node in walk(loop.body):
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            written = dotted_name(node.func.value)
            is_in_place = node.func.attr.value.endswith("_") and written is not None
            if is_in_place and first_word(written) in names:
                return True
        target = node.target if type(node) is cst.AssignTarget else None
        if type(target) is cst.Attribute and first_word(dotted_name(target) or "") in names:
            return True
    return False


def _given_to_both(call: cst.Call, function: FunctionModel) -> str | None:
    """Return a model that a call gives to both of two parameters, of which one follows the other.

    ``soft_update(target, target, tau)``
    """
    given = [place_name(argument.value) for argument in call.args]
    if not any(name is not None and given.count(name) > 1 for name in given):
        return None
    called = called_function(call, function)
    if called is None:
        return None
    for node in called.nodes:
        for pair in _followed(node, function.module):
            names = {
                None if value is None else place_name(value)
                for value in (argument_for(each, call, called) for each in pair)
            }
            if len(names) == 1 and pair[0] != pair[1] and None not in names:
                return names.pop()
    return None
