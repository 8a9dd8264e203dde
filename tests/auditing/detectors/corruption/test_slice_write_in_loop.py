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


@pytest.mark.parametrize("elements", [20, 60])
def test_assignments_with_nothing_between_are_all_counted(audited, only, line_of, elements):
    def loop():
        scale = torch.ones(elements, requires_grad=True)
        out = torch.zeros(elements)
        for place in range(elements):
            out[place] = scale[place]  # <- here
        out.sum().backward()

    finding = only(audited(loop), "GCS106")
    assert finding.location.line == line_of(loop)
    assert f"`out` ({elements}) was assigned to slice by slice, {elements} times" in finding.message


def test_each_of_two_lines_has_its_own_count(audited):
    def loop():
        scale = torch.ones(40, requires_grad=True)
        out = torch.zeros(40)
        for place in range(20):
            out[place] = scale[place]
            out[place + 20] = scale[place]
        out.sum().backward()

    found = [each for each in audited(loop).findings if each.code == "GCS106"]
    assert [each.evidence["count"] for each in found] == [20, 20]


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
        out[row] = 0.0  # <- here
    out.sum().backward()


def test_constants_cost_as_much_and_are_written_at_once(audited, only, line_of):
    finding = only(audited(constants), "GCS106")
    assert finding.location.line == line_of(constants)
    assert finding.hint == "write them all at once, by an index or by torch.where"
    assert "`out` (50x4) was assigned to slice by slice, 40 times" in finding.message


def a_constant_now_and_then():
    for _ in range(10):
        out = torch.randn(50, 4, requires_grad=True) * 2
        out[0] = out[-1] = 0.0
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
        a_constant_now_and_then,
        one_assignment_each_to_many_tensors,
    ],
)
def test_nothing_is_said(audited, loop):
    assert [finding for finding in audited(loop).findings if finding.code == "GCS106"] == []
