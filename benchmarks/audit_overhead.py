"""What auditing adds to the training step of the digits example."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gradcheck_suite as gs
from benchmarks.harness import Benchmark, Contender, measure, run_as_command

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
EPOCHS = 3
STEPS = EPOCHS * 22
GOAL = 1.15


def run() -> Benchmark:
    """Train the digits network bare, audited and under set_detect_anomaly, one thread."""
    torch.set_num_threads(1)
    script = runpy.run_path(str(EXAMPLE / "train_fixed.py"))
    images, labels = script["load_digits"]()
    train = partial(_train, script, images[:1400], labels[:1400])
    rows = measure(
        [
            Contender("bare", train),
            Contender("gs.audit()", lambda: _under(gs.audit(report=False), train)),
            Contender(
                "torch.autograd.set_detect_anomaly(True)",
                lambda: _under(torch.autograd.set_detect_anomaly(True), train),
            ),
        ],
        rounds=81,
        units_per_burst=STEPS,
        clock=time.process_time,
    )
    return Benchmark(
        title=f"Audit of a training run of {STEPS} steps (batch 64, two convolutions, batch norm)",
        command="python -m benchmarks.audit_overhead",
        unit="step (CPU)",
        rows=rows,
        goal=f"at most {GOAL} times the bare step",
        met=rows[1].ratio <= GOAL,
    )


def _train(script: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> None:
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        script["train"](script["DigitsNet"](), images, labels, epochs=EPOCHS)


def _under(context: contextlib.AbstractContextManager[Any], work: partial[None]) -> None:
    with context:
        work()


if __name__ == "__main__":
    sys.exit(run_as_command(run))
