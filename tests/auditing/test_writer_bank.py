"""The line that overwrote a saved tensor is named, whoever writes; see the bank in ``writers``."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite.auditing.write_tracing import tracer
from tests.auditing.writers import (  # noqa: F401 - they fill the bank
    memory_routes,
    places,
    torch_routes,
)
from tests.auditing.writers.bank import CASES

ONCE = {"steps": 1, "watch_writers": "from_start"}
LOOP = {"steps": 3}


# The watch makes room for the trace function of a coverage tool.
pytestmark = pytest.mark.usefixtures("untraced")


def findings_of(build, *, steps, fixed=False, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = build(fixed)
    with warnings.catch_warnings(), gs.audit(**options) as session:
        warnings.simplefilter("ignore")
        for _ in range(steps):
            with contextlib.suppress(RuntimeError):  # torch's own, on some routes
                step()
    assert not [line for line in session.report.not_covered if "bug in" in line]
    assert sys.gettrace() is None
    return [finding for finding in session.findings if finding.code.startswith("GCS10")]


def line_of(finding):
    return os.path.realpath(finding.location.path), finding.location.line


@pytest.mark.parametrize("options", [ONCE, LOOP], ids=["once", "loop"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=4)
def test_the_line_that_wrote_is_named(name, options):
    case = CASES[name]
    (finding,) = findings_of(case.build, **options)
    path, line = case.line()
    assert line_of(finding) == (os.path.realpath(path), line), finding.message
    assert finding.evidence["writer"] is not None
    assert "not seen" not in finding.message


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=4)
def test_nothing_is_said_of_a_write_after_backward(name):
    assert findings_of(CASES[name].build, fixed=True, steps=2, watch_writers="from_start") == []


def test_the_bank_is_large_enough():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", ["numpy_slice", "data_assigned"])
def test_without_a_watch_the_writer_stays_unknown(name):
    (finding,) = findings_of(CASES[name].build, steps=3, watch_writers="never")
    assert "the writer was not seen" in finding.message
    assert 'watch_writers="from_start"' in finding.hint


@pytest.fixture
def alone(monkeypatch):
    """Take no thread for one that writes: some versions of torch leave a pool for compiling."""
    monkeypatch.setattr(tracer, "another_may_have_written", lambda _follows: False)


@pytest.mark.usefixtures("alone")
def test_the_words():
    (finding,) = findings_of(CASES["numpy_slice"].build, **ONCE)
    assert "overwritten by `array[1:3] = array[1:3] + 1` at memory_routes.py:" in finding.message
    (finding,) = findings_of(CASES["call_over_several_lines"].build, **ONCE)
    assert "overwritten by `np.add(` at places.py:" in finding.message


@pytest.mark.usefixtures("alone")
def test_one_line_that_overwrites_several_tensors_is_one_finding():
    (finding,) = findings_of(CASES["several_tensors_by_one_line"].build, **ONCE)
    assert finding.evidence["tensors"] == 3
    assert "(and 2 more like it)" in finding.message


def test_one_tensor_of_each_backward_is_one_wherever_it_lies():
    """Freed memory is given out again, or is not: how often, says nothing."""
    for options in (ONCE, LOOP):
        (finding,) = findings_of(CASES["in_place_method"].build, **options)
        assert finding.evidence["tensors"] == 1
        assert "more like it" not in finding.message


def test_two_lines_that_overwrite_alike_tensors_are_two_findings():
    def build(_):
        layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

        def step():
            h = torch.ones(2, 3)
            for layer in layers:
                h = layer(h).tanh()
            layers[1].weight.detach().numpy()[0] += 1
            layers[2].weight.detach().numpy()[0] += 1
            h.sum().backward()

        return step

    for options in (ONCE, LOOP):
        found = findings_of(build, **options)
        assert len({line_of(finding) for finding in found}) == 2, options


def test_shapes_that_change_from_turn_to_turn():
    def build(_):
        import numpy as np

        layer = torch.nn.Linear(3, 1)
        turn = iter(range(1, 100))

        def step():
            array = np.ones((next(turn), 3), dtype=np.float32)
            loss = layer(torch.from_numpy(array)).sum()
            array += 1  # <- written
            loss.backward()

        return step

    findings = findings_of(build, steps=20, checksum_every=1)
    named = [finding for finding in findings if finding.evidence["writer"] is not None]
    assert {finding.evidence["writer"] for finding in named} == {"`array += 1`"}


def test_a_corruption_that_comes_late_and_seldom_is_followed_up():
    def build(_):
        import numpy as np

        array = np.ones((2, 3), dtype=np.float32)
        layer = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        turn = iter(range(1, 100))

        def step():
            optimizer.zero_grad()
            loss = layer(torch.from_numpy(array)).sum()
            if next(turn) in (6, 8):
                array[0] += 1  # <- written
            loss.backward()
            optimizer.step()

        return step

    (finding,) = findings_of(build, steps=12, checksum_every=1)
    assert finding.evidence["writer"] == "`array[0] += 1`"
    assert finding.evidence["count"] == 2


@pytest.mark.parametrize("saved", range(4))
def test_a_line_that_writes_into_one_view_after_another_is_named_for_each(line_of, saved):
    def step():
        base = torch.rand(4, 3)
        weight = torch.rand(3, requires_grad=True)
        loss = (weight * base[saved]).sum()
        for row in range(4):
            # Each view may be the object that the one before has been.
            base[row].div_(2)  # <- here
        loss.backward()

    with gs.audit() as session, pytest.raises(RuntimeError, match="modified by an inplace"):
        step()
    (finding,) = session.findings
    assert finding.location.line == line_of(step)


@pytest.mark.parametrize("saved", range(4))
def test_an_assignment_that_runs_again_after_a_save_is_named(line_of, saved):
    def step():
        rows, weight = torch.zeros(5, 3), torch.rand(3, requires_grad=True)
        losses = []
        for row in range(5):
            rows[row] = 1.0  # <- here
            if row == saved:
                losses.append((weight * rows).sum())
        losses[0].backward()

    options = {"watch_writers": "never"}
    with gs.audit(**options) as session, pytest.raises(RuntimeError, match="modified by an in"):
        step()
    (finding,) = session.findings
    assert finding.location.line == line_of(step)


def test_a_write_is_known_while_no_more_than_500_other_tensors_are_written(line_of):
    def step():
        others = [torch.zeros(1) for _ in range(150 + 500)]
        for other in others[:150]:
            other.add_(1)
        saved = torch.rand(3, requires_grad=True).exp()
        loss = saved.exp()
        saved.mul_(2)  # <- here
        for other in others[150:]:
            other.add_(1)
        loss.sum().backward()

    options = {"watch_writers": "never"}
    with gs.audit(**options) as session, pytest.raises(RuntimeError, match="modified by an in"):
        step()
    (finding,) = session.findings
    assert finding.location.line == line_of(step)


def test_an_operator_that_does_not_know_its_operand_has_not_written(line_of):
    class Other:
        def __radd__(self, tensor):
            return tensor

    def step():
        weight = torch.rand(3, requires_grad=True)
        saved = weight.exp()
        saved += Other()
        saved.mul_(2)  # <- here
        saved.sum().backward()

    with gs.audit() as session, pytest.raises(RuntimeError, match="modified by an inplace"):
        step()
    (finding,) = session.findings
    assert finding.location.line == line_of(step)
