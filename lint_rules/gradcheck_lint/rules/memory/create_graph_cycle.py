"""GCS206: backward(create_graph=True)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

import libcst as cst

from gradcheck_lint.analyses.hidden_effects import ZEROING, may_act_elsewhere
from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.model.flow import Backward, ZeroGrad
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import walk
from gradcheck_lint.model.values import Kind, Origin, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel


class CreateGraphCycle(Rule):
    """``backward(create_graph=True)`` leaves parameters and gradients that hold each other."""

    entry = catalogue.CREATE_GRAPH_CYCLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such call after which nothing drops the gradients."""
        if Part.BACKWARD not in function.scope.parts:
            return
        events = [event for event in function.events() if not _adds_to_gradient(event, function)]
        for index, event in enumerate(events):
            if not isinstance(event, Backward) or not event.creates_graph:
                continue
            if any(isinstance(other, ZeroGrad) for other in events[index + 1 :]):
                continue
            early = [other for other in events if isinstance(other, ZeroGrad)]
            is_dropped = bool(event.loops and early)
            if is_dropped and not (repeats(function) and all(map(_is_of_this_call, early))):
                continue
            if may_act_elsewhere(function, ZEROING):
                continue
            yield Violation(
                event.node,
                "backward(create_graph=True) lets each parameter and its gradient hold each other: "
                + (_OF_THE_LAST if is_dropped else _ALWAYS),
                Severity.WARNING,
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`",
            )


_ALWAYS: Final = "the graph stays in memory until the gradients are set to None"
_OF_THE_LAST: Final = (
    "those of the last iteration stay in memory with all of the graph, at each call, for nothing "
    "sets them to None"
)


def _adds_to_gradient(event: Event, function: FunctionModel) -> bool:
    """Tell whether a gradient is overwritten with what is computed of it, graph and all."""
    if not isinstance(event, ZeroGrad) or type(event.node) is not cst.Attribute:
        return False
    values = [value for target, value in function.scope.assignments if target is event.node]
    words = {each.attr.value for value in values for each in walk(value) if _is_attribute(each)}
    return "grad" in words and words.isdisjoint({"detach", "data"})


def _is_attribute(node: cst.CSTNode) -> TypeGuard[cst.Attribute]:
    return type(node) is cst.Attribute


def _is_of_this_call(zeroing: ZeroGrad) -> bool:
    """Tell whether the function itself has made what is zeroed."""
    return all_are(zeroing.values, *_OWNERS) and all(
        value.origin is Origin.OTHER for value in zeroing.values
    )


_OWNERS: Final = (Kind.OPTIMIZER, Kind.MODULE, Kind.INSTANCE, Kind.LEAF, Kind.PARAMETERS)
