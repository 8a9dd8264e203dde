"""Processes that an audited script starts."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor

import pytest
from torch.utils.data._utils.worker import _worker_loop

from gradcheck_suite.auditing.distributed.children import is_of_user
from gradcheck_suite.reporting.ledger import ledger_title
from tests import warm_python
from tests.auditing.distributed.jobs import audit_words

WORK = """
import os, sys, time
import multiprocessing
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def steps(model, *, clears=True):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        if clears:
            opt.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        opt.step()  # steps
"""
SPAWNED = (
    WORK
    + """
def worker(rank, world, store):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    steps(DDP(nn.Linear(8, 1)), clears=False)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, (2, "file://" + os.path.abspath("store")), nprocs=2)
"""
)
FORKED = (
    WORK
    + """
def worker(number):
    steps(nn.Linear(8, 1), clears=number != 1)

if __name__ == "__main__":
    start = multiprocessing.get_context("fork").Process
    children = [start(target=worker, args=(number,)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(sum(child.exitcode for child in children))
"""
)


def audited(program, folder):
    (folder / "train.py").write_text(program, encoding="utf-8")
    run = warm_python.run(audit_words(), cwd=folder)
    assert "internal error" not in run.stderr, run
    return json.loads((folder / "report.json").read_text()), run


@pytest.mark.slow  # two fresh processes load torch
def test_what_is_spawned_and_trains_together_is_one_report(tmp_path):
    report, run = audited(SPAWNED, tmp_path)
    assert run.returncode == 1
    (finding,) = report["findings"]
    assert (finding["code"], finding["evidence"]["ranks"]) == ("GCS301", [0, 1])
    assert finding["function"] == "steps"
    assert report["not_covered"] == []
    assert report["summary"]["steps"] == 4


@pytest.mark.slow
def test_what_is_forked_is_told_with_the_parents(tmp_path):
    report, run = audited(FORKED, tmp_path)
    assert run.returncode == 1
    assert [each["code"] for each in report["findings"]] == ["GCS301"]
    assert report["not_covered"] == []
    assert report["summary"]["steps"] == 8
    assert report["summary"]["training_seen"]
    # Those of the first child, of all that were watched; the parent has taken none.
    assert report["ledger"]["steps"] == 4
    assert ledger_title(report["ledger"], report["summary"]) == "what happened in 4 of 8 steps"


def test_a_child_that_is_killed_is_not_covered(tmp_path):
    killed = FORKED.replace("steps(nn", "os.kill(os.getpid(), 9); steps(nn").replace(
        "range(2)", "[1]"
    )
    report, run = audited(killed, tmp_path)
    assert run.returncode == 247
    assert report["not_covered"] == [
        "gradients: no backward() ran inside the audit",
        "1 child process of 1, which ended, or run, without a report",
    ]
    assert not report["summary"]["training_seen"]


def test_an_exception_of_a_child_is_as_without_an_audit(tmp_path):
    failing = FORKED.replace("steps(nn", "raise ValueError('bad batch'); steps(nn")
    _, run = audited(failing, tmp_path)
    assert run.returncode == 2
    assert run.stderr.count("ValueError: bad batch") == 2


def test_pools_and_loaders_are_left_alone():
    assert is_of_user(test_pools_and_loaders_are_left_alone)
    assert not is_of_user(_worker_loop)
    assert not is_of_user(ProcessPoolExecutor)
    assert not is_of_user(None)
