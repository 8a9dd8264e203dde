"""How soon a page can be used in Chromium: the script has run, and what is in view is drawn.

Pictures of more than 600 boxes draw the rest when the reader gets there.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import gradcheck_suite as gs
from benchmarks.graph_subjects import encoder
from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    from gradcheck_suite.graph import AutogradGraph

GOAL = 1.0
SIZE_GOAL = 1_000_000
ROUNDS = 5


def run() -> Scores:
    """Open pages in a fresh Chromium each time, and read what they note of themselves."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        sys.exit("this benchmark needs Chromium (Debian's package chromium)")
    torch.manual_seed(0)
    rows: list[tuple[str | int | float, ...]] = []
    slowest, largest = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, graph, depth in _graphs():
            path = Path(folder) / "graph.html"
            graph.save(path, depth=depth)
            times = [_ready(browser, path, Path(folder) / "profile") for _ in range(ROUNDS)]
            seconds, size = statistics.median(times), path.stat().st_size
            slowest, largest = max(slowest, seconds), max(largest, size)
            rows.append((name, len(graph.nodes), size, round(seconds, 2), round(max(times), 2)))
    return Scores(
        title="Pages in Chromium, from the start of loading until all that is in view is drawn",
        command="python -m benchmarks.graph_page",
        columns=("page", "nodes", "bytes", "seconds (median of 5)", "slowest"),
        rows=tuple(rows),
        goal=f"at most {GOAL} s and {SIZE_GOAL:,} bytes",
        met=slowest <= GOAL and largest <= SIZE_GOAL,
    )


def _graphs() -> list[tuple[str, AutogradGraph, int | None]]:
    model = encoder(6)
    with gs.record(model) as recording:
        loss = model(torch.randn(2, 10, 64)).sum()
    usual = recording.trace_graph(loss, model=model)
    z = leaf = torch.ones(4, requires_grad=True)
    for step in range(2_500):
        z = z.sin() + (leaf if step % 7 == 3 else z)
    large = gs.trace_graph(z.sum())
    return [
        ("6-layer transformer", usual, None),
        ("6-layer transformer, all open", usual, -1),
        ("5,000 nodes, all open", large, -1),
    ]


def _ready(browser: str, page: Path, profile: Path) -> float:
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={profile}", "--window-size=1366,768", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ,
    )
    found = re.search(r'data-ready-after="(\d+)"', done.stdout)
    if found is None:
        sys.exit(f"the page did not get ready: {done.stderr[-500:]}")
    return int(found[1]) / 1000


if __name__ == "__main__":
    raise SystemExit(run_as_command(run))
