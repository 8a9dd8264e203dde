"""Whatever happens, the user's tensors, flags, buffers and generators are left as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from gradcheck_suite.verification import check_gradients


class Stateful(nn.Module):
    """Writes buffers, counts calls and draws random numbers of every kind."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        shift = random.random() + float(np.random.rand())
        self.last = self.norm(self.linear(x)) + shift
        return self.dropout(self.last)


def snapshot(module, x):
    state = {name: value.clone() for name, value in module.state_dict().items()}
    grads = {name: value.grad for name, value in module.named_parameters()}
    flags = {name: value.requires_grad for name, value in module.named_parameters()}
    return state, grads, flags, x.detach().clone(), x.grad, module.calls, module.last


def generators():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def same_generators(one, two):
    return (
        torch.equal(one[0], two[0])
        and one[1] == two[1]
        and one[2][0] == two[2][0]
        and np.array_equal(one[2][1], two[2][1])
        and one[2][2:] == two[2][2:]
    )


@pytest.fixture
def module():
    torch.manual_seed(0)
    net = Stateful()
    net.linear.bias.requires_grad_(False)
    net.linear.weight.grad = torch.full_like(net.linear.weight, 3.0)
    return net


def assert_untouched(before, after):
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]), name
    assert before[1] == after[1] or all(before[1][n] is after[1][n] for n in before[1])
    assert before[2] == after[2]
    assert torch.equal(before[3], after[3])
    assert before[4] is after[4]
    assert before[5:] == after[5:]


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"forward_mode": True}], ids=str)
def test_a_module_that_keeps_state_is_left_as_it_was(module, options):
    x = torch.randn(8, 4, requires_grad=True)
    before, drawn = snapshot(module, x), generators()
    report = check_gradients(module, x, **options)
    assert report.findings == ()
    assert_untouched(before, snapshot(module, x))
    assert same_generators(drawn, generators())


class Stop(BaseException):
    """Stands for Ctrl-C: it is no Exception."""


@pytest.mark.parametrize("raised", [Stop, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 3, 7])
def test_also_when_the_function_raises(module, raised, call):
    calls = []

    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            calls.append(x)
            if len(calls) >= call:
                raise raised("enough")
            return self.inner(x)

    x = torch.randn(8, 4, requires_grad=True)
    before, drawn = snapshot(module, x), generators()
    with pytest.raises(raised, match="enough"):
        check_gradients(Breaks(), x)
    assert_untouched(before, snapshot(module, x))
    assert same_generators(drawn, generators())


def test_dropout_is_the_same_in_every_evaluation(randn):
    report = check_gradients(nn.Dropout(0.5), randn(50))
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


def test_the_grad_mode_around_does_not_matter(randn):
    x = randn(5)
    with torch.no_grad():
        assert check_gradients(torch.sin, x).summary["verdicts"] == {"pass": 1}
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        assert check_gradients(torch.sin, x).summary["verdicts"] == {"pass": 1}
        assert torch.is_inference_mode_enabled()


def test_the_same_seed_gives_the_same_report(wrong, randn):
    x = randn(6)
    first = check_gradients(wrong.MissingTerm, x, seed=4)
    random.random()
    torch.rand(3)
    assert check_gradients(wrong.MissingTerm, x, seed=4) == first
    assert check_gradients(wrong.MissingTerm, x, seed=5) != first


def test_a_module_that_cannot_be_copied_is_checked_all_the_same():
    class NoCopy(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("no")

    module = NoCopy(3, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = check_gradients(module, torch.randn(4, 3))
    assert report.ok
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
