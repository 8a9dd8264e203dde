"""GCS209: hooks that are registered again and never removed."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def clamp(module, grad_input, grad_output):
    return (grad_input[0].clamp(min=0),)


def keep(module, inputs, output, *, features):
    features.append(output.detach())


def halve(gradient):
    return gradient / 2


def on_backward(model):
    return model[1].register_full_backward_hook(clamp)  # <- here


def on_forward(model):
    return model[1].register_forward_hook(functools.partial(keep, features=[]))  # <- here


def on_a_parameter(model):
    return model[0].weight.register_hook(halve)  # <- here


def after_accumulation(model):
    def note(parameter):
        pass

    return model[0].weight.register_post_accumulate_grad_hook(note)  # <- here


def train(register, *, every=4, remove=False, at_most=None, steps=20):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handles = []
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        if step % every == every - 1 and (at_most is None or len(handles) < at_most):
            handles.append(register(model))
            if remove:
                handles[-1].remove()


KINDS = [on_backward, on_forward, on_a_parameter, after_accumulation]


@pytest.mark.parametrize("register", KINDS)
def test_hooks_that_pile_up_are_told_where_they_are_registered(audited, only, line_of, register):
    finding = only(audited(lambda: train(register)), "GCS209")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(register)
    assert "(1 in step 4, 2 in step 8, 4 in step 16): it is registered again" in finding.message
    assert finding.evidence["count"] == 4


def test_what_a_hook_on_backward_does_is_said(audited, only):
    finding = only(audited(lambda: train(on_backward)), "GCS209")
    assert "`clamp` is a backward hook 4 times on each of 1 module or parameter" in finding.message
    assert "changes the gradients that train" in finding.message
    assert [each.message for each in finding.related] == ["the hook"]


@pytest.mark.parametrize("register", KINDS)
@pytest.mark.parametrize("options", [{"remove": True}, {"at_most": 1}, {"at_most": 2}])
def test_nothing_is_said_of_hooks_that_are_removed_or_few(audited, register, options):
    assert audited(lambda: train(register, **options)).findings == ()


def test_nothing_is_said_of_many_hooks_from_the_start(audited):
    def loop():
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        for _ in range(4):
            on_forward(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    assert audited(loop).findings == ()
