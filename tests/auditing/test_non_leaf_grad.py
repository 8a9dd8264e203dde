"""GCS407: `.grad` of an intermediate tensor is read."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

import gradcheck_suite as gs

pytestmark = pytest.mark.filterwarnings(
    "default:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


def network():
    return nn.Linear(3, 3), nn.Linear(3, 1)


def read_of_an_activation():
    first, second = network()
    hidden = first(torch.randn(2, 3))
    second(hidden).sum().backward()
    return hidden.grad  # <- here


def read_of_an_input_that_was_moved():
    x = torch.randn(2, 3, requires_grad=True).double()
    x.pow(2).sum().backward()
    return x.grad  # <- here


@pytest.mark.parametrize(
    "program", [read_of_an_activation, read_of_an_input_that_was_moved], ids=lambda f: f.__name__
)
def test_the_line_is_told_once_and_torch_warns_as_before(only, line_of, program):
    with gs.audit() as session, pytest.warns(UserWarning, match="not a leaf"):
        gradients = [program() for _ in range(3)]
    assert gradients == [None] * 3
    finding = only(session, "GCS407")
    assert finding.location.line == line_of(program)
    assert finding.location.path == __file__
    assert "retain_grad()" in finding.message


def retained():
    first, second = network()
    hidden = first(torch.randn(2, 3))
    hidden.retain_grad()
    second(hidden).sum().backward()
    assert hidden.grad is not None


def leaves():
    first, second = network()
    second(first(torch.randn(2, 3))).sum().backward()
    return [p.grad for p in (*first.parameters(), *second.parameters())]


def constants():
    return torch.randn(3).grad, torch.randn(3).mul(2).grad


@pytest.mark.parametrize("program", [retained, leaves, constants], ids=lambda f: f.__name__)
def test_nothing_is_said_of_tensors_that_have_a_gradient_or_need_none(audited, program):
    assert audited(program).findings == ()


def test_other_warnings_arrive_whole(recwarn):
    source = object()
    with gs.audit():
        warnings.warn("the user's own", RuntimeWarning, stacklevel=1, source=source)
    (warning,) = recwarn.list
    assert str(warning.message) == "the user's own"
    assert warning.source is source


def test_a_warning_that_goes_to_a_log_is_seen(caplog):
    logging.captureWarnings(capture=True)
    try:
        with caplog.at_level(logging.WARNING), gs.audit() as session:
            read_of_an_activation()
    finally:
        logging.captureWarnings(capture=False)
    assert "not a leaf" in caplog.text
    assert [finding.code for finding in session.findings] == ["GCS407"]


def test_what_shows_warnings_is_put_back():
    before = dict(vars(warnings))
    with gs.audit():
        pass
    assert dict(vars(warnings)) == before
