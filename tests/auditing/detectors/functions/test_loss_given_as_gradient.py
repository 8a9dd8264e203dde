"""A loss that is given as its own gradient (GCS601), and gradients that may be given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def training(backward, *, reduce=torch.mean):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        backward(reduce((model(torch.randn(6, 4)) - 1).square()), list(model.parameters()))
        optimizer.step()


def given_itself(loss, _parameters):
    loss.backward(loss)  # <- here


def test_a_loss_as_its_own_gradient(audited, only, line_of):
    finding = only(audited(lambda: training(given_itself)), "GCS601")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(given_itself)
    assert finding.message == (
        "backward() was given the loss itself as the gradient, 3 times: each gradient is "
        "multiplied by the value of the loss, and is that of half of its square; expected no "
        "argument"
    )
    assert finding.evidence == {"count": 3}


def test_it_is_what_the_words_say():
    model = nn.Linear(4, 1)
    loss = (model(torch.randn(6, 4)) - 1).square().mean()
    loss.backward(loss, retain_graph=True)
    wrong = model.weight.grad.clone()
    model.zero_grad()
    (loss.square() / 2).backward()
    assert torch.allclose(wrong, model.weight.grad)


@pytest.mark.parametrize(
    ("backward", "reduce"),
    [
        (lambda loss, _: loss.backward(), torch.mean),
        (lambda loss, _: loss.backward(torch.ones_like(loss)), torch.mean),
        (lambda loss, _: loss.backward(torch.tensor(0.5)), torch.mean),
        (lambda loss, _: torch.autograd.backward([loss], [None]), torch.mean),
        (lambda residual, _: residual.backward(residual), lambda each: each),
    ],
)
def test_gradients_that_may_be_given(audited, backward, reduce):
    session = audited(lambda: training(backward, reduce=reduce))
    assert not session.findings, session.findings


def test_a_derivative_that_is_asked_for(audited):
    def derive(loss, parameters):
        made = torch.autograd.grad(loss, parameters, grad_outputs=loss)
        for parameter, gradient in zip(parameters, made, strict=True):
            parameter.grad = gradient

    assert not audited(lambda: training(derive)).findings
