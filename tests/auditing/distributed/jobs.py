"""Runs of a program on several ranks, as launchers start them, in processes that are warm."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tests import warm_python

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
"""
_TAIL = """
dist.destroy_process_group()
"""


def start_job(
    words: Sequence[object], *, ranks: int = 2, cwd: Path, store: dist.TCPStore | None = None
) -> list[warm_python.Process]:
    """Start one process for each rank; with ``store``, as torchrun does, which serves it itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    if store is not None:
        common |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common.pop("PYTEST_CURRENT_TEST", None)
    return [
        warm_python.start(
            words, cwd=cwd, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]


def run_job(
    words: Sequence[object],
    *,
    timeout: float = 60,
    launcher_serves: bool = False,
    **options: Any,
) -> list[subprocess.CompletedProcess[str]]:
    """Run a job to its end and return what each rank has said and ended with."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = start_job(words, store=store if launcher_serves else None, **options)
    with ThreadPoolExecutor(len(processes)) as waiting:
        said = list(waiting.map(lambda each: each.communicate(timeout), processes))
    return [
        subprocess.CompletedProcess(process.args, process.returncode or 0, out, err)
        for process, (out, err) in zip(processes, said, strict=True)
    ]


def audit_words(*options: object) -> list[str]:
    """Return what audits train.py and writes report.json."""
    words = ["-m", "gradcheck_suite", "audit", "--output-format", "json"]
    return [*words, "--output-file", "report.json", *map(str, options), "train.py"]


def audit_job(
    program: str, folder: Path, *options: object, whole: bool = False, **running: Any
) -> tuple[dict[str, Any], list[subprocess.CompletedProcess[str]]]:
    """Audit ``program`` on two ranks; return the report of all, as JSON, and the runs.

    Unless it is ``whole``, the program runs in a process group and knows its ``rank``.
    """
    source = program if whole else HEAD + program + _TAIL
    (folder / "train.py").write_text(source, encoding="utf-8")
    runs = run_job(audit_words(*options), cwd=folder, **running)
    assert not any("internal error" in str(run.stderr) for run in runs), runs
    report = folder / "report.json"
    return json.loads(report.read_text()) if report.exists() else {}, runs


def line_of(program: str, text: str, *, whole: bool = False) -> int:
    """Return the number of the line with this text in the file that the program is run from."""
    source = program if whole else HEAD + program
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)
