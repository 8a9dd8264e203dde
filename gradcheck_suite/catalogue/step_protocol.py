"""The order of zero_grad, backward and step (GCS301 to 303, 306, 309)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

MISSING_ZERO_GRAD = Entry(
    code="GCS301",
    slug="missing-zero-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="Gradients that step() has used are added to and used again",
    what="""
`backward()` adds to `.grad`. Nothing clears the gradients after `step()`, so each step applies
the sum of all gradients so far.
""",
    why="""
Nothing raises. The update behaves like momentum 1.0 without decay: steps grow, the loss falls at
first, then oscillates or diverges, and lowering the learning rate seems to help.

Accumulating over several backward passes before one step is fine; this is about gradients that a
step has already used.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # GCS301
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: a loop with a backward and a step of an optimizer, and on no path a reset: `zero_grad`
of the optimizer, the model or a helper that is followed, `.grad = None`, or an optimizer made anew
in each turn. A helper or engine that cannot be followed ends the search.

At run time: a gradient that a step has used is still non-zero when the next backward adds to it,
and the same optimizer's next step uses the sum. Accumulation never does this. Where no optimizer
steps: a parameter moved by a multiple of its `.grad`, the next backward added to that, and the
parameter moved by a multiple of the sum.

Severity: error where every path shows it, else warning.
""",
)

ZERO_GRAD_MISPLACED = Entry(
    code="GCS302",
    slug="zero-grad-misplaced",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="zero_grad() discards gradients that no step has used",
    what="""
`zero_grad()` comes between backward and step, is called on the other of two optimizers, or runs
on every micro-batch of an accumulation window.
""",
    why="""
Nothing raises. Between backward and step it makes every step a no-op: gradients are None, the
optimizer skips the parameters, and the loss stays where it was. On every micro-batch it leaves
only the last micro-batch of each window: training works, at a fraction of the intended batch.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.zero_grad()  # GCS302
        optimizer.step()
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: the events backward, zero_grad and step on the same optimizer, in that order, on one
path. A reset in a branch that leaves the turn (`if not finite: zero_grad(); continue`) is not on
the path to the step.

At run time: a gradient that backward has filled is cleared before any step has used it, and the
step that follows finds less than backward gave. Skipping a bad batch, without a step, is not
reported.

Severity: error; a warning for an accumulation window that source shows only in part.
""",
)

STEP_WITHOUT_BACKWARD = Entry(
    code="GCS303",
    slug="step-without-backward",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="step() without a fresh gradient",
    what="""
An optimizer steps although no backward has run since its last step or reset: step before backward,
or a loop that has lost its backward.
""",
    why="""
Nothing raises. A parameter whose `.grad` is None is skipped, so the loop trains nothing; where old
gradients are still there they are applied once more. With gradients that are zero instead of None
Adam and SGD with momentum move all the same, on past momentum.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        optimizer.step()  # GCS303
        loss.backward()
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: a loop with a step and, on no path before it, a backward or a call that may contain one;
or a reset, a forward, a step and a backward in this order. A step with a closure is left alone.

At run time: no gradient of the optimizer's parameters was written between two of its steps.

Severity: error where every path shows it, else warning.
""",
)

SCHEDULER_BEFORE_STEP = Entry(
    code="GCS306",
    slug="scheduler-before-step",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="lr_scheduler.step() runs before optimizer.step()",
    what="""
In each turn of the loop the scheduler steps before the optimizer.
""",
    why="""
The first value of the schedule is never used, and every later one comes one step early: warm-up
starts one notch too high, a cosine or step schedule ends early. torch gives one `UserWarning:
Detected call of lr_scheduler.step() before optimizer.step()`, and only in the first turn.
""",
    example="""\
import torch
from torch.optim.lr_scheduler import StepLR


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        scheduler.step()  # GCS306
        optimizer.step()
""",
    instead="""\
import torch
from torch.optim.lr_scheduler import StepLR


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
""",
    detection="""
In source: both names must be bound to a scheduler and to its optimizer; the scheduler's step comes
first on every path of the same loop body. A scheduler that steps at the start of each epoch but
the first is not reported.

At run time: the scheduler's first step came before the first step of its optimizer.

Severity: warning.
""",
)

LEFTOVER_GRADIENT = Entry(
    code="GCS309",
    slug="leftover-gradient",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="An optimizer also applies what another loss left in its gradients",
    what="""
Two losses with an optimizer each go through the same parameters. The backward of one leaves
gradients in the other's parameters, and they are still there when that other optimizer steps.
""",
    why="""
Nothing raises. In a GAN the critic then also descends the generator's loss, which asks for the
opposite: training is weak or unstable for no visible reason. Clearing both optimizers at the top
of the loop is not enough; the reset belongs right before the backward that it prepares.
""",
    example="""\
import torch


def train(generator, critic, loader):
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.01)
    opt_c = torch.optim.SGD(critic.parameters(), lr=0.01)
    for real, noise in loader:
        opt_g.zero_grad()
        opt_c.zero_grad()
        fake = generator(noise)
        (-critic(fake).mean()).backward()
        opt_g.step()

        loss_c = critic(fake.detach()).mean() - critic(real).mean()
        loss_c.backward()
        opt_c.step()  # GCS309
""",
    instead="""\
import torch


def train(generator, critic, loader):
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.01)
    opt_c = torch.optim.SGD(critic.parameters(), lr=0.01)
    for real, noise in loader:
        opt_g.zero_grad()
        fake = generator(noise)
        (-critic(fake).mean()).backward()
        opt_g.step()

        opt_c.zero_grad()
        loss_c = critic(fake.detach()).mean() - critic(real).mean()
        loss_c.backward()
        opt_c.step()
""",
    detection="""
In source: between the last reset of an optimizer and its step lie a backward that another
optimizer's step follows, and a backward of its own; both losses reach its model.

At run time: the gradient at the step holds the contributions of two backward passes that
different optimizers' steps separate.

Severity: warning; adding up two losses on purpose looks the same.
""",
)

ENTRIES = (
    MISSING_ZERO_GRAD,
    ZERO_GRAD_MISPLACED,
    STEP_WITHOUT_BACKWARD,
    SCHEDULER_BEFORE_STEP,
    LEFTOVER_GRADIENT,
)
