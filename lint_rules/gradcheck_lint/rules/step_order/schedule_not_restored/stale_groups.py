"""Find wrappers of an optimizer that show the groups which its state was loaded over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, last_word

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["StaleGroups", "stale_groups"]


class StaleGroups(NamedTuple):
    """The load of an optimizer that replaces its groups, and where a wrapper has taken them."""

    loaded: cst.Call
    taken: cst.BaseExpression


def stale_groups(function: FunctionModel) -> StaleGroups | None:
    """Return what a wrapper's ``load_state_dict`` loads and does not take the new groups of.

    ``Optimizer.load_state_dict`` makes new groups (torch 2.13, ``__setstate__``), so that who has
    taken ``optimizer.param_groups`` before has dictionaries that no step reads.
    """
    scope = function.scope
    made = None if scope.owner is None else scope.owner.methods.get("__init__")
    if made is None or not scope.name.endswith(".load_state_dict") or "super" in scope.words:
        return None
    taken = [value for target, value in made.assignments if dotted_name(target) == _GROUPS]
    if len(taken) != 1 or last_word(dotted_name(taken[0])) != "param_groups":
        return None
    if any(dotted_name(target) == _GROUPS for target, _ in scope.assignments):
        return None
    if "__setstate__" in scope.words or "param_groups" in scope.owner.words:  # type: ignore[union-attr]
        return None
    held = {dotted_name(value): dotted_name(target) for target, value in made.assignments}
    wrapped = held.get((dotted_name(taken[0]) or "").rpartition(".")[0])
    wrapped = wrapped or (dotted_name(taken[0]) or "").rpartition(".")[0]
    loads = [
        node
        for node in scope.nodes_of(cst.Call)
        if dotted_name(node.func) == f"{wrapped}.load_state_dict"
    ]
    return StaleGroups(loads[0], taken[0]) if loads else None


_GROUPS = "self.param_groups"
