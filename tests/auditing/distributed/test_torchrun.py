"""Jobs that torchrun itself starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from gradcheck_suite.auditing.distributed.job import Job
from tests.auditing.distributed.jobs import HEAD, line_of

pytestmark = pytest.mark.slow  # each rank loads torch

PROGRAM = """
def train():
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01 * (1 + (rank == 2)))  # another rate
    history = []
    for _ in range(6):
        opt.zero_grad()
        loss = model(torch.randn(4, 4)).pow(2).mean()
        loss.backward()
        opt.step()
        if rank == 1:
            history.append(loss)  # kept
"""
BARE = f"{PROGRAM}\ntrain()\n"
INSIDE = f"""{PROGRAM}
import gradcheck_suite as gs
with gs.audit(report="report.json"):
    train()
"""
END = """
dist.barrier()
if rank == 0:
    open("checkpoint", "w")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("outside", [True, False], ids=["command", "with"])
def test_all_ranks_are_one_report_and_come_to_their_end(tmp_path, outside, ranks):
    program = HEAD + (BARE if outside else INSIDE) + END
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    audit = ["-m", "gradcheck_suite", "audit", "--output-format", "json"]
    own = [*audit, "--output-file", "report.json"] if outside else []
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *words, *own, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == (1 if outside else 0), done.stderr
    assert (tmp_path / "checkpoint").exists()
    report = json.loads((tmp_path / "report.json").read_text())
    told = {each["code"]: (each["line"], each["evidence"]["ranks"]) for each in report["findings"]}
    program = program.removeprefix(HEAD)
    assert told == {
        "GCS201": (line_of(program, "# kept"), [1]),
        "GCS801": (line_of(program, "# another rate"), [2]),
    }
    assert report["summary"]["world_size"] == ranks
    assert report["not_covered"] == []


def test_the_launcher_itself_may_be_what_is_audited(tmp_path):
    program = HEAD + BARE + END
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "gradcheck_suite", "audit", "--output-format", "json", *launched],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (tmp_path / "checkpoint").exists(), done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode, report["summary"]["training_seen"]) == (0, False)
    (line,) = [each for each in report["not_covered"] if "child process" in each]
    assert line.startswith("3 child processes (3 by subprocess), which this audit does not watch")
    assert "`torchrun --no-python gradcheck-suite audit train.py`" in line


def test_a_world_of_another_size_than_the_environment_names_is_told(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    job = Job()
    assert (job.rank, job.size) == (3, 4)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    assert not job.look()
    (line,) = job.remarks()
    assert line.startswith("the environment names rank 3 of 4, the process group rank 0 of 1")
