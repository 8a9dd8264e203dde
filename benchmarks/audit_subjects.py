"""What auditing adds to steps of several sizes, per op, and in memory, by mode.

The subjects are an MLP, a ResNet and a 6-layer transformer. Each mode's session goes on from burst
to burst, so that what an audit does in its first steps is paid once, before the bursts that count.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import gradcheck_suite as gs
from benchmarks.harness import Benchmark, Contender, Row, as_markdown, machine, measure

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = "python -m benchmarks.audit_subjects"
BARE = "bare"
ANOMALY = "torch.autograd.set_detect_anomaly(True)"
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "checksums every step": {"checksum_every": 1},
    "checksums every 20th": {"checksum_every": 20},
    "checksums every 20th, overhead=inf": {"checksum_every": 20, "overhead": math.inf},
}
GOALS = {
    "default": (1.05, 1.10),
    "checksums every step": (1.15, 1.30),
    "checksums every 20th": (1.06, 1.30),
}
"""The greatest geometric mean and the greatest ratio of each mode over the subjects; what each step
takes where none is passed over is told beside them."""
MOST_MEMORY = 1.02


def _mlp() -> Callable[[], None]:
    widths = [256, 512, 512, 10]
    layers = [
        layer
        for given, made in itertools.pairwise(widths)
        for layer in (nn.Linear(given, made), nn.ReLU())
    ]
    labels = torch.randint(10, (64,))
    return _training(nn.Sequential(*layers[:-1]), torch.randn(64, 256), labels)


class _Residual(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(made)
        self.second = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(made)
        self.shortcut = nn.Sequential()
        if stride != 1 or given != made:
            self.shortcut = nn.Sequential(
                nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.relu(self.first_norm(self.first(x)), inplace=True)
        return nn.functional.relu(
            self.second_norm(self.second(inner)) + self.shortcut(x), inplace=True
        )


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def _resnet() -> Callable[[], None]:
    width = 16
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    blocks: list[nn.Module] = []
    given = width
    for made, stride in [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)]:
        blocks += [_Residual(given, made, stride), _Residual(made, made, 1)]
        given = made
    model = nn.Sequential(*stem, *blocks, _Mean(), nn.Linear(given, 10))
    return _training(model, torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.position = nn.Parameter(0.02 * torch.randn(1, 128, 256))
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embedding(tokens) + self.position)
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]  # a module's call


def _transformer() -> Callable[[], None]:
    tokens = torch.randint(1000, (4, 128))
    return _training(_Transformer(), tokens, torch.randint(1000, (4 * 128,)))


def _training(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


SUBJECTS: dict[str, tuple[Callable[[], Callable[[], None]], int, int, int]] = {
    "MLP": (_mlp, 500, 31, 500),
    "ResNet": (_resnet, 12, 31, 240),
    "transformer": (_transformer, 4, 31, 4),
}
"""What makes a step, how many steps a burst does, how many rounds are run, and how many steps each
mode does before: the 200 after which some may be passed over, but for the longest.

