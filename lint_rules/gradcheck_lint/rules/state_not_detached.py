"""GCS202: a hidden state that carries its graph along."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward, Forward, GradMode
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Value, Values, through_all
from gradcheck_lint.rules._hidden_acts import DETACHING, may_act_elsewhere
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._states_on_self import state_kept_by
from gradcheck_lint.rules._windows import goes_into_next_window
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StateNotDetached(Rule):
    """A hidden state goes from one training step to the next with its graph."""

    entry = catalogue.STATE_NOT_DETACHED
    part = Part.BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every model call that is given its own earlier result, in a loop with backward."""
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        if not backwards:
            return
        for event in events:
            if not isinstance(event, Forward) or not event.loops or event.expects_error:
                continue
            if event.mode is GradMode.DISABLED:
                continue
            own = id(event.node)
            kept = state_kept_by(function, event)
            if kept is None and not _is_given_back(event):
                continue
            proofs = [
                backward
                for backward in backwards
                if own in through_all(backward.values)
                and (
                    backward.loops[: len(event.loops)] == event.loops
                    or (kept is None and goes_into_next_window(function, event, backward))
                )
            ]
            if not proofs or may_act_elsewhere(function, DETACHING):
                continue
            is_certain = proofs[0].arms == event.arms and not proofs[0].expects_error
            given = event.receiver if kept is None else kept.receiver
            yield Violation(
                event.node if kept is None else kept.node,
                f"`{given}` is given a state that its call in the previous iteration "
                "returned, with its graph: backward() reaches into earlier steps, and torch raises "
                "or memory grows",
                Severity.ERROR if is_certain else Severity.WARNING,
                "detach the state at the start of each iteration: `state = state.detach()`",
                ((proofs[0].node, "backward() runs in every iteration"),),
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

def train(model, batches, optimizer):
    state = torch.zeros(2, 8)
    for x, target in batches:
        output, state = model(x, state)
        loss = (output - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            lines=(7,),
        ),
        Invalid(
            """\
import torch
from torch import nn

def train(batches):
    rnn = nn.LSTM(3, 4)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
    hidden = None
    for x in batches:
        out, hidden = rnn(x, hidden)
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
""",
            lines=(9,),
        ),
        Invalid(
            """\
import torch
from torch import nn

class Agent:
    def __init__(self, cell, head, optimizer):
        self.cell, self.head, self.optimizer = cell, head, optimizer
        self.hidden = torch.zeros(1, 8)

    def learn(self, env, x):
        for _ in range(100):
            self.hidden = self.cell(x, self.hidden)
            scores = self.head(self.hidden)
            x, target = env.step(scores.argmax(-1))
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(scores, target).backward()
            self.optimizer.step()
""",
            lines=(11,),
        ),
        Invalid(
            """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.rnn, self.out = nn.LSTM(size, size), nn.Linear(size, size)
        self.state = None

    def forward(self, x):
        y, self.state = self.rnn(x, self.state)
        return self.out(y)

    def reset(self):
        self.state = None

def train(loader, size):
    net = Net(size)
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(3):
        net.reset()
        for x, y in loader:
            loss = (net(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
""",
            lines=(11,),
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def repackage(h):
    return tuple(v.detach() for v in h)

def train(model, batches, optimizer):
    hidden = model.init_hidden(2)
    for x, y in batches:
        hidden = repackage(hidden)
        out, hidden = model(x, hidden)
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
""",
            why="detached by a helper",
        ),
        Valid(
            """\
import torch
from torch import nn

def train(batches, optimizer):
    rnn, state = nn.LSTM(3, 4), None
    for x in batches:
        if state is not None:
            state = tuple(part.detach() for part in state)
        out, state = rnn(x, state)
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()

def train_in_place(batches, optimizer):
    rnn, state = nn.LSTM(3, 4), None
    for x in batches:
        out, state = rnn(x, state)
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
        for part in state:
            part.detach_()
""",
            why="detached part by part, where there is a state",
        ),
        Valid(
            """\
import torch
from torch import nn

def train(cell, batches, optimizer):
    for xs in batches:
        state = torch.zeros(2, 8)
        total = 0
        for x in xs:
            state = cell(x, state)
            total = total + state.mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
""",
            why="one backward after the whole sequence",
        ),
        Valid(
            """\
import torch

def train(model, batches, optimizer, k):
    state = torch.zeros(2, 8)
    for i, x in enumerate(batches):
        out, state = model(x, state)
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = state.detach()
""",
            why="detached at the end",
        ),
        Valid(
            """\
import torch

def learn(cell, head, env, optimizer, x):
    state = (torch.zeros(1, 8), torch.zeros(1, 8))
    single = torch.zeros(1, 8)
    for _ in range(100):
        state = cell(x, state)
        single = cell(x, single.detach())
        scores = head(state[0] + single)
        x, target = env.step(scores.argmax(-1))
        optimizer.zero_grad()
        (scores - target).pow(2).mean().backward()
        optimizer.step()
        for part in state:
            part.detach_()
""",
            why="detached, whatever the input is made of",
        ),
        Valid(
            """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.rnn, self.out = nn.GRU(size, size), nn.Linear(size, size)
        self.state = self.other = self.third = None

    def forward(self, x):
        y, state = self.rnn(x, self.other)
        self.other = state.detach()
        self.third = None
        z, self.third = self.rnn(x, self.third)
        return self.out(y + z)

class Stateful(Net):
    def forward(self, x):
        y, self.state = self.rnn(x, self.state)
        return self.out(y)

    def detach_state(self):
        self.state = self.state.detach() if self.state is not None else None

def train(loader, size):
    net, stateful, third = Net(size), Stateful(size), Stateful(size)
    optimizer = torch.optim.Adam([*net.parameters(), *stateful.parameters()])
    for x, y in loader:
        loss = (net(x) - y + stateful(x) + third(x)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stateful.detach_state()
        third.state = None
""",
            why="the module detaches the state, or the loop has it detached or begins anew",
        ),
    )


def _is_given_back(event: Forward) -> bool:
    """Tell whether a model is given what its call in the iteration before has returned."""
    if _MEMORY.search(" ".join(_names_passed(event.node))) is not None:
        return False
    passed = [part for values in event.passed for part in _parts_of(values)]
    return any(_is_carried(values, id(event.node), event.loops) for values in passed)


_MEMORY: Final = re.compile(r"\bmem(?:s|ory|ories)?\b")
"""What models with a memory of segments call it, which they detach themselves."""


def _names_passed(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names that a call is given."""
    if isinstance(node, cst.Call):
        yield from (dotted_name(argument.value) or "" for argument in node.args)


def _parts_of(values: Values) -> Iterator[Values]:
    """Yield what is passed, and each part of a tuple such as ``(h, c)`` by itself."""
    yield values
    for value in values:
        if value.kind is Kind.TUPLE:
            for part in value.parts:
                yield from _parts_of(part)


def _is_carried(values: Values, call: int, loops: tuple[int, ...]) -> bool:
    """Tell whether an argument of ``call`` is what the call before has returned, on every path.

    What the loop puts in its place on some path may be there whenever there is a graph:
    ``if state is not None: state = tuple(part.detach() for part in state)``.
    """
    carried = [value for value in values if value.result_of == call]
    made_in_loop = [value for value in values if value.loops[: len(loops)] == loops]
    return bool(carried) and all(
        value.result_of == call and not _is_cut(value) and value.kind is not Kind.PLAIN
        for value in (*carried, *made_in_loop)
    )


def _is_cut(value: Value) -> bool:
    """Tell whether a state was detached since the model returned it.

    Where only what the model was given had lost its graph, its parameters give the state one.
    """
    return value.cut is not None and not value.certain
