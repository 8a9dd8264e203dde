"""Tell whether each iteration of a loop steps an optimizer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.paths import values_of_parameters
from gradcheck_lint.model.syntax import first_word, walk
from gradcheck_lint.model.values import NOTHING, Kind, Origin, join_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_lint.model.flow import Call, Loop, Step
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value, Values

__all__ = ["is_made_anew"]


def is_made_anew(loop: Loop, step: Step, owner: FunctionModel, calls: Sequence[Call]) -> bool:
    """Tell whether each iteration may have an optimizer of its own.

    ``calls`` lead from the loop to the function that steps, ``owner``.
    """
    values = step.values
    if first_word(step.receiver) in loop.targets or _varies(loop, values, owner):
        return True
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        if any(_is_made_in(owner, value) for value in values):
            return True
        given = values_of_parameters(call, owner)
        values = join_all([given.get(_parameter(value, given, owner), NOTHING) for value in values])
        caller = calls[index - 1].function if index else None
        if caller is not None:
            owner = owner.module.function(caller)
            if any(_is_made_for(call, value) for value in values):
                return True
        elif _varies(loop, values, owner):
            return True
    return False


def _parameter(value: Value, given: Mapping[int, Values], owner: FunctionModel) -> int:
    """Return the parameter that a value is, or is an attribute of."""
    site = value.site
    while site not in given and (key := owner.module.taken_from(site)) is not None:
        site = key[1]
    return site


def _varies(loop: Loop, values: Values, owner: FunctionModel) -> bool:
    """Tell whether a loop makes, binds or picks one of these."""
    return any(
        (loop.identity in value.loops and not _is_of_what_lasts(loop, value, owner))
        or (
            isinstance(value.node, (cst.Attribute, cst.Subscript))
            and any(
                type(node) is cst.Name and node.value in loop.targets for node in walk(value.node)
            )
        )
        for value in values
    )


def _is_of_what_lasts(loop: Loop, value: Value, owner: FunctionModel) -> bool:
    """Tell whether a loop inside of this one goes through what was there before both."""
    if value.origin is not Origin.ELEMENT or type(value.node) is cst.Subscript:
        return False
    around = [
        held for bound in owner.bindings.values() for held in bound if held.site in value.mentions
    ]
    return bool(around) and all(loop.identity not in held.loops for held in around)


def _is_made_in(function: FunctionModel, value: Value) -> bool:
    if value.origin in {Origin.ARGUMENT, Origin.ELEMENT}:
        return False
    if value.kind is not Kind.OPTIMIZER and value.origin is not Origin.CALL:
        return False
    # What a loop goes through was made before it, perhaps elsewhere.
    passed = frozenset[str]().union(*(loop.targets for loop in function.loops()))
    return any(
        value in bound or any(value.site in held.mentions for held in bound)
        for name, bound in function.bindings.items()
        if "." not in name and name not in passed
    )


def _is_made_for(call: Call, value: Value) -> bool:
    """Tell whether a call makes what it hands over: ``step(model, SGD(model.parameters()))``."""
    return type(call.node) is cst.Call and any(
        given.value is value.node for given in call.node.args
    )
