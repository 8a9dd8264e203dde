"""GCS105: a write that autograd does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward, Forward, InPlace
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._text import source_of
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class DataWrite(Rule):
    """A tensor is written through ``.data`` between forward and backward."""

    entry = catalogue.DATA_WRITE
    part = Part.BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write through .data that lies between a forward and its backward."""
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        if not backwards:
            return
        for index, event in enumerate(events):
            if not isinstance(event, InPlace) or not _through_data(event.target):
                continue
            before = [other for other in events[:index] if isinstance(other, Forward)]
            after = [other for other in events[index + 1 :] if isinstance(other, Backward)]
            forward = next((other for other in reversed(before) if _together(other, event)), None)
            backward = next((other for other in after if _together(other, event)), None)
            if forward is None or backward is None or event.target is None:
                continue
            if any(
                isinstance(other, Backward) for other in events[events.index(forward) : index]
            ) or any(
                isinstance(other, Forward) for other in events[index : events.index(backward)]
            ):
                continue
            yield Violation(
                event.node,
                f"`{source_of(function.module.tree, event.target)}` is written between a forward "
                "and its backward, where torch can't see it: gradients are computed with the new "
                "values",
                Severity.WARNING,
                "write after backward() and step(), under `with torch.no_grad():`",
                ((forward.node, "the forward"), (backward.node, "its backward")),
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        loss.backward()
        optimizer.step()
""",
            lines=(9,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for parameter in critic.parameters():
        parameter.data.normal_(0, 0.02)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        loss.backward()
        optimizer.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)
""",
            why="initialised before, clipped after the step",
        ),
    )


def _through_data(node: cst.BaseExpression | None) -> bool:
    """Tell whether a written expression goes through ``.data``, but not a gradient's."""
    found = False
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Attribute):
            if "grad" in node.attr.value:
                return False
            found = found or node.attr.value == "data"
        node = node.value
    return found


def _together(other: Forward | Backward, event: InPlace) -> bool:
    """Tell whether an event comes in the same iteration as a write, or in a loop around it."""
    return event.loops[: len(other.loops)] == other.loops and (
        event.arms[: len(other.arms)] == other.arms
    )
