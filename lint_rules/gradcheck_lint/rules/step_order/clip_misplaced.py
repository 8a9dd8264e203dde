"""GCS304: gradients clipped where it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Clip
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    dotted_name,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class ClipMisplaced(Rule):
    """Clipping comes after the step, before backward, too often, or of an exhausted iterator."""

    entry = catalogue.CLIP_MISPLACED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)
        if not _names_clipping(function):
            return
        for event in function.events():
            if isinstance(event, Clip) and not event.expects_error:
                yield from _exhausted(function, event)


_MESSAGES = {
    "after-step": (
        "the gradients are clipped after the step that uses them, so the clipping has no effect"
    ),
    "before-backward": (
        "the gradients are clipped before backward() computes them, so what the step uses is not "
        "clipped"
    ),
    "micro-batch": (
        "the gradients are clipped on every micro-batch while more are added before the step: "
        "the sum is not clipped, and early micro-batches count less"
    ),
}
_RELATED = {
    "after-step": "the step that has used them",
    "before-backward": "computed here",
    "micro-batch": "added to here again",
}


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind] + problem.reservation,
        problem.severity,
        "clip once, between the last backward() and step()",
        tuple((event.node, _RELATED[problem.kind]) for event in problem.others[:1]),
    )


def _names_clipping(function: FunctionModel) -> bool:
    return any("clip_grad" in word for word in function.scope.words)


def _exhausted(function: FunctionModel, clip: Clip) -> Iterator[Violation]:
    """Yield a clipping of an iterator that an optimizer, or the clipping before, has used up."""
    assert isinstance(clip.node, cst.Call)
    handed = positional(clip.node)
    clipped = handed[0] if handed else keyword(clip.node, "parameters")
    if not isinstance(clipped, cst.Name):
        return
    name = clipped.value
    bound = function.bindings.get(name, frozenset())
    if len(bound) != 1:
        return
    (held,) = bound
    if not isinstance(held.node, cst.BaseExpression) or _is_iterator(held.node) is None:
        return
    nodes = list(walk(function.scope.node))
    order = {id(node): place for place, node in enumerate(nodes)}
    made = [
        (node, value)
        for node in nodes
        if type(node) in ASSIGNING
        for target, value in [assigned_once(node)]
        if isinstance(target, cst.Name) and target.value == name
    ]
    if len(made) != 1 or id(held.node) not in order:
        return
    ((node, value),) = made
    sure = _is_iterator(value)
    loops = held.loops
    if (
        sure is None
        or (not sure and held.kind is not Kind.PARAMETERS)
        or value is None
        or order[id(clip.node)] < order[id(node)]
    ):
        return
    users = [
        other
        for other in nodes
        if type(other) is cst.Call
        and order[id(node)] < order[id(other)] < order[id(clip.node)]
        and other.args
        and dotted_name(other.args[0].value) == name
        and function.module.makes_optimizer(other)
    ]
    by: cst.CSTNode
    if users:
        why, by, what = "the optimizer has used up: nothing", users[0], "used up here"
    elif clip.loops[: len(loops)] == loops and len(clip.loops) > len(loops):
        why = "can be gone through once: after the first iteration at the latest, nothing"
        by, what = node, "made once, outside the loop"
    else:
        return
    yield Violation(
        clip.node,
        f"`{name}` is an iterator, which {why} is clipped here",
        Severity.ERROR if sure else Severity.WARNING,
        f"make a list of it: `{name} = list(...)`",
        ((by, what),),
    )


def _is_iterator(node: cst.BaseExpression | None) -> bool | None:
    """Tell whether this can be gone through once; False where a class may have it otherwise."""
    if isinstance(node, cst.GeneratorExp):
        return True
    if not isinstance(node, cst.Call):
        return None
    if dotted_name(node.func) in {"filter", "map", "chain", "itertools.chain"}:
        return True
    is_parameters = isinstance(node.func, cst.Attribute) and node.func.attr.value == "parameters"
    return False if is_parameters else None
