"""GCS106 at run time: results assigned slice by slice, counted in the graph that backward uses."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.severity import Severity


def decode(steps, width):
    cell = torch.nn.Linear(width, width)
    state = torch.zeros(width)
    out = torch.zeros(steps, width)
    for step in range(steps):
        state = cell(state).tanh()
        out[step] = state  # <- here
    return out


@pytest.mark.parametrize(("width", "severity"), [(8, Severity.NOTE), (600, Severity.WARNING)])
def test_a_tensor_filled_slice_by_slice(audited, only, line_of, width, severity):
    def loop():
        for _ in range(3):
            decode(50, width).sum().backward()

    finding = only(audited(loop), "GCS106")
    assert finding.location.line == line_of(decode)
    assert finding.severity is severity
    assert f"`out` (50x{width}) was assigned to slice by slice, 50 times" in finding.message
    assert finding.evidence["elements_copied"] == 50 * 50 * width


def stacked():
    cell = torch.nn.Linear(4, 4)
    state, out = torch.zeros(4), []
    for _ in range(50):
        state = cell(state).tanh()
        out.append(state)
    torch.stack(out).sum().backward()


def a_short_loop():
    decode(8, 4).sum().backward()


def never_used_in_a_backward():
    kept = decode(50, 4).detach()
    weight = torch.ones(4, requires_grad=True)
    (kept * weight).sum().backward()


def without_gradients():
    with torch.no_grad():
        out = decode(50, 4)
    weight = torch.ones(4, requires_grad=True)
    (out * weight).sum().backward()


def constants():
    out = torch.randn(50, 4, requires_grad=True) * 2
    for row in range(40):
        out[row] = 0.0
    out.sum().backward()


def one_assignment_each_to_many_tensors():
    scale = torch.ones(4, requires_grad=True)
    total = torch.zeros(())
    for _ in range(50):
        out = torch.zeros(2, 4)
        out[0] = scale * 2
        total = total + out.sum()
    total.backward()


@pytest.mark.parametrize(
    "loop",
    [
        stacked,
        a_short_loop,
        never_used_in_a_backward,
        without_gradients,
        constants,
        one_assignment_each_to_many_tensors,
    ],
)
def test_nothing_is_said(audited, loop):
    assert [finding for finding in audited(loop).findings if finding.code == "GCS106"] == []
