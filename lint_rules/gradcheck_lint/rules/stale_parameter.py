"""GCS308: an optimizer of parameters that were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Step
from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, walk
from gradcheck_lint.model.values import Kind, all_are, held_by, sites
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StaleParameter(Rule):
    """A model gets new parameters after its optimizer was made."""

    entry = catalogue.STALE_PARAMETER

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `load_state_dict(..., assign=True)` after the optimizer was made."""
        if isinstance(function.scope.node, cst.Module):
            return
        steps = [
            event
            for event in function.events()
            if isinstance(event, Step) and all_are(event.values, Kind.OPTIMIZER)
        ]
        if not steps:
            return
        order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
        for node in body_of(function.scope):
            if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
                continue
            assigns = boolean(keyword(node, "assign")) is True
            if node.func.attr.value != "load_state_dict" or not assigns:
                continue
            model = function.bindings.get(dotted_name(node.func.value) or "", frozenset())
            for step in steps:
                made = max(order.get(id(value.node), len(order)) for value in step.values)
                if made < order[id(node)] < order.get(id(step.node), 0) and sites(model) & held_by(
                    step.values
                ):
                    yield Violation(
                        node,
                        "assign=True gives the model new parameters, and the optimizer was made "
                        "from the old ones: its steps change nothing in the model",
                        Severity.WARNING,
                        "load first and make the optimizer afterwards, or drop assign=True",
                        ((step.node, "steps with the old parameters"),),
                    )
                    break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
import torch.nn.functional as F

def resume(model, state, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.load_state_dict(state, assign=True)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
            lines=(6,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
import torch.nn.functional as F

def resume(model, state, loader):
    model.load_state_dict(state, assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.load_state_dict(state)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
            why="loaded before, or into the same parameters",
        ),
    )
