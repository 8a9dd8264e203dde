"""Long runs, large models, many ranks: what grows with them, and what must not.

Steps: one loop, audited for as long as is asked for. Parameters: models on the meta device, of up
to a billion. Ranks: each hands in what it has found and noted of its steps, to a store in this
process, and rank 0 tells of all; no rank runs.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command
from gradcheck_suite.auditing.distributed.channel import Channel
from gradcheck_suite.auditing.distributed.rank_reports import RankReports
from gradcheck_suite.auditing.distributed.step_records import StepRecord, is_recorded
from gradcheck_suite.findings import Report

if TYPE_CHECKING:
    import argparse

__all__ = ["run", "simulate", "train_on_meta", "train_on_plain"]

_STEPS = 100_000
_WINDOWS = 10
_GROWTH = 8_000.0
"""Kilobytes that the audit may hold more after the last tenth of the steps than after the first: it
keeps a bounded set of the numbers of graph nodes, which fills in some 100,000 steps."""
_WIDTHS = ((64, 488), (256, 975), (1024, 987))
"""Linear layers, and their width, of the models on the meta device: 15 million to a billion
parameters, in 128 to 2,048 tensors."""
_RANKS = (8, 64, 1000)
_STEPS_OF_A_RANK = 1_000
_PARTED = 7
"""The rank that differs, from its fifth step on."""
_FLAT = 1.5
"""How many times the least cost of a step, a parameter or a rank the greatest may be."""


@dataclass
class Store:
    """A store as torch.distributed has one, in this process; counts what goes in and out."""

    values: dict[str, bytes] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    written: int = 0
    read: int = 0

    def set(self, key: str, value: bytes) -> None:
        """Write."""
        self.calls["set"] += 1
        self.written += len(value)
        self.values[key] = value

    def get(self, key: str) -> bytes:
        """Read."""
        self.calls["get"] += 1
        self.read += len(self.values[key])
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        """Return whether all of these are there."""
        self.calls["check"] += 1
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Count."""
        self.calls["add"] += 1
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total


class _Direct:
    """What a rank writes, without a thread for each of a thousand."""

    trouble = None

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, keys: list[str], *, seconds: float) -> dict[str, bytes]:  # noqa: ARG002
        return {key: self._store.get(key) for key in keys if self._store.check([key])}

    def flush(self, *, seconds: float) -> bool:  # noqa: ARG002
        return True

    def add(self, key: str, *, seconds: float) -> int:  # noqa: ARG002
        return self._store.add(key, 1)


class _Rank:
    """A job as one rank knows it, and what that has found."""

    def __init__(self, rank: int, size: int, channel: Any) -> None:
        self.rank, self.size = rank, size
        self.told: dict[int, dict[int, str]] = {}
        self._channel = channel

    def channel(self) -> Any:
        return self._channel

    def why_alone(self) -> None:
        return None

    def file(self) -> None:
        return None

    def so_far(self) -> Report:
        return Report("gradcheck-suite audit", summary={"steps": _STEPS_OF_A_RANK})


def simulate(ranks: int, steps: int = _STEPS_OF_A_RANK) -> tuple[Store, Report, float]:
    """Let so many ranks hand in what they have, and rank 0 tell of all.

    Returns:
        The store, the report, and the CPU seconds that rank 0 took at its end.
    """
    store = Store()
    first = _Rank(0, ranks, Channel(lambda: store, ""))
    jobs = [first, *(_Rank(rank, ranks, _Direct(store)) for rank in range(1, ranks))]
    told = [step for step in range(steps) if is_recorded(step)]
    all_reports = [RankReports(cast("Any", job), job.so_far, seconds=60.0) for job in jobs]
    for job, reports in zip(jobs, all_reports, strict=True):
        reports.begin()
        for step in told:
            key = f"step/0/{step}"
            job.channel().put(f"{job.rank}/{key}", _record(job.rank, step).packed())
            job.told.setdefault(0, {})[step] = key
        if job.rank:
            reports.conclude(job.so_far(), failed=False)
    first.channel().flush(seconds=60.0)
    began = time.process_time()
    report = all_reports[0].conclude(first.so_far(), failed=False)
    took = time.process_time() - began
    assert report is not None
    return store, report, took


