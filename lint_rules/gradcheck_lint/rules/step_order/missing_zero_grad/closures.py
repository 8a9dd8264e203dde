"""Find closures that L-BFGS calls several times in a step, and that zero nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Step
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["unzeroed_closures"]


def unzeroed_closures(function: FunctionModel) -> Iterator[tuple[Step, cst.CSTNode]]:
    """Yield the steps of what is, or may be, L-BFGS whose closure adds to old gradients.

    Of a file that zeroes gradients elsewhere: of one that never does, the step itself is told.
    """
    scopes = function.module.scopes
    if not function.module.mentions(b"LBFGS(") or not function.module.mentions(b"zero_grad"):
        return
    for event in function.events():
        if not isinstance(event, Step) or type(event.node) is not cst.Call:
            continue
        given = keyword(event.node, "closure") or next(iter(positional(event.node)), None)
        closure = function.scope.nested.get(dotted_name(given) or "")
        made = [value.node for value in event.values if function.module.makes_optimizer(value.node)]
        is_other = any(last_word(dotted_name(node.func)) != "LBFGS" for node in made)  # type: ignore[union-attr]
        if closure is None or is_other or Part.BACKWARD not in closure.parts:
            continue
        words = set(closure.words)
        for call in closure.nodes_of(cst.Call):
            for called in scopes.by_name.get(last_word(dotted_name(call.func)), ()):
                words |= called.words
        if not any(word == "grad" or "zero" in word for word in words):
            yield event, closure.node
