"""Tensors that backward needs and that are overwritten first (GCS103, 104, 108, 109)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

SAVED_TENSOR_MODIFIED = Entry(
    code="GCS103",
    slug="saved-tensor-modified",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="A tensor that backward needs was overwritten in place",
    what="""
An operation saved a tensor for backward; before backward ran, the tensor was changed in place.
The report names three lines: where the tensor was made, which operation saved it, and which line
overwrote it.
""",
    why="""
torch compares version counters when backward needs the tensor and raises `RuntimeError: one of the
variables needed for gradient computation has been modified by an inplace operation ... is at
version 1; expected version 0 instead`. The message names a shape and one operation, but no line.
`set_detect_anomaly` adds the line of the operation that saved the tensor, never that of the writer.
""",
    example="""\
import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, levels):
        maps = [lateral(x) for lateral, x in zip(self.lateral, levels)]
        energy = sum(m.pow(2).mean() for m in maps)
        for i in (2, 1):
            maps[i - 1] += maps[i]  # GCS103
        return torch.cat(maps), energy
""",
    instead="""\
import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, levels):
        maps = [lateral(x) for lateral, x in zip(self.lateral, levels)]
        energy = sum(m.pow(2).mean() for m in maps)
        for i in (2, 1):
            maps[i - 1] = maps[i - 1] + maps[i]
        return torch.cat(maps), energy
""",
    detection="""
In source: within one function, an operation that is known to save an operand or its result, then
an in-place write to the same tensor, and a backward or return after it, on one path.

At run time: the version counter of every saved tensor is noted when it is saved and compared when
backward takes it out. Code that installs `saved_tensors_hooks` of its own switches torch's check
off for what passes through them: a real error then becomes a silent wrong gradient.

Severity: error at run time and where source shows all three events, else warning.
""",
)

SAVED_TENSOR_CORRUPTED = Entry(
    code="GCS104",
    slug="saved-tensor-corrupted",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="A saved tensor was overwritten behind autograd's back",
    what="""
As GCS103, but by a route that leaves the version counter alone: `.data`, a NumPy array, DLPack,
the untyped storage, or an extension that writes to the pointer. Backward has used values that are
not those of the forward pass.
""",
    why="""
Nothing raises. The gradient is computed from the overwritten values and is wrong; training goes
on, a little worse or a lot. torch's version check cannot see it, and neither can anomaly mode.
""",
    example="""\
import torch


def step(encoder, head, optimizer, x, y):
    hidden = encoder(x)
    loss = (head(hidden) * hidden.pow(2) - y).pow(2).mean()
    hidden.data.clamp_(-1.0, 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return hidden
""",
    instead="""\
import torch


def step(encoder, head, optimizer, x, y):
    hidden = encoder(x)
    loss = (head(hidden) * hidden.pow(2) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return hidden.detach().clamp(-1.0, 1.0)
""",
    detection="""
At run time: a checksum of the bits is taken when a tensor is saved and compared when backward
takes it out, together with the version and the memory address. Different bits under an unchanged
version are this mistake. The writing line is named where the write was a call of an in-place
method or function of torch; what NumPy or an extension writes is found without its line. Batch
norm's running statistics, which the operation itself saves and rewrites, are exempt. A tensor kept
as a plain attribute of `ctx` is never saved and so cannot be compared (GCS205).

Severity: error; the overwritten values were used.
""",
)

INPLACE_ON_SAVED_OUTPUT = Entry(
    code="GCS108",
    slug="inplace-on-saved-output",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="In-place operation on an output that its own backward needs",
    what="""
The output of `sigmoid`, `tanh`, `exp`, `softmax`, `log_softmax`, `sqrt`, `rsqrt`, `reciprocal`,
`cumprod` or `relu` is changed in place. These operations save their output, because their
derivative is cheapest in terms of it.
""",
    why="""
Backward raises `RuntimeError: ... modified by an inplace operation ... which is output 0 of Tanh,
is at version 1; expected version 0`. A layer with `inplace=True` does the same as an underscore
method. In-place dropout writes only in training mode, so the same model passes in evaluation.

Not every operation is concerned: after `Linear`, `Conv2d`, batch norm, `gelu`, `silu`, `abs`,
`sin` or `log`, which do not save their output, `ReLU(inplace=True)` is fine.
""",
    example="""\
from torch import nn

model = nn.Sequential(
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Dropout(0.5, inplace=True),  # GCS108
    nn.Linear(8, 1),
)
""",
    instead="""\
from torch import nn

model = nn.Sequential(
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Dropout(0.5),
    nn.Linear(8, 1),
)
""",
    detection="""
In source: a call from the list above (function, method or layer) whose result is next written in
place, directly, through a name, or by the following layer of an `nn.Sequential`.

At run time: a version mismatch on a tensor whose saver is also its maker.

Severity: error; a warning where the write depends on a mode or a branch.
""",
)

STEP_BEFORE_SECOND_BACKWARD = Entry(
    code="GCS109",
    slug="step-before-second-backward",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="An optimizer steps while another backward still needs the weights",
    what="""
Two losses share a forward pass. The first is backpropagated, its optimizer steps, and then the
second loss is backpropagated through the weights that the step has just changed.
""",
    why="""
A layer saves its weight to compute the gradient of its input. `optimizer.step()` writes the weight
in place, so the second backward raises `RuntimeError: ... modified by an inplace operation`. With
an optimizer that writes through `.data` nothing raises and the second gradient mixes old
activations with new weights. `retain_graph=True` keeps the graph, not the old weights.
""",
    example="""\
import torch


def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        score = critic(generator(noise)).mean()
        opt_c.zero_grad()
        (score - critic(real).mean()).backward(retain_graph=True)
        opt_c.step()  # GCS109

        opt_g.zero_grad()
        (-score).backward()
        opt_g.step()
""",
    instead="""\
import torch


def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        fake = generator(noise)
        opt_c.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        opt_c.step()

        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()
""",
    detection="""
In source: on one path, a backward, a step of an optimizer that owns parameters used in that
forward, and another backward over a graph recorded before the step.

At run time: a version mismatch on a saved parameter whose last writer is an optimizer's step.

Severity: error where the same graph is shown to be used again, else warning.
""",
)

ENTRIES = (
    SAVED_TENSOR_MODIFIED,
    SAVED_TENSOR_CORRUPTED,
    INPLACE_ON_SAVED_OUTPUT,
    STEP_BEFORE_SECOND_BACKWARD,
)
