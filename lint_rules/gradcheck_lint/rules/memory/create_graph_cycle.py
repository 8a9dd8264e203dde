"""GCS206: backward(create_graph=True)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.hidden_effects import ZEROING, may_act_elsewhere
from gradcheck_lint.model.flow import Backward, ZeroGrad
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class CreateGraphCycle(Rule):
    """``backward(create_graph=True)`` leaves parameters and gradients that hold each other."""

    entry = catalogue.CREATE_GRAPH_CYCLE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such call after which nothing drops the gradients."""
        if Part.BACKWARD not in function.scope.parts:
            return
        events = list(function.events())
        for index, event in enumerate(events):
            if not isinstance(event, Backward) or not event.creates_graph:
                continue
            if any(isinstance(other, ZeroGrad) for other in events[index + 1 :]):
                continue
            if event.loops and any(isinstance(other, ZeroGrad) for other in events):
                continue
            if may_act_elsewhere(function, ZEROING):
                continue
            yield Violation(
                event.node,
                "backward(create_graph=True) lets each parameter and its gradient hold each other: "
                "the graph stays in memory until the gradients are set to None",
                Severity.WARNING,
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`",
            )
