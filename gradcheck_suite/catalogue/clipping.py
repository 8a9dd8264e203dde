"""Gradient clipping and loss scaling (GCS304, 305, 310)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

CLIP_MISPLACED = Entry(
    code="GCS304",
    slug="clip-misplaced",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="Gradients are clipped where clipping has no or the wrong effect",
    what="""
`clip_grad_norm_` or `clip_grad_value_` runs after the step, before the backward, on each
micro-batch of an accumulation window, or on an iterator that is already used up.
""",
    why="""
Nothing raises. After the step, and before the backward with fresh gradients, it clips nothing that
is ever applied. On each micro-batch it clips the running sum again and again, so early
micro-batches count less. `params = model.parameters()` is an iterator: a second use of `params`
finds nothing, and torch says so in a warning only (`parameters is an empty generator`).
""",
    example="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # GCS304
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    detection="""
In source: the order of backward, clipping, step and reset on each path, for the parameters of one
model or optimizer; for iterators, a generator that was consumed before.

At run time: the clipped gradients are cleared or overwritten before a step reads them, are clipped
while backward passes of the same window still follow, or the parameters given have no gradients.

Severity: error; a warning for clipping on each micro-batch, which some intend.
""",
)

CLIP_BEFORE_UNSCALE = Entry(
    code="GCS305",
    slug="clip-before-unscale",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="Scaled gradients are clipped: unscale_ is missing",
    what="""
With a `GradScaler` the gradients after `scaler.scale(loss).backward()` are multiplied by the loss
scale. They are clipped as they are, and `scaler.step` divides them by the scale afterwards.
""",
    why="""
Nothing raises. With the initial scale of 65,536 a limit of 1.0 acts as a limit of 1/65,536: nearly
every step is clipped to almost nothing and training crawls. As the scale changes, so does the
effective limit.
""",
    example="""\
import torch


def train(model, loader, device="cuda"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device):
            loss = (model(x) - y).pow(2).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # GCS305
        scaler.step(optimizer)
        scaler.update()
""",
    instead="""\
import torch


def train(model, loader, device="cuda"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device):
            loss = (model(x) - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
    detection="""
In source: a scaled backward, clipping and `scaler.step(optimizer)` on one path without
`scaler.unscale_(optimizer)` before the clipping.

At run time: gradients are clipped while an enabled scaler has scaled and not yet unscaled them. A
scaler with `enabled=False` is not reported.

Severity: error where every path shows it, else warning.
""",
    fixable=True,
)

SCALER_MISUSE = Entry(
    code="GCS310",
    slug="scaler-misuse",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="GradScaler calls are missing, doubled or out of order",
    what="""
One turn with a `GradScaler` is: `scale(loss).backward()`, if needed `unscale_(optimizer)` once,
`step(optimizer)` once, `update()` once. Something else is called.
""",
    why="""
Two slips are silent. `optimizer.step()` in place of `scaler.step(optimizer)` applies gradients
that are 65,536 times too large. `scaler.scale(loss)` with its result unused, followed by
`loss.backward()`, makes `scaler.step` divide gradients that were never multiplied: steps 65,536
times too small.

The others raise, some only in the next turn: no `update()` gives `step() has already been called
since the last update()`; no `scale()` gives `Attempted step but _scale is None`; `update()` before
`step()` gives `No inf checks were recorded prior to update`; `unscale_()` twice or after the step
says so.
""",
    example="""\
import torch


def train(model, loader, device="cuda"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device):
            loss = (model(x) - y).pow(2).mean()
        scaler.scale(loss).backward()
        optimizer.step()  # GCS310
""",
    instead="""\
import torch


def train(model, loader, device="cuda"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device):
            loss = (model(x) - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    detection="""
In source: the calls on one scaler and one optimizer along each path of the loop body.

At run time: the same order is followed per optimizer; a step on gradients that are still scaled,
or a division of gradients that never were, is a finding even where torch is silent.

Severity: error where every path shows it, else warning.
""",
)

ENTRIES = (
    CLIP_MISPLACED,
    CLIP_BEFORE_UNSCALE,
    SCALER_MISUSE,
)
