"""Find distances of a thing from itself, which are zero with a gradient of zero."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Call, Forward, GradMode
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import dotted_name, last_word, positional, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["self_comparisons"]

_DISTANCES: Final = re.compile(r"(?:^|_)kl(?:$|_)|divergence|mse_loss|l1_loss|huber_loss")


def self_comparisons(function: FunctionModel) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Yield each such distance that is differentiated by both sides, and the thing."""
    if not any(map(_DISTANCES.search, function.scope.words)):
        return
    if not function.module.mentions(b".backward(", b"autograd.grad("):
        return
    for event in function.events():
        node = event.node
        if not isinstance(event, Call) or type(node) is not cst.Call:
            continue
        is_distance = _DISTANCES.search(last_word(dotted_name(node.func)).lower()) is not None
        if not is_distance or event.mode is GradMode.DISABLED or event.expects_error:
            continue
        given = positional(node)[:2]
        if len(given) < 2:  # noqa: PLR2004 - two sides
            continue
        left, right = (_source(side, function) for side in given)
        if not left.deep_equals(right) or any(
            _is_unrecorded(each, function) for each in (left, right)
        ):
            continue
        if not _may_differ(left, given, function):
            yield node, left


def _source(node: cst.BaseExpression, function: FunctionModel) -> cst.BaseExpression:
    """Return what a name is given, where that is one expression."""
    sources = sources_of(function.scope).get(node.value) if type(node) is cst.Name else None
    return sources[0] if sources is not None and len(sources) == 1 else node


def _is_unrecorded(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether a call in an expression runs where nothing is recorded."""
    inside = {id(each) for each in walk(node)}
    return any(
        isinstance(event, (Call, Forward))
        and event.mode is GradMode.DISABLED
        and id(event.node) in inside
        for event in function.events()
    )


def _may_differ(
    node: cst.BaseExpression, given: list[cst.BaseExpression], function: FunctionModel
) -> bool:
    """Return whether two evaluations may differ, or are cut: those of a network with dropout.

    Where nothing is differentiated twice, two passes of one network are meant to differ.
    """
    module = function.module
    if module.matches(_DROPOUT) or any(map(_cuts, walk(node))):
        return True
    is_same_name = given[0].deep_equals(given[1])
    has_call = any(type(each) is cst.Call for each in walk(node))
    if is_same_name and type(given[0]) is cst.Name:
        return False
    return has_call and not (not is_same_name and module.mentions(b"create_graph"))


def _cuts(node: cst.CSTNode) -> bool:
    return type(node) is cst.Name and node.value in {"detach", "data"}


_DROPOUT: Final = re.compile(rb"[Dd]ropout")
