"""Writes into leaves and slices (GCS101, 102, 105 to 107)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

LEAF_INPLACE = Entry(
    code="GCS101",
    slug="leaf-inplace",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="In-place operation on a leaf that requires grad",
    what="""
A leaf tensor that requires grad (a parameter, or a tensor made with `requires_grad=True`) is
changed in place while gradients are recorded: by a method that ends in an underscore, by `+=` and
its relatives, or by assigning to a slice or element. A view of the leaf counts as the leaf.
""",
    why="""
torch raises at that line: `RuntimeError: a leaf Variable that requires grad is being used in an
in-place operation` (`a view of a leaf Variable ...` for a slice). The usual way out, a write
through `.data`, removes the error together with every later check (see GCS105).
""",
    example="""\
from torch import nn


def make_head(features, classes):
    head = nn.Linear(features, classes)
    head.weight *= 0.1  # GCS101
    head.bias[0] = 2.0  # GCS101
    return head
""",
    instead="""\
import torch
from torch import nn


def make_head(features, classes):
    head = nn.Linear(features, classes)
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias[0] = 2.0
    return head
""",
    detection="""
In source: the written name must be shown to hold such a leaf (`nn.Parameter(...)`, a tensor made
with `requires_grad=True`, a parameter of a layer), directly or through a view, on a path where
gradients are recorded. A name of unknown origin is left alone, and so is a write under
`torch.no_grad()`.

At run time: torch's own exception is the proof; the report adds the leaf's name and the line that
made it, and the exception goes on unchanged.

Severity: error where every path shows it, else warning.
""",
)

LEAF_REBOUND = Entry(
    code="GCS102",
    slug="leaf-rebound",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="The name of a leaf now holds a computed tensor, so .grad stays None",
    what="""
A name that held a leaf is bound to the result of an operation on it: `w = w - lr * w.grad`,
`w = w.to(device)`, `nn.Parameter(t) * 0.02`. The new tensor is not a leaf, and backward fills
`.grad` of leaves only.
""",
    why="""
`.grad` of the new tensor is None; torch only warns that it is `not a leaf Tensor`. In a
hand-written update the second step fails with `TypeError: unsupported operand type(s) for *:
'float' and 'NoneType'`. An optimizer made from the new tensor raises `can't optimize a non-leaf
Tensor`; one made before keeps the old leaf. A module attribute set to `nn.Parameter(t) * 0.02` is
not registered: `parameters()` and `state_dict()` lack it and it never trains.

`w.to(device)` on a tensor that is there already returns the leaf itself, so this mistake can pass
on a CPU machine and bite on a GPU.
""",
    example="""\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) * 0.02  # GCS102

    def forward(self, x):
        return x * self.weight


def optimizer_of(scale):
    return torch.optim.SGD([scale.weight], lr=0.1)
""",
    instead="""\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 0.02))

    def forward(self, x):
        return x * self.weight


def optimizer_of(scale):
    return torch.optim.SGD([scale.weight], lr=0.1)
""",
    detection="""
In source: the name, or the attribute of an object, must hold a leaf, be bound again to an
expression made from it, and be used as a leaf afterwards (`.grad`, an optimizer, the next turn of
the loop, registration on a module). Rebinding alone, as in `x = x * 2`, is ordinary code and is not
reported.

At run time: an optimizer is given, and refuses, a tensor that an operation has made. A read of its
`.grad` is told as GCS407.

Severity: warning. A conversion may turn out to be no copy at all.
""",
)

DATA_WRITE = Entry(
    code="GCS105",
    slug="data-write",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=False,
    title="Write through .data or a detached alias outside initialisation",
    what="""
A tensor is changed through `.data`, through `.detach()` kept under another name, or through the
array that `.numpy()` returns, in code that runs while training: a forward, a training step, a
callback.
""",
    why="""
`.data` and the NumPy array share the tensor's memory but not its version counter. If an operation
saved the old values for backward, the usual `RuntimeError: ... modified by an inplace operation`
does not come: backward computes with the new values and the gradient is wrong without a word.
(`.detach()` keeps the counter, so torch does notice that route.) Where nothing is saved at that
moment the write is harmless today, and wrong after the next reordering of lines.
""",
    example="""\
