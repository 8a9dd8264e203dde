"""GCS314: several optimizer steps inside of one autocast region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.flow import Call, Step
from gradcheck_lint.model.function_class import returns
from gradcheck_lint.model.nearness import STEPS
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, last_word, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel


class StepInsideAutocast(Rule):
    """An optimizer steps again and again before autocast is left."""

    entry = catalogue.STEP_INSIDE_AUTOCAST

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every autocast region around a loop in which an optimizer steps."""
        if not function.module.mentions(b"autocast"):
            return
        for region, body in _regions(function):
            loops = [node for node in walk(body) if isinstance(node, (cst.For, cst.While))]
            inside = {id(node) for loop in loops for node in walk(loop.body)}
            for event in function.events() if inside else ():
                if id(event.node) in inside and (step := _step(event, function)) is not None:
                    yield Violation(
                        region,
                        "autocast casts each parameter once and keeps the copy until it is left, "
                        "which is after this loop: from the second step on, every forward computes "
                        "with the parameters from before the first",
                        Severity.WARNING,
                        "enter autocast in the loop, around the forward alone",
                        ((step, "steps here"),),
                    )
                    break


def _regions(function: FunctionModel) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield the calls that enter autocast for something, and what they enter it for."""
    node = function.scope.node
    if type(node) is cst.FunctionDef:
        for decorator in node.decorators:
            if _is_autocast(decorator.decorator, function):
                yield decorator, node.body
    for each in function.scope.nodes:
        for item in each.items if type(each) is cst.With else ():
            if _is_autocast(item.item, function):
                yield item.item, each.body  # type: ignore[attr-defined]


def _is_autocast(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this makes an autocast region, here or in a function that is called."""
    if type(node) is not cst.Call:
        return False
    if last_word(dotted_name(node.func)) == "autocast" and called_function(node, function) is None:
        off = keyword(node, "cache_enabled"), keyword(node, "enabled")
        return all(boolean(each) is not False for each in off)
    called = called_function(node, function)
    ways = returns(called) if called is not None else []
    inner = function.module.function(called) if called is not None else function
    return bool(ways) and all(
        type(way.value) is cst.Call
        and called_function(way.value, inner) is not called
        and last_word(dotted_name(way.value.func)) == "autocast"
        and _is_autocast(way.value, inner)
        for way in ways
    )


def _step(event: Event, function: FunctionModel) -> cst.CSTNode | None:
    """Return where an optimizer steps, here or in a function that is called."""
    if isinstance(event, Step):
        return event.node
    if not isinstance(event, Call) or event.function is None or event.referenced:
        return None
    if not function.module.near.has(event.function, STEPS.__contains__):
        return None
    inner = function.module.function(event.function)
    return event.node if any(isinstance(each, Step) for each in inner.events()) else None