def _record(rank: int, step: int) -> StepRecord:
    shift = 1 << 40 if rank == _PARTED and step >= 5 else 0
    sums = [(step << 48) + group * 0x9E3779B97F4A7C15 % (1 << 40) + shift for group in range(64)]
    site = {"path": "train.py", "line": 7, "function": "train", "cell": None}
    return StepRecord(
        layout=1,
        before=sums,
        gradients=[each + 1 for each in sums],
        after=[each + 2 for each in sums],
        names=[f"model.layers[{group}].weight" for group in range(64)] if not step else (),
        settings=[{"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-8}],
        backwards=step + 1,
        exchanged=step,
        reduced=list(range(64)),
        site={**site, "column": None, "end_line": None, "end_column": None},
    )


def train_on_plain(steps: int, windows: int = _WINDOWS) -> list[tuple[float, float]]:
    """Train a small network under an audit.

    Returns:
        For each part of the run the CPU microseconds per step, and the kilobytes of Python's that
        are held at its end.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    seen = []
    with gs.audit(model, report=False):
        for _ in range(windows):
            began = time.process_time()
            for _ in range(steps // windows):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
            spent = (time.process_time() - began) / (steps // windows)
            gc.collect()
            seen.append((1e6 * spent, sys.getallocatedblocks() / 16.0))
    return seen


def train_on_meta(layers: int, width: int, steps: int = 8) -> tuple[int, float, float]:
    """Train on the meta device, bare and audited.

    Returns:
        The number of parameters, and the CPU microseconds that a step takes for each tensor of
        parameters, bare and audited.
    """
    spent = []
    total = 0
    for audited in (False, True):
        with torch.device("meta"):
            model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
            x = torch.randn(2, width)
        total = sum(each.numel() for each in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        context = gs.audit(model, report=False) if audited else torch.enable_grad()
        with context:
            for step in count():
                if step == 5:
                    began = time.process_time()
                if step == steps + 5:
                    break
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            spent.append(1e6 * (time.process_time() - began) / steps / (2 * layers))
    return total, spent[0], spent[1]


def run(arguments: argparse.Namespace) -> list[Scores]:
    """Measure all three."""
    torch.set_num_threads(1)
    return [_of_steps(arguments.steps), _of_parameters(), _of_ranks()]


def _of_steps(steps: int) -> Scores:
    seen = train_on_plain(steps)
    times, held = zip(*seen, strict=True)
    later = times[1:]
    rows = [
        (f"{(index + 1) * steps // _WINDOWS:,}", f"{spent:.0f}", f"{kept - held[0]:+.0f}")
        for index, (spent, kept) in enumerate(seen)
    ]
    return Scores(
        title=f"Audit: {steps:,} steps",
        command="python -m benchmarks.large_jobs",
        columns=("steps until then", "CPU us per step", "kB more than after the first"),
        rows=tuple(rows),
        goal=f"steps within {_FLAT:g} times each other, and no more than {_GROWTH:g} kB more",
        met=max(later) <= _FLAT * min(later) and held[-1] - held[0] <= _GROWTH,
    )


def _of_parameters() -> Scores:
    rows, added = [], []
    for layers, width in _WIDTHS:
        total, bare, audited = train_on_meta(layers, width)
        added.append(audited - bare)
        rows.append(
            (f"{total:,}", f"{2 * layers:,}", f"{bare:.1f}", f"{audited:.1f}", f"{added[-1]:.1f}")
        )
    return Scores(
        title="Audit: parameters on the meta device",
        command="python -m benchmarks.large_jobs",
        columns=(
            "parameters",
            "tensors",
            "bare, CPU us per tensor and step",
            "audited",
            "added",
        ),
        rows=tuple(rows),
        goal=f"what is added per tensor grows by no more than {_FLAT:g} times",
        met=max(added) <= _FLAT * added[0],
    )


def _of_ranks() -> Scores:
    rows, each, found = [], [], []
    for ranks in _RANKS:
        store, report, took = simulate(ranks)
        each.append(took / ranks)
        found.append([one.evidence["ranks"] for one in report.findings] == [[_PARTED]])
        calls = sum(store.calls.values())
        rows.append(
            (
                f"{ranks:,}",
                f"{store.calls['set'] / ranks:.0f}",
                f"{store.written / ranks / 1e3:.0f}",
                f"{calls - store.calls['set']:,}",
                f"{store.read / 1e6:.1f}",
                f"{took:.2f}",
            )
        )
    return Scores(
        title=f"Audit: ranks of {_STEPS_OF_A_RANK:,} steps each, one of which parts",
        command="python -m benchmarks.large_jobs",
        columns=(
            "ranks",
            "messages of each",
            "kB of each",
            "calls of rank 0 at its end",
            "MB that it reads",
            "CPU s",
        ),
        rows=tuple(rows),
        goal=f"the rank is told, and the time per rank stays within {_FLAT:g} times each other",
        met=all(found) and max(each) <= _FLAT * min(each),
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=_STEPS)


if __name__ == "__main__":
    sys.exit(run_as_command(run, _add_options))
