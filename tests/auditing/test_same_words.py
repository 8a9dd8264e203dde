"""What is found is told in the same words in each run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradcheck_suite as gs
from tests.auditing.loops.bank import BUGGY
from tests.auditing.test_loop_bank import run_quietly

_ROOT = Path(__file__).parents[2]

_TOLD = """
import sys

import torch

from benchmarks import bank_findings

torch.set_num_threads(1)
every = int(sys.argv[1])
for bank in ("loops", "leaks", "writers"):
    subjects = [each for each in bank_findings.BANKS[bank]() if each[0].startswith("wrong ")]
    for name, run in subjects[::every]:
        torch.manual_seed(0)
        print(name, *map(bank_findings._as_text, run()), sep="\\n  ")
"""


@pytest.mark.parametrize(
    "loop", ["agent_whose_policy_is_made_again_for_the_next_task", "second_fold_trains_a_copy"]
)
def test_parameters_are_named_in_their_order(loop):
    """Also those that have the identities of others, which an earlier model had."""
    with gs.audit(report=False) as session:
        run_quietly(BUGGY[loop][1])
    (finding,) = (each for each in session.findings if each.code == "GCS307")
    names = "`model[0].weight`, `model[0].bias`, `model[2].weight`, `model[2].bias`"
    assert names in finding.message


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 40])
def test_two_processes_tell_the_same(every):
    first, second = (_told(every, seed) for seed in ("1", "2"))
    assert first == second
    assert len(first) > 200 / every


def _told(every, hash_seed):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TOLD, str(every)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