import torch


def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)  # GCS105
        loss.backward()
        optimizer.step()
""",
    instead="""\
import torch


def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.01, 0.01)
""",
    detection="""
In source: a write (in-place method, augmented or subscript assignment, `copy_`) whose target is
reached through `.data`, between a model's forward and the backward of its loss in one function.
Aliases that `detach()` makes are not followed. Reads, weight initialisation, loading and surgery on
a model before training are not reported.

At run time the damage itself is GCS104, with proof.

Severity: warning; source cannot show that backward still needs the old values.
""",
)

SLICE_WRITE_IN_LOOP = Entry(
    code="GCS106",
    slug="slice-write-in-loop",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="Results written slice by slice into a preallocated tensor",
    what="""
A loop assigns results that need gradients to slices of one tensor: `out[t] = cell(x[t])`.
""",
    why="""
Gradients are right, but each assignment adds a `CopySlices` node, and its backward copies the
gradient of the whole tensor. With T assignments backward costs T times the size of the tensor:
for a [4000, 64] tensor filled row by row about 0.9 s against 0.03 s with `torch.stack` (one CPU
thread, torch 2.13). Each assignment also bumps the version of the tensor, so a row that was read
before cannot be used in backward (GCS107).
""",
    example="""\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)

    def forward(self, x, state):
        out = torch.zeros(len(x), *state.shape)
        for t in range(len(x)):
            state = self.cell(x[t], state)
            out[t] = state  # GCS106
        return out
""",
    instead="""\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)

    def forward(self, x, state):
        out = []
        for t in range(len(x)):
            state = self.cell(x[t], state)
            out.append(state)
        return torch.stack(out)
""",
    detection="""
In source: a subscript assignment in a loop, indexed by the loop, to a tensor preallocated outside
it, with a right side that is shown to need gradients. Constants, masks and index tensors on the
right, and code under `no_grad`, are not reported.

At run time: `CopySlices` nodes of the recorded graph that follow one another on the same tensor
are counted.

Severity: warning, a matter of time and memory; a note where the loop is known to be short.
""",
)

SLICE_READ_THEN_WRITE = Entry(
    code="GCS107",
    slug="slice-read-then-write",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="A slice is read into the graph, then its base is written",
    what="""
A slice of a tensor enters an operation that saves it for backward, and another slice of the same
tensor is assigned afterwards: `s[t] = s[t - 1] * x[t]`.
""",
    why="""
All slices share one version counter with their base. The product saves the view `s[t - 1]`; the
assignment bumps the counter; backward raises `RuntimeError: one of the variables needed for
gradient computation has been modified by an inplace operation`, although the two slices do not
overlap. An operation that saves nothing, such as `+`, does no harm.
""",
    example="""\
import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        state = torch.zeros_like(x)
        state[0] = x[0]
        for t in range(1, len(x)):
            state[t] = x[t] + gate[t] * state[t - 1]  # GCS107
        return state
""",
    instead="""\
import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        state = [x[0]]
        for t in range(1, len(x)):
            state.append(x[t] + gate[t] * state[t - 1])
        return torch.stack(state)
""",
    detection="""
In source: a slice of a tensor is read by an operation that saves that operand (a product, a
quotient, a matrix product, a power) and the same tensor is assigned to afterwards, in the same
statement or the next turn of the loop. A `.clone()` of the slice ends the search. The correction
by machine inserts that clone; a list and `torch.stack`, as above, is faster.

At run time: the saved view's version differs from the current one; the report names the line that
saved and the line that wrote.

Severity: error where the operand is shown to be saved, else warning.
""",
    fixable=True,
)

ENTRIES = (
    LEAF_INPLACE,
    LEAF_REBOUND,
    DATA_WRITE,
    SLICE_WRITE_IN_LOOP,
    SLICE_READ_THEN_WRITE,
)
