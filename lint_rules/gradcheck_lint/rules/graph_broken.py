"""GCS401: the graph of a loss is cut on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, positional
from gradcheck_lint.model.values import cut_of, through_all
from gradcheck_lint.rules._cuts import cut_backwards, is_certain
from gradcheck_lint.rules._repeating import is_training_step
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._terms import is_gradient, is_item, lost_terms
from gradcheck_lint.rules._text import source_of
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GraphBroken(Rule):
    """A loss is differentiated whose graph was cut, so that nothing gets a gradient from it."""

    entry = catalogue.GRAPH_BROKEN

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether backward() is called there, or on what it returns."""
        return Part.BACKWARD in function.scope.parts or is_training_step(function)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every cut that a differentiated loss goes through."""
        unrecorded = function.module.unrecorded
        module = function.module
        reported: set[int] = set()
        for backward, cut in cut_backwards(function):
            if id(cut) in unrecorded or id(cut) in reported:
                continue
            reported.add(id(cut))
            yield Violation(
                cut,
                f"`{source_of(module, cut)}` takes the graph away, and backward() is called on "
                "what is made of it: torch raises, because nothing requires a gradient",
                Severity.ERROR if is_certain(backward) else Severity.WARNING,
                "compute the loss from tensors that still have their graph",
                ((backward.node, "backward() is called here"),),
            )
        for event in function.events():
            if not isinstance(event, Backward) or event.expects_error:
                continue
            if cut_of(event.values) is None:
                continue
            is_computed = bool(through_all(event.values))
            for cut_node in lost_terms(function, event):
                if id(cut_node) in reported:
                    continue
                if is_gradient(cut_node, function):
                    message, hint = _OF_GRADIENT, "pass create_graph=True"
                elif is_computed and _copies_computed(cut_node):
                    message = _OF_COPY
                    hint = "use the computed tensor itself, or torch.stack for a list of them"
                elif is_computed and is_item(cut_node):
                    message, hint = _OF_ITEM, "leave out .item() where the loss is made of it"
                else:
                    continue
                reported.add(id(cut_node))
                yield Violation(
                    cut_node,
                    message.format(source_of(module, cut_node)),
                    Severity.WARNING,
                    hint,
                    ((event.node, "the loss is differentiated here"),),
                )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x).argmax(dim=1) - 1.0) ** 2).mean()
        loss.backward()
        optimizer.step()
""",
            lines=(6,),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).detach(), torch.zeros(3))
        loss.backward()
        optimizer.step()
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train(encoder, decoder, loader, optimizer):
    for x in loader:
        code = encoder(x)
        rate = torch.tensor([code.abs().mean(), code.pow(2).mean()]).sum()
        loss = F.mse_loss(decoder(code), x) + 0.1 * rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(7,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def reinforce(policy, env, optimizer):
    for _ in range(100):
        log_probs, rewards = [], []
        for state in env:
            action = torch.distributions.Categorical(logits=policy(state))
            log_probs.append(action.log_prob(action.sample()))
            rewards.append(env.step(action))
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        log_probs = torch.tensor(log_probs)
        loss = -(log_probs * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(11,),
        ),
        Invalid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer, weight):
    for x, y in loader:
        out = model(x)
        weights = sum(p.abs().sum().item() for p in model.parameters())
        size, smooth = out.pow(2).mean().item(), out.diff().abs().mean()
        loss = F.mse_loss(out, y) + weight * weights + 0.1 * size - smooth.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach() + smooth.item()
""",
            lines=(7, 8, 9),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch import nn

def train(model, loader, optimizer):
    criterion = nn.MSELoss()
    for x, y in loader:
        optimizer.zero_grad()
        _, predicted = model(x).max(1)
        loss = criterion(predicted.float(), y)
        loss.backward()
        optimizer.step()

def train_more(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.mse_loss(out.topk(1)[1].float(), y)
        loss.backward()
        optimizer.step()
        loss = nn.functional.mse_loss(out.sort().indices.float(), y)
        loss.backward()
""",
            lines=(8, 17, 20),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch import nn

