"""Training and evaluation mode (GCS7xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

TRAIN_MODE_IN_EVAL = Entry(
    code="GCS701",
    slug="train-mode-in-eval",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="Validation runs with dropout or batch norm in training mode",
    what="""
A validation or inference pass runs on a model that was not switched by `model.eval()`.
""",
    why="""
Dropout still drops: the figures change from run to run and are usually too low. Batch norm uses the
statistics of the validation batch and adds them to its running averages, `no_grad` or not:
validation data leaks into the model. `torch.no_grad()` does not switch the mode.
""",
    example="""\
import torch
import torch.nn.functional as F


@torch.no_grad()
def validate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()  # GCS701
    return correct


def fit(model, optimizer, loader, validation, epochs=2):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(validate(model, validation))
""",
    instead="""\
import torch
import torch.nn.functional as F


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()
    model.train()
    return correct


def fit(model, optimizer, loader, validation, epochs=2):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(validate(model, validation))
""",
    detection="""
In source: a function or loop that runs a model without recording, computes figures from it, is
called between training steps, and neither it nor a caller calls `eval()`.

At run time: a forward without recording, between training steps, enters a dropout or batch norm
layer that is in training mode. Monte Carlo dropout and a pass that re-estimates batch statistics
do so on purpose.

Severity: warning.
""",
)

STUCK_IN_EVAL = Entry(
    code="GCS702",
    slug="stuck-in-eval",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="eval() is called and training goes on without train()",
    what="""
A validation pass calls `model.eval()`, and the training that follows never calls `model.train()`
again.
""",
    why="""
Nothing raises. From the second epoch on dropout is off and batch norm uses, and no longer updates,
its running statistics. Training continues as another, less regularized model.
""",
    example="""\
import torch
import torch.nn.functional as F


def fit(model, optimizer, loader, validation, epochs=2):
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()  # GCS702
        with torch.no_grad():
            for x, y in validation:
                print(F.cross_entropy(model(x), y).item())
""",
    instead="""\
import torch
import torch.nn.functional as F


def fit(model, optimizer, loader, validation, epochs=2):
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in validation:
                print(F.cross_entropy(model(x), y).item())
""",
    detection="""
In source: in a loop, `eval()` on a model whose training step comes round again, and no `train()`
of that model on the way.

At run time: layers that were in training mode during earlier steps are in evaluation mode during
later ones, for all of the model. Freezing only batch norm, on purpose, is not reported.

Severity: warning.
""",
)

ENTRIES = (
    TRAIN_MODE_IN_EVAL,
    STUCK_IN_EVAL,
)
