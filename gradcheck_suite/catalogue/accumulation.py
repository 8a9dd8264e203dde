"""Gradients of several backwards that make up one step (GCS311)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

ACCUMULATION_MISMATCH = Entry(
    code="GCS311",
    slug="accumulation-mismatch",
    severity=Severity.ERROR,
    in_source=False,
    at_run_time=True,
    title="Accumulated gradients are not those of the full batch",
    what="""
A loop adds up the gradients of several micro-batches before each step, and the sum is not the
gradient that the full batch has: the loss is not divided by the number of micro-batches, or twice,
or is a mean over elements whose number differs between them; gradients are cleared or clipped in
between, or never; the step comes a micro-batch too early.
""",
    why="""
Nothing raises, and the loss goes down. The learning rate, the clipping threshold and the weight of
each sample are others than was meant, and change again with the number of micro-batches, so that a
run on fewer GPUs is no repetition of the one on more.
""",
    example="""\
def train(model, optimizer, batches, accumulation_steps):
    for index, (x, y) in enumerate(batches):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    instead="""\
def train(model, optimizer, batches, accumulation_steps):
    for index, (x, y) in enumerate(batches):
        loss = (model(x) - y).pow(2).mean() / accumulation_steps
        loss.backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    detection="""
At run time: `gradcheck_suite.check_accumulation`, or `gradient_check.accumulation` in a test, runs
the loop over the full batch and over its micro-batches from the same values, and compares the
gradients that each step is given. They differ by more than 16 times the measured rounding noise.

Severity: error; a note where the two can't be compared, as for statistics of a batch.
""",
)

ENTRIES = (ACCUMULATION_MISMATCH,)
