"""GCS405: requires_grad is forced onto a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import Kind, Values, all_are, cut_of
from gradcheck_lint.rules._cuts import is_certain
from gradcheck_lint.rules._repeating import differentiated_later, is_training_step
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._text import source_of
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class ForcedRequiresGrad(Rule):
    """A loss without a graph is made to require grad, so that backward runs and trains nothing."""

    entry = catalogue.FORCED_REQUIRES_GRAD

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether backward() is called there, or on what it returns."""
        return Part.BACKWARD in function.scope.parts or is_training_step(function)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every backward on a leaf that was made of a computed value."""
        for event in (*function.events(), *differentiated_later(function)):
            if not isinstance(event, Backward) or event.expects_error or event.partial:
                continue
            if event.seeded:
                continue
            cut = cut_of(event.values)
            if cut is None or not _are_forced(event.values, cut):
                continue
            yield Violation(
                cut,
                f"the graph ends at `{source_of(function.module, cut)}`; with requires_grad "
                "forced on, backward() runs without an error and no parameter gets a gradient",
                Severity.ERROR if is_certain(event) else Severity.WARNING,
                "call backward() on the computed loss itself",
                ((event.node, "backward() reaches no further than this"),),
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss = torch.tensor(loss.item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(8,),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).detach(), y.detach())
        loss.requires_grad_()
        loss.backward()
        optimizer.step()
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch
from torch import nn

def train(model, loader, criterion, optimizer):
    for x, y in loader:
        losses = []
        for out, target in zip(model(x), y):
            losses.append(criterion(out, target).item())
        loss = torch.tensor(losses, requires_grad=True).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def fit(model, loader, criterion, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss = torch.tensor(loss.data, requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(9, 17),
        ),
        Invalid(
            """\
import numpy as np
import torch
import torch.nn.functional as F

def from_float(model, loader, optimizer):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss = torch.tensor([float(loss)], requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def from_numpy(model, loader, optimizer):
    for x, y in loader:
        out = model(x).detach().numpy()
        loss = torch.tensor(np.abs(out - y.numpy()).mean(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def wrapped(model, loader, optimizer):
    for x, y in loader:
        loss = torch.nn.Parameter(F.mse_loss(model(x), y).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(8, 16, 23),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.requires_grad_()
        loss.backward()
        optimizer.step()
""",
            why="a loss with a graph keeps it",
        ),
        Valid(
            """\
import numpy as np
import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        out = model(x)
        scale = torch.tensor([float(out.mean()), np.log(2.0)], requires_grad=True)
        optimizer.zero_grad()
        (F.mse_loss(out, y) * scale.sum()).backward()
        optimizer.step()

def temperature(start, loader):
    log_alpha = torch.tensor(np.log(start), requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha])
    for entropy in loader:
        optimizer.zero_grad()
        (log_alpha.exp() * entropy.detach()).mean().backward()
        optimizer.step()
""",
            why="a leaf beside the graph, and one of its own",
        ),
        Valid(
            """\
import torch

w = torch.tensor(2.0, requires_grad=True)
w.backward()
""",
            why="a leaf of its own",
        ),
    )


def _are_forced(values: Values, cut: cst.CSTNode) -> bool:
    """Tell whether these are leaves, or made by a method of a leaf that nothing else flows into."""
    if all_are(values, Kind.LEAF):
        return True
    made = [value.node for value in values]
    return all_are(values, Kind.HISTORY) and all(
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.value is cut
        for node in made
    )