class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.criterion = nn.BCELoss()
        self.optimizer = torch.optim.Adam(model.parameters())

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        predicted = (torch.sigmoid(self.model(x)) > 0.5).float()
        loss = self.criterion(predicted, y)
        loss.backward()
        self.optimizer.step()

def fit(model, inputs, targets, optimizer):
    criterion = nn.MSELoss()
    for _ in range(10):
        optimizer.zero_grad()
        loss = criterion(model(inputs).detach(), targets)
        loss.backward()
        optimizer.step()
""",
            lines=(12, 21),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch
from torch import autograd

def train(generator, critic, loader, optimizer):
    for x, z in loader:
        mixed = (0.5 * x + 0.5 * generator(z)).detach().requires_grad_(True)
        out = critic(mixed)
        loss = out.mean()
        loss += 10 * ((autograd.grad(out.sum(), mixed)[0].norm(2, dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
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
from torch import autograd

def train(critic, loader, optimizer):
    for x in loader:
        x.requires_grad_(True)
        out = critic(x)
        slope = autograd.grad(out.sum(), x, create_graph=True)[0].norm()
        weighed = (autograd.grad(out.sum(), x, retain_graph=True)[0] * out).mean()
        loss = out.mean() + (slope - 1).pow(2) + weighed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            why="one has a graph, the other is a weight of what has one",
        ),
        Valid(
            """\
import torch.nn.functional as F

def commit(encoder, codebook, x):
    F.mse_loss(codebook(x).detach(), encoder(x)).backward()

def distance(a, target):
    return F.mse_loss(a.detach(), target)

def consistency(model, first, second):
    loss = distance(model(first), model(second))
    loss.backward()
""",
            why="what the loss is compared with has a graph",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def train(model, target, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, target(x).detach())
        accuracy = (out.argmax(dim=1) == y).float().mean().item()
        loss.backward()
        optimizer.step()
        print(loss.item(), accuracy)
""",
            why="only a target is detached, and only what is logged has no graph",
        ),
        Valid(
            """\
import torch

def quantize(x):
    y = x + (x.round() - x).detach()
    y.sum().backward()
""",
            why="a straight-through estimator",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def train(model, loader, weights):
    for x, y in loader:
        w = torch.tensor(weights)
        F.cross_entropy(model(x), y, weight=w).backward()
""",
            why="a tensor of constants",
        ),
        Valid(
            """\
import torch
import torch.nn.functional as F

def learn(critic, env, optimizer, state, gamma):
    while True:
        value, entropy = critic(state), critic(state).std()
        state, reward = env.step(state)
        target = reward + gamma * critic(state).item()
        scale = value.mean().item() / entropy.item()
        difference = value - target
        loss = difference.pow(2).mean() + scale * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.item() + entropy.item()
        loss = loss.item() + total

def reinforce(policy, env, optimizer):
    log_probs, rewards = [], []
    for state in env:
        action = torch.distributions.Categorical(logits=policy(state))
        log_probs.append(action.log_prob(action.sample()))
        rewards.append(env.step(action))
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            why="targets, scales and numbers to be shown are meant to be constants",
        ),
        Valid(
            """\
import torch

def train(model, batches, criterion, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        best, where = out.max(1)
        loss = (best - y).pow(2).mean() + out.topk(1)[0].mean() + out.sort().values.mean()
        loss.backward()
        optimizer.step()
        print((where == y).sum().item())
""",
            why="the values of an extremum have a graph",
        ),
    )


_OF_COPY = (
    "`{}` makes a tensor without a graph from a computed value, so this term of the loss has no "
    "gradient"
)
_OF_ITEM = (
    "`{}` makes a number of a computed value, so this term of the loss has no gradient and trains "
    "nothing"
)
_OF_GRADIENT = (
    "`{}` returns gradients without a graph, because create_graph is not set: this term of the "
    "loss is a constant and penalizes nothing"
)


_COPIES = frozenset({"tensor", "FloatTensor", "Tensor", "from_numpy"})


def _copies_computed(node: cst.CSTNode) -> bool:
    """Tell whether this is `torch.tensor(...)` of something that a model computed."""
    if not isinstance(node, cst.Call):
        return False
    last = (dotted_name(node.func) or "").rpartition(".")[2]
    return last in _COPIES and bool(positional(node))
