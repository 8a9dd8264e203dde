"""GCS311: the gradients of several batches are added up, of a loss that is not divided."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward, Branch, Step, ZeroGrad
from gradcheck_lint.model.syntax import dotted_name, last_word, place_name, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.accumulation_mismatch.token_means import token_means
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Block, Event, Loop
    from gradcheck_lint.model.module import FunctionModel


class AccumulationMismatch(Rule):
    """What a step after several batches uses is not the mean over all of them."""

    entry = catalogue.ACCUMULATION_MISMATCH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the backward() of every loop whose step waits for several of them."""
        if "backward" not in function.scope.words or function.runs_in_engine:
            return
        for mean in token_means(function):
            yield Violation(
                mean.divided,
                f"each micro-batch counts as 1 of `{mean.number}`, and its loss is a mean over as "
                "many items as it has itself: where these are few, each counts more than in the "
                "mean of the whole batch",
                Severity.WARNING if mean.is_likely else Severity.NOTE,
                "divide the sum of the losses by the number of items in all micro-batches",
                ((mean.mean, "the mean of one micro-batch"),),
            )
        for loop in function.loops():
            for branch, count in _windows(loop.body):
                backward = _accumulated(loop, branch)
                if backward is None or backward.by_engine or _is_scaled(function, count, backward):
                    continue
                text = function.module.code(count)
                if _ACCUMULATION.search(text.lower()) is None:
                    continue  # a batch of episodes, or of whatever else is meant to be summed
                yield Violation(
                    backward.node,
                    f"the step comes every `{text}` batches and uses the sum of their gradients, "
                    "for the loss is not divided by that number: it is as large as with a learning "
                    "rate so many times as high",
                    Severity.WARNING,
                    f"differentiate `loss / {text}`",
                    ((branch.test or backward.node, "the step waits for this"),),
                )


_ACCUMULATION: Final = re.compile("accum|micro")


def _windows(block: Block) -> Iterator[tuple[Branch, cst.BaseExpression]]:
    """Yield each branch in a loop that is taken every so many iterations, and how many."""
    for item in block.items:
        if not isinstance(item, Branch) or item.test is None:
            continue
        for node in walk(item.test):
            if type(node) is cst.BinaryOperation and type(node.operator) is cst.Modulo:
                yield item, node.right


def _accumulated(loop: Loop, branch: Branch) -> Backward | None:
    """Return the one backward() of each iteration, if only the branch steps and zeroes."""
    inside = {id(event) for event in branch.arms[0].events()}
    outside = [event for event in loop.body.events() if id(event) not in inside]
    kinds = {type(event) for event in branch.arms[0].events()}
    steps = Step in kinds and ZeroGrad in kinds
    backwards = [event for event in outside if isinstance(event, Backward)]
    if not steps or Backward in kinds or not backwards or any(map(_ends_window, outside)):
        return None
    first = backwards[0]
    return None if first.expects_error or first.partial else first


def _ends_window(event: Event) -> bool:
    return isinstance(event, (Step, ZeroGrad))


def _is_scaled(function: FunctionModel, count: cst.BaseExpression, backward: Backward) -> bool:
    """Tell whether anything is divided or multiplied by the number, or the loss is a sum."""
    name = last_word(place_name(count)) or dotted_name(count)
    nodes = [
        node for known in function.module.functions() for node in known.scope.nodes_with_lambdas
    ]
    for node in nodes:
        if isinstance(node, (cst.BinaryOperation, cst.AugAssign)):
            if not isinstance(node.operator, _SCALING):
                continue
            words = {
                inner.value for inner in walk(node) if isinstance(inner, (cst.Name, cst.Integer))
            }
            if name in words or (not name and function.module.code(count) in words):
                return True
        elif isinstance(node, (cst.Name, cst.SimpleString)) and "sum" in node.value:
            return True
    return type(backward.node) is cst.Call and bool(backward.node.args)


_SCALING: Final = (
    *(cst.Divide, cst.Multiply, cst.FloorDivide),
    *(cst.DivideAssign, cst.MultiplyAssign, cst.FloorDivideAssign),
)
