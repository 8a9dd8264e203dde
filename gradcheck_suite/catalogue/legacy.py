"""Relics of old torch (GCS9xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

LEGACY_VARIABLE = Entry(
    code="GCS901",
    slug="legacy-variable",
    severity=Severity.NOTE,
    in_source=True,
    at_run_time=False,
    title="torch.autograd.Variable is a relic: use the tensor itself",
    what="""
A tensor is wrapped in `Variable(...)`. Since tensors and variables are one type, the call returns
a tensor.
""",
    why="""
It is harmless. `isinstance(x, Variable)` is true for any tensor and tells nothing, and readers
look for a meaning that is not there.
""",
    example="""\
import torch
from torch.autograd import Variable


def weights(n):
    return Variable(torch.zeros(n), requires_grad=True)  # GCS901
""",
    instead="""\
import torch


def weights(n):
    return torch.zeros(n, requires_grad=True)
""",
    detection="""
In source: a call of `torch.autograd.Variable` under any name that it was imported as.

Severity: note.
""",
    fixable=True,
)

LEGACY_VOLATILE = Entry(
    code="GCS902",
    slug="legacy-volatile",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=False,
    title="volatile= is ignored: the graph is recorded after all",
    what="""
`Variable(x, volatile=True)` or `x.volatile = True`, meant to switch recording off for what is
computed from `x`.
""",
    why="""
It has no effect. torch warns `volatile was removed and now has no effect` and records graphs as in
training; evaluation and sampling take the memory of training (GCS204).
""",
    example="""\
from torch.autograd import Variable


def predict(model, x):
    return model(Variable(x, volatile=True))  # GCS902
""",
    instead="""\
import torch


@torch.no_grad()
def predict(model, x):
    return model(x)
""",
    detection="""
In source: the keyword `volatile` in a call of `Variable`, or an assignment to an attribute of that
name on a tensor.

Severity: error where recording was meant to be off (evaluation, sampling); a note on the input of
a training step, where it changes nothing.
""",
    fixable=True,
)

LEGACY_SCALAR_INDEX = Entry(
    code="GCS903",
    slug="legacy-scalar-index",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=False,
    title="loss.data[0]: a scalar tensor cannot be indexed",
    what="""
A loss or another tensor without dimensions is read with `.data[0]` or `[0]`, as when scalars were
vectors of length one.
""",
    why="""
It raises `IndexError: invalid index of a 0-dim tensor. Use tensor.item()`, often only in a logging
branch that runs after an hour.
""",
    example="""\
import torch.nn.functional as F


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.data[0]  # GCS903
""",
    instead="""\
import torch.nn.functional as F


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
    detection="""
In source: index 0 on `.data` of a value that is shown to be a scalar: the result of a loss
function or of a full reduction. A loss with `reduction="none"`, or of unknown shape, is left alone.

Severity: error where every path shows it, else warning.
""",
    fixable=True,
)

ENTRIES = (
    LEGACY_VARIABLE,
    LEGACY_VOLATILE,
    LEGACY_SCALAR_INDEX,
)
