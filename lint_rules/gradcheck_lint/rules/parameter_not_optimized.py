"""GCS307: a layer that no optimizer owns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

import libcst as cst

from gradcheck_lint.model.flow import Attach, Call, Event, Step
from gradcheck_lint.model.nearness import STEP, STEPS
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are, held_by, sites
from gradcheck_lint.rules._layer_kinds import has_weights
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


_ATTACHING: Final = frozenset({"add_module", "register_module", "register_parameter", "setattr"})


class ParameterNotOptimized(Rule):
    """A layer is put into a model after the optimizer was made of its parameters."""

    entry = catalogue.PARAMETER_NOT_OPTIMIZED

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function steps, and gives an object an attribute or a layer an item."""
        scope = function.scope
        if STEPS.isdisjoint(scope.words) or not function.module.near.has_itself(scope, STEP):
            return False
        return (
            scope.statements is None
            or bool(scope.attribute_bindings)
            or Part.WRITE in scope.parts
            or not _ATTACHING.isdisjoint(scope.words)
        )

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every layer that is attached between making an optimizer and its steps."""
        events = list(function.events())
        attached = [
            event
            for event in events
            if isinstance(event, Attach)
            and all(has_weights(value, function) for value in event.attached)
        ]
        steps = [
            event
            for event in events
            if isinstance(event, Step) and all_are(event.values, Kind.OPTIMIZER)
        ]
        if not attached or not steps or b"add_param_group" in function.module.source:
            return
        order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
        for event in attached:
            for step in steps:
                if any(_may_add_to(known, step) for known in events):
                    continue
                made = [order.get(id(value.node), len(order)) for value in step.values]
                if events.index(step) < events.index(event) or not made:
                    continue
                if max(made) < order.get(id(event.node), 0) and sites(event.values) & held_by(
                    step.values
                ):
                    how = "added" if isinstance(event.node, cst.Call) else "replaced"
                    yield Violation(
                        event.node,
                        f"`{event.path}` is {how} after the optimizer was made from the model's "
                        "parameters: the new layer gets gradients and is never trained",
                        Severity.ERROR,
                        "change the model first, then make the optimizer",
                        ((step.node, "this optimizer still has the old parameters"),),
                    )
                    break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

def finetune(model, loader, classes):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model[3] = nn.Linear(16, classes)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
            lines=(6,),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F
from torch import nn

def finetune(model, loader, classes):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(model.head.in_features, classes)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
            lines=(7,),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
import torch.nn.functional as F
from torch import nn

def finetune(model, loader, classes):
    model.head = nn.Linear(model.head.in_features, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
            why="the optimizer is made afterwards",
        ),
    )


def _may_add_to(event: Event, step: Step) -> bool:
    """Tell whether a call that can't be looked into is handed the optimizer."""
    if not isinstance(event, Call) or event.function is not None or event.harmless:
        return False
    if event.is_used and _makes_schedule(event.node):
        return False
    return not event.handed.isdisjoint(sites(step.values))


def _makes_schedule(node: cst.CSTNode) -> bool:
    name = dotted_name(node.func) if isinstance(node, cst.Call) else None
    return name is not None and _SCHEDULES.search(name.lower()) is not None


_SCHEDULES: Final = re.compile(r"sched|warm_?up|lr")