Bursts of more than a second: a run begins its audit once, and Python runs the first hundred steps
after methods were replaced without what it has learnt of them."""


def _burst(
    context: contextlib.AbstractContextManager[Any], step: Callable[[], None], n: int
) -> None:
    with context:
        for _ in range(n):
            step()


def _time(name: str, *, rounds: int | None) -> Benchmark:
    make, steps, usual, before = SUBJECTS[name]
    torch.manual_seed(0)
    step = make()
    contenders = [Contender(BARE, partial(_burst, contextlib.nullcontext(), step, steps))]
    for mode, options in OPTIONS.items():
        session = gs.audit(report=False, **options)
        # Of the first steps, some are checksummed in any mode.
        _burst(session, step, before)
        contenders.append(Contender(mode, partial(_burst, session, step, steps)))

    def anomaly() -> None:
        _burst(torch.autograd.set_detect_anomaly(True), step, steps)

    contenders.append(Contender(ANOMALY, anomaly))
    rows = measure(
        contenders, rounds=rounds or usual, units_per_burst=steps, clock=time.process_time
    )
    worst = {mode: most for mode, (_, most) in GOALS.items()}
    return Benchmark(
        title=f"Audit of a training step: {name}",
        command=COMMAND,
        unit="step (CPU)",
        rows=rows,
        goal=", ".join(f"{mode} at most {ratio}" for mode, ratio in worst.items()),
        met=all(row.ratio <= worst.get(row.name, math.inf) for row in rows),
    )


def _means(benchmarks: list[Benchmark]) -> Benchmark:
    rows = []
    for mode in [BARE, *OPTIONS, ANOMALY]:
        found = [row for each in benchmarks for row in each.rows if row.name == mode]
        ratio = math.exp(sum(math.log(row.ratio) for row in found) / len(found))
        milliseconds = sum(row.milliseconds for row in found)
        low, high = min(row.ratio for row in found), max(row.ratio for row in found)
        rows.append(Row(mode, milliseconds, ratio, low, high))
    most = {mode: goal[0] for mode, goal in GOALS.items()}
    return Benchmark(
        title="Geometric mean over the subjects (the quartiles here: least and greatest)",
        command=COMMAND,
        unit="step of each (CPU)",
        rows=tuple(rows),
        goal=", ".join(f"{mode} at most {ratio}" for mode, ratio in most.items()),
        met=all(row.ratio <= most.get(row.name, math.inf) for row in rows),
    )


def _per_op(*, rounds: int | None) -> Benchmark:
    """Time chains of small ops: the cost that an audit adds to each must not grow."""
    rows = []
    added = []
    for ops in (30, 300, 3000):
        x = torch.randn(64, requires_grad=True)

        def chain(x: torch.Tensor = x, ops: int = ops) -> None:
            y = x
            for _ in range(ops):
                y = y.tanh()
            y.sum().backward()

        repeats = 6000 // ops
        session = gs.audit(report=False)
        # So many backwards of a program without steps count as its first.
        _burst(session, chain, 64)
        bare, audited = measure(
            [
                Contender(f"{ops} ops", partial(_burst, contextlib.nullcontext(), chain, repeats)),
                Contender(f"{ops} ops, audited", partial(_burst, session, chain, repeats)),
            ],
            rounds=rounds or 15,
            units_per_burst=repeats * ops,
            clock=time.process_time,
        )
        rows += [bare, audited]
        # Of the bare op in the same rounds, as the machine's speed changes from case to case.
        added.append(audited.ratio - bare.ratio)
    return Benchmark(
        title="Cost per op of a step of 30, 300 and 3,000 small ops",
        command=COMMAND,
        unit="op (CPU)",
        rows=tuple(rows),
        goal="what 3,000 ops add to their ratio at most 1.3 times what 300 ops add to theirs",
        met=added[2] <= 1.3 * added[1],
    )


def _peak(name: str, mode: str) -> float:
    """Return the peak memory in MiB of a fresh process that runs six steps."""
    argv = [sys.executable, "-m", "benchmarks.audit_subjects", "--peak", name, mode]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def _print_peak(name: str, mode: str) -> None:
    step = SUBJECTS[name][0]()
    session = (
        gs.audit(report=False, **OPTIONS[mode]) if mode in OPTIONS else contextlib.nullcontext()
    )
    _burst(session, step, 6)
    # The kernel's own mark: getrusage's is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    marks = dict(line.split(":", 1) for line in status.splitlines())
    print(int(marks["VmHWM"].split()[0]) / 1024)


def _memory() -> Benchmark:
    rows = []
    for name in ("ResNet", "transformer"):
        bare = _peak(name, BARE)
        rows.append(Row(f"{name}, {BARE}", bare, 1.0, 1.0, 1.0))
        for mode in ("default", "checksums every step"):
            peak = _peak(name, mode)
            rows.append(Row(f"{name}, {mode}", peak, peak / bare, peak / bare, peak / bare))
    return Benchmark(
        title="Peak memory of a process (MiB in the place of ms)",
        command=COMMAND,
        unit="process",
        rows=tuple(rows),
        goal=f"at most {MOST_MEMORY} times the bare process",
        met=all(row.ratio <= MOST_MEMORY for row in rows),
    )


def run(*, rounds: int | None = None) -> list[Benchmark]:
    """Run every table, one thread."""
    torch.set_num_threads(1)
    timed = [_time(name, rounds=rounds) for name in SUBJECTS]
    return [*timed, _means(timed), _per_op(rounds=rounds), _memory()]


def main() -> int:
    """Print every table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, help="fewer rounds, for a quick look")
    parser.add_argument("--peak", nargs=2, metavar=("SUBJECT", "MODE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        _print_peak(*arguments.peak)
        return 0
    benchmarks = run(rounds=arguments.rounds)
    if arguments.json:
        tables = [asdict(benchmark) for benchmark in benchmarks]
        json.dump({"machine": machine(), "benchmarks": tables}, sys.stdout, indent=2)
        print()
    else:
        print("\n\n".join(map(as_markdown, benchmarks)))
    return 0 if all(benchmark.met for benchmark in benchmarks) else 1


if __name__ == "__main__":
    sys.exit(main())
