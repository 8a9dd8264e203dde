"""GCS407 and GCS102: computed tensors that are taken for leaves."""

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


def given_to_the_constructor():
    w = torch.randn(3, requires_grad=True) * 0.1
    torch.optim.SGD([w], lr=0.1)  # <- here


def given_as_another_group():
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
    moved = torch.ones(3, requires_grad=True).double()
    optimizer.add_param_group({"params": [moved]})  # <- here


@pytest.mark.parametrize(
    "program", [given_to_the_constructor, given_as_another_group], ids=lambda f: f.__name__
)
def test_a_tensor_that_an_optimizer_refuses_is_told_and_the_error_is_torchs(only, line_of, program):
    with gs.audit() as session, pytest.raises(ValueError, match="can't optimize a non-leaf"):
        program()
    finding = only(session, "GCS102")
    assert finding.location.line == line_of(program)
    assert finding.evidence["optimizer"] in finding.message


def given_a_wrong_learning_rate():
    torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=-1.0)


def test_other_refusals_are_the_programs_own_affair():
    with gs.audit() as session, pytest.raises(ValueError, match="learning rate"):
        given_a_wrong_learning_rate()
    assert session.findings == ()
