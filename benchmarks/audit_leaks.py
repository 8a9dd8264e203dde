"""Leaks that an audit finds and owners that it names, and its own memory over a long loop."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import TYPE_CHECKING

import torch
from torch import nn

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command
from tests.auditing.leaks import (  # noqa: F401 - they fill the bank
    kinds,
    kinds_in_libraries,
    look_alikes,
)
from tests.auditing.leaks.bank import LEAKS, LOOK_ALIKES, STEPS

if TYPE_CHECKING:
    import argparse

    from gradcheck_suite.auditing.session import Session
    from tests.auditing.leaks.bank import Leak

_WARM_UP = 2_000
_STEPS = 10_000
_MOST_GROWTH = 64 * 1024


def run(arguments: argparse.Namespace) -> list[Scores]:
    """Go through the bank, then through the long loop."""
    results = [_bank(show_misses=arguments.misses)]
    if not arguments.bank_only:
        results.append(_memory(arguments.steps))
    return results


def _bank(*, show_misses: bool) -> Scores:
    found = named = silent = 0
    twins = [leak for leak in LEAKS.values() if leak.repaired]
    for leak in LEAKS.values():
        session = _of(leak, repaired=False)
        hits = [finding for finding in session.findings if finding.code in leak.codes]
        is_named = any(leak.owner in finding.message for finding in hits)
        found += bool(hits)
        named += is_named
        if show_misses and not is_named:
            print(f"{leak.name}: {[finding.message for finding in session.findings]}", flush=True)
    for leak in twins:
        session = _of(leak, repaired=True)
        silent += not session.findings
        if show_misses and session.findings:
            print(f"{leak.name}, repaired: {session.findings}", flush=True)
    quiet = 0
    for name, loop in LOOK_ALIKES.items():
        session = gs.audit(report=False)
        loop(session)
        quiet += not session.findings
        if show_misses and session.findings:
            print(f"{name}: {session.findings}", flush=True)
    kinds_ = len(LEAKS)
    met = (
        found >= 0.95 * kinds_
        and named >= 0.9 * kinds_
        and silent == len(twins)
        and quiet == len(LOOK_ALIKES)
    )
    return Scores(
        title=f"Audit: graphs that are kept, after {STEPS} to 5 steps",
        command="python -m benchmarks.audit_leaks",
        columns=("", "of", "count", "share"),
        rows=(
            ("leaks found", kinds_, found, found / kinds_),
            ("owners named", kinds_, named, named / kinds_),
            ("repaired twins silent", len(twins), silent, silent / len(twins)),
            ("look-alikes silent", len(LOOK_ALIKES), quiet, quiet / len(LOOK_ALIKES)),
        ),
        goal="95 % of the leaks found, 90 % of the owners named, nothing said of the others",
        met=met,
    )


def _of(leak: Leak, *, repaired: bool) -> Session:
    session = gs.audit(report=False)
    leak.run(session, torch.Tensor.detach if repaired else lambda tensor: tensor)
    return session


def _memory(steps: int) -> Scores:
    """Measure what is allocated by Python between the end of a warm-up and the end of the loop."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    batch = torch.randn(4, 8)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            net(batch).pow(2).mean().backward()
            optimizer.step()

    def allocated() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    rows = []
    with gs.audit(net, optimizer, report=False) as session:
        train(_WARM_UP)
        tracemalloc.start()
        before = allocated()
        part = max(steps // 4, 1)
        for done in range(part, steps + 1, part):
            train(part)
            rows.append((f"after {done:,} steps", f"{(allocated() - before) / 1024:.1f}"))
        growth = allocated() - before
        tracemalloc.stop()
    clean = not session.findings
    return Scores(
        title="Audit: its own memory over a long clean loop",
        command="python -m benchmarks.audit_leaks",
        columns=("", "KiB more than after the warm-up"),
        rows=tuple(rows),
        goal=f"no finding, and no more than {_MOST_GROWTH // 1024} KiB",
        met=clean and growth <= _MOST_GROWTH,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--misses", action="store_true", help="tell what was missed")
    parser.add_argument("--bank-only", action="store_true", help="leave the long loop out")
    parser.add_argument("--steps", type=int, default=_STEPS, help="of the long loop")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _add_options))
