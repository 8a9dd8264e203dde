"""Find distances of a thing from itself, which are zero with a gradient of zero."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Call, GradMode
from gradcheck_lint.model.syntax import dotted_name, last_word, positional, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["self_comparisons"]

_DISTANCES: Final = re.compile(r"(?:^|_)kl(?:$|_)|divergence|mse_loss|l1_loss|huber_loss")
_DIFFERENTIATES: Final = frozenset({"backward", "grad", "create_graph"})


def self_comparisons(function: FunctionModel) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Yield each such distance that is differentiated by both sides, and the thing."""
    words = function.scope.words
    if not any(map(_DISTANCES.search, words)) or _DIFFERENTIATES.isdisjoint(words):
        return
    for event in function.events():
        node = event.node
        if not isinstance(event, Call) or not isinstance(node, cst.Call):
            continue
        is_distance = _DISTANCES.search(last_word(dotted_name(node.func)).lower()) is not None
        if not is_distance or event.mode is GradMode.DISABLED or event.expects_error:
            continue
        given = positional(node)[:2]
        if len(given) < 2 or not given[0].deep_equals(given[1]):  # noqa: PLR2004 - two sides
            continue
        if not _is_random(given[0], function):
            yield node, given[0]


def _is_random(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether two evaluations may differ: of a call, or of a network with dropout."""
    has_call = any(isinstance(each, cst.Call) for each in walk(node))
    return has_call or function.module.matches(_DROPOUT) or dotted_name(node) is None


_DROPOUT: Final = re.compile(rb"[Dd]ropout")
