"""Which parameters an optimizer owns (GCS307, 308)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

PARAMETER_NOT_OPTIMIZED = Entry(
    code="GCS307",
    slug="parameter-not-optimized",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="A parameter gets gradients, but no optimizer owns it",
    what="""
Backward fills the gradient of a parameter that is in none of the optimizers: a head replaced or a
layer added after the optimizer was made, a submodule left out, a parameter group made from an
iterator that was already used up.
""",
    why="""
Nothing raises; the parameter keeps its initial values while the rest learns around it. An
optimizer whose only parameter list is empty raises `optimizer got an empty parameter list`, but
one empty group among several passes.
""",
    example="""\
import torch
import torch.nn.functional as F
from torch import nn


def finetune(model, loader, classes):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(model.head.in_features, classes)  # GCS307
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    instead="""\
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
    detection="""
In source: a layer or parameter is assigned to a model after an optimizer was made from that
model's parameters, before a step, in one function of a file without `add_param_group`.

At run time: a parameter that backward has filled belongs to no optimizer that has stepped since. A
parameter that is reset or read by other code (manual updates, an outer loop) is not reported.

Severity: error; a warning where the gradients may be meant for something else.
""",
)

STALE_PARAMETER = Entry(
    code="GCS308",
    slug="stale-parameter",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="An optimizer owns parameters that the model no longer has",
    what="""
The optimizer holds tensors that were replaced in the model: by
`load_state_dict(..., assign=True)`, by building the model again, by a deep copy, by removing a
layer.
""",
    why="""
Nothing raises. The optimizer steps on tensors that no forward uses; their `.grad` stays None and
they are skipped. If the model got new parameters in their place, those never change (GCS307) and
the loss stays flat. The old tensors and their optimizer state stay in memory.
""",
    example="""\
import torch
import torch.nn.functional as F


def resume(model, state, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.load_state_dict(state, assign=True)  # GCS308
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
    instead="""\
import torch
import torch.nn.functional as F


def resume(model, state, loader):
    model.load_state_dict(state, assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
    detection="""
In source: the model's parameters are replaced by `load_state_dict(..., assign=True)` between
making the optimizer and its steps, in one function.

At run time: a parameter of the optimizer is reached by no backward and belongs to no module that
ran a forward, while a module of the same kind did.

Severity: warning; the error, where new parameters go untrained, is GCS307.
""",
)

ENTRIES = (
    PARAMETER_NOT_OPTIMIZED,
    STALE_PARAMETER,
)
