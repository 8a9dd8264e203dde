"""What it costs to find out who keeps graphs, in processes with millions of objects.

Each row is a process of its own: a loop that keeps its losses, bare and audited, while so many
lists are alive. Searches are to take no more than two seconds, or 5 % of the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    import argparse

_MILLIONS = (1, 3, 10)
_STEPS = 2_000
_ALLOWED = 2.0
_FOR_A_MILLION = 0.2
"""So many seconds more, for what can't be interrupted: a list of all objects, a collection."""


def run(arguments: argparse.Namespace) -> list[Scores]:
    """Run a process for each number of objects."""
    rows = []
    met = True
    for millions in arguments.millions:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.owner_search", "--inside", str(millions)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        figures = json.loads(done.stdout)
        bare, audited, told, named = (figures[k] for k in ("bare", "audited", "told", "named"))
        searched = figures["searched"]
        met = met and told and searched <= _ALLOWED + _FOR_A_MILLION * millions
        rows.append(
            (
                f"{millions} million objects",
                f"{bare:.1f}",
                f"{audited:.1f}",
                f"{searched:.1f}",
                "yes" if told else "no",
                "yes" if named else "no",
            )
        )
    return [
        Scores(
            title=f"Audit: who keeps the graphs of {_STEPS:,} steps, among millions of objects",
            command="python -m benchmarks.owner_search",
            columns=(
                "",
                "bare, CPU s",
                "audited, CPU s",
                "of it searching",
                "leak told",
                "holder named",
            ),
            rows=tuple(rows),
            goal=(
                f"the leak is told, and searches take no more than {_ALLOWED:g} s, and for what "
                f"can't be interrupted {_FOR_A_MILLION:g} s for each million of objects"
            ),
            met=met,
        )
    ]


def _train(steps: int, losses: list[torch.Tensor]) -> float:
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batch = torch.randn(32, 64)
    began = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # gradcheck: ignore[graph-kept] the leak to be found
    return time.process_time() - began


def _inside(millions: int) -> None:
    torch.set_num_threads(1)
    others: list[list[object]] = [[] for _ in range(millions * 1_000_000)]
    _train(50, [])
    bare = _train(_STEPS, [])
    losses: list[torch.Tensor] = []
    with gs.audit() as session:
        began = time.process_time()
        _train(_STEPS, losses)
    audited = time.process_time() - began
    messages = [each.message for each in session.findings if each.code == "GCS201"]
    print(
        json.dumps(
            {
                "bare": bare,
                "audited": audited,
                "searched": session._recorder.heap.seconds,  # noqa: SLF001 - no figure of the report's
                "told": bool(messages),
                "named": any("`losses`" in each for each in messages),
                "objects": len(others),
            }
        )
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--millions", type=int, nargs="*", default=_MILLIONS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _inside(int(sys.argv[2]))
    else:
        sys.exit(run_as_command(run, _add_options))
