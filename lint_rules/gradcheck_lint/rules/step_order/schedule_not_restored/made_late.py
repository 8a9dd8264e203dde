"""Find schedulers that set their first rate in an optimizer which was restored before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import (
    assigned_pairs,
    dotted_name,
    keyword,
    last_word,
    positional,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["MadeLate", "made_late"]


class MadeLate(NamedTuple):
    """What restores an optimizer, what makes a scheduler of it, and what restores that one."""

    restored: cst.Call
    made: cst.Call
    continued: cst.Call


def made_late(function: FunctionModel) -> Iterator[MadeLate]:
    """Yield the schedulers that begin anew on a restored optimizer, and are then restored.

    The state of a scheduler says where it stands; to load it sets no rate. An optimizer that is
    restored again afterwards has the right one.
    """
    restored: dict[str, cst.Call] = {}
    made: dict[str, tuple[str, cst.Call]] = {}
    found: dict[str, list[MadeLate]] = {}
    for node in function.scope.nodes_of(cst.Assign, cst.Call):
        if type(node) is cst.Assign:
            for target, value in assigned_pairs(node):
                name, optimizer = dotted_name(target), _set_anew(value, function)
                if name is None or optimizer is None:
                    continue
                made.pop(name, None)
                if optimizer in restored and not _are_apart(restored[optimizer], value, function):
                    assert type(value) is cst.Call
                    made[name] = optimizer, value
        elif _loads(node):
            assert type(node) is cst.Call
            assert type(node.func) is cst.Attribute
            name = dotted_name(node.func.value) or ""
            if name in made:
                optimizer, call = made[name]
                late = MadeLate(restored[optimizer], call, node)
                found.setdefault(optimizer, []).append(late)
            else:
                found.pop(name, None)
                restored[name] = node
    for known in found.values():
        yield from known


def _loads(node: cst.CSTNode) -> bool:
    is_method = type(node) is cst.Call and type(node.func) is cst.Attribute
    return is_method and node.func.attr.value == "load_state_dict"  # type: ignore[attr-defined]


def _set_anew(value: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Return the optimizer whose rates are set by a call that makes a scheduler."""
    if type(value) is not cst.Call or keyword(value, "last_epoch") is not None:
        return None
    name = function.module.scopes.resolve_import(dotted_name(value.func) or "") or ""
    if _SETTING.fullmatch(last_word(name)) is None:
        return None
    given = positional(value)
    return dotted_name(given[0] if given else keyword(value, "optimizer"))


_SETTING: Final = re.compile(
    "(?:Lambda|OneCycle|Linear|Constant|Cyclic|Sequential)LR|CosineAnnealingWarmRestarts"
    r"|get_\w*schedule\w*"
)
"""What sets a rate of its own when it is made; other schedulers begin at the one that they find.

Read in torch 2.13, ``get_lr`` for ``last_epoch == 0``; those of transformers are a ``LambdaLR``."""


def _are_apart(one: cst.CSTNode, other: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether two nodes lie in two arms of an ``if``, of which only one is run."""
    return any(
        branch.orelse is not None and _holds(branch.body, one) and _holds(branch.orelse, other)
        for branch in function.scope.nodes_of(cst.If)
    )


def _holds(around: cst.CSTNode, node: cst.CSTNode) -> bool:
    return any(each is node for each in walk(around))
