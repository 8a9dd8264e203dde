"""Reading a value stops the queue of an accelerator: how often that is done, and what is found.

There is none here. ``checksums.READS_MEMORY`` sends the CPU's tensors the way of any other
device's.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.saved_tensors import checksums
from gradcheck_suite.findings import Severity
from tests.auditing.loops.bank import BUGGY, CLEAN
from tests.auditing.test_loop_bank import run_quietly
from tests.auditing.test_writer_bank import LOOP, ONCE, findings_of, line_of
from tests.auditing.writers.bank import CASES

STEPS = 200
FIRST = 5
READERS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(checksums, "READS_MEMORY", False)


@pytest.fixture
def reads(monkeypatch):
    """Count what the audit's own lines read, by the step that a list holds."""
    counts: Counter[int] = Counter()
    step = [0]

    def counted(function):
        def read(*arguments, **options):
            caller = sys._getframe(1).f_code.co_filename
            counts[step[0]] += "gradcheck_suite" in caller
            return function(*arguments, **options)

        return read

    for name in READERS:
        monkeypatch.setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
    for name in ("equal", "allclose"):
        monkeypatch.setattr(torch, name, counted(getattr(torch, name)))
    return counts, step


def train(step, **options):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.BatchNorm1d(256), nn.Dropout(0.1), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, labels = torch.randn(128, 64), torch.randint(0, 10, (128,))
    with gs.audit(**options) as session:
        for step[0] in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    assert session.findings == ()


def test_an_audit_reads_less_than_one_value_a_step(reads):
    counts, step = reads
    train(step)
    assert counts[0] > 0
    assert sum(counts.values()) <= 0.5 * STEPS
    later = [counts[number] for number in range(FIRST, STEPS)]
    # The loss, all gradients, and which of them are zeros, where their turns fall together.
    assert max(later) <= 3
    assert sum(later) <= 0.15 * len(later)


@pytest.mark.slow
def test_contents_of_all_saved_tensors_are_read_at_once(reads):
    counts, step = reads
    train(step, checksum_every=1)
    later = [counts[number] for number in range(FIRST, STEPS)]
    assert min(later) == 1
    assert max(later) <= 4


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("options", [ONCE, LOOP], ids=["once", "loop"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=5)
def test_the_line_that_wrote_is_named(name, options):
    case = CASES[name]
    (finding,) = findings_of(case.build, **options)
    # This thread compares for longer, and may see first what another one's line did meanwhile.
    told = "a thread that ran beside it" in finding.message
    assert line_of(finding)[1] == case.line()[1] or told, finding.message


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("untraced")
@pytest.mark.sampled(every=5)
def test_nothing_is_said_of_a_write_after_backward(name):
    assert findings_of(CASES[name].build, fixed=True, steps=2, watch_writers="from_start") == []


@pytest.mark.parametrize("name", BUGGY)
@pytest.mark.sampled(every=5)
def test_mistakes_are_found(audited, name):
    code, loop = BUGGY[name]
    session = audited(lambda: run_quietly(loop))
    assert code in {finding.code for finding in session.findings}, session.findings


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_said_of_correct_loops(audited, name):
    session = audited(lambda: run_quietly(CLEAN[name]))
    assert session.report.at_least(Severity.WARNING) == ()


def test_no_more_memory_is_held_than_allowed(monkeypatch):
    from gradcheck_suite.auditing.saved_tensors import pack_hooks

    monkeypatch.setattr(pack_hooks, "_HELD", 0)
    weight = torch.ones(9000, requires_grad=True)
    with gs.audit(checksum_every=1) as session:
        kept = weight.exp()
        loss = (kept * kept).sum()
        kept.data.mul_(2)
        loss.backward()
    assert {finding.code for finding in session.findings} == {"GCS104"}
