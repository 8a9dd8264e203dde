"""What steps do to parameters, and what moves that should not (GCS312, 313 and 409)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

PARAMETER_IN_TWO_OPTIMIZERS = Entry(
    code="GCS312",
    slug="parameter-in-two-optimizers",
    severity=Severity.WARNING,
    in_source=False,
    at_run_time=True,
    title="Two optimizers apply the same gradient of a parameter",
    what="""
A parameter is in the groups of two optimizers, and both step after the same backward: the second
applies a gradient that the first has applied already.
""",
    why="""
Nothing raises. The parameter takes two steps for each gradient, by two rules: its learning rate is
the sum of both, and the second step is taken at a point that the gradient does not belong to. It
happens where a part of a model gets an optimizer of its own and stays in the first one.
""",
    example="""\
import torch


def train(model, batches):
    base = torch.optim.SGD(model.parameters(), lr=0.01)
    head = torch.optim.SGD(model[-1].parameters(), lr=0.1)
    for x, y in batches:
        base.zero_grad()
        head.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        base.step()
        head.step()
""",
    instead="""\
import torch


def train(model, batches):
    base = torch.optim.SGD(model[:-1].parameters(), lr=0.01)
    head = torch.optim.SGD(model[-1].parameters(), lr=0.1)
    for x, y in batches:
        base.zero_grad()
        head.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        base.step()
        head.step()
""",
    detection="""
At run time: an optimizer's step moves a parameter by a gradient that another optimizer's step,
which had ended before, has moved it by; nothing was added to that gradient, or written to it, in
between. This has come about at least twice.

Severity: warning; an encoder that two losses share may be meant to take both steps.
""",
)

STEP_WITHOUT_EFFECT = Entry(
    code="GCS313",
    slug="step-without-effect",
    severity=Severity.WARNING,
    in_source=False,
    at_run_time=True,
    title="No step of an optimizer changes any parameter",
    what="""
An optimizer steps on gradients that are not zero, and after each of its steps every parameter is
what it was: the learning rate is 0, or each update is smaller than the rounding of a parameter. Or
a GradScaler finds infinity in the gradients each time and leaves every step out.
""",
    why="""
Nothing raises: the loss is computed, backward runs, the loop goes on, and the model stays what it
was. A schedule that divides whole numbers gives a learning rate of 0 from its first step to its
last; parameters in bfloat16 do not notice an update below 1/256 of their size.
""",
    example="""\
import torch


def train(model, batches, epochs_of_warm_up):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches):
        share = index // len(batches) // epochs_of_warm_up
        optimizer.param_groups[0]["lr"] = 0.1 * share
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
""",
    instead="""\
import torch


def train(model, batches, epochs_of_warm_up):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches):
        share = (index + 1) / len(batches) / epochs_of_warm_up
        optimizer.param_groups[0]["lr"] = 0.1 * share
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
""",
    detection="""
At run time: the contents of all parameters with a gradient are the same before and after each step
of the run, of which there are at least 4, or 13 where a scheduler sets the learning rate; or a
scaler has left out each of at least 4 steps.

Severity: warning; a run may end within its warm-up.
""",
)

FROZEN_BUT_CHANGED = Entry(
    code="GCS409",
    slug="frozen-but-changed",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="What is frozen changes all the same",
    what="""
A parameter that no longer requires grad is moved by its optimizer, through the gradient that it
still has from before. Batch norm whose parameters are frozen goes on updating its running
statistics in training mode. Or a test has declared something frozen, and it gets a gradient or
changes.
""",
    why="""
Nothing raises. `requires_grad_(False)` ends what backward adds, and nothing else: a gradient that
is left, even one of zeros, goes through momentum and weight decay at each step. `train()` sets
frozen layers to training mode too, so that the features that a head is trained on drift.
""",
    example="""\
import torch


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(batches):
        if index == 2:
            model[0].requires_grad_(False)
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
""",
    instead="""\
import torch


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(batches):
        if index == 2:
            model[0].requires_grad_(False)
            model[0].zero_grad(set_to_none=True)
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
""",
    detection="""
At run time: a step changes the contents of a parameter that has required grad and does so no
longer, at least twice. The running statistics of a layer change while its parameters, none of
which requires grad, stay the same and others of the model are trained. What
`autograd_audit.frozen(...)` or `session.frozen(...)` has declared is compared at each backward,
step and forward.

Severity: error for what was declared frozen; a warning for parameters that a step moves; a note
for running statistics, which may be meant to follow the data.
""",
)

ENTRIES = (PARAMETER_IN_TWO_OPTIMIZERS, STEP_WITHOUT_EFFECT, FROZEN_BUT_CHANGED)
