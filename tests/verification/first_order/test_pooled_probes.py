"""In float32 many pooled probes see an error that kinks hide from single ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.verification import check_gradients
from tests.verification.wrong_functions import Scaled


class Behind(nn.Module):
    def __init__(self, module, factor):
        super().__init__()
        self.module = module
        self.factor = factor

    def forward(self, x):
        return self.module(Scaled.apply(x, self.factor))


def network(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return module, torch.randn(16, 64).requires_grad_()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("seed", range(3))
def test_one_percent_is_seen_through_kinks(seed):
    module, x = network(seed)
    options = {"parameters": False, "variations": (), "order": 1}
    right = check_gradients(Behind(module, 1.0), x, **options)
    wrong = check_gradients(Behind(module, 1.01), x, **options)
    assert [verdict.status for verdict in right.verdicts] == ["pass"]
    assert [verdict.status for verdict in wrong.verdicts] == ["fail"]
    assert [finding.code for finding in wrong.findings] == ["GCS601"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort().values,
        lambda x: torch.cat([x.sin(), 0.1 * x.sort().values]),
        lambda x: x.clamp(-0.5, 0.5) + x.abs(),
    ],
    ids=["sort", "sort beside what is smooth", "clamp and abs"],
)
def test_dense_kinks_are_no_error(function):
    torch.manual_seed(11)
    x = torch.randn(3000).requires_grad_()
    report = check_gradients(function, x, variations=(), order=1)
    assert report.findings == ()


def test_entries_exactly_on_a_kink_are_no_error():
    x = torch.zeros(64).requires_grad_()
    weight = torch.ones(64)
    report = check_gradients(lambda x: torch.relu(x) * weight, x, variations=(), order=1)
    assert report.findings == ()


def test_a_function_that_raises_near_by_keeps_its_verdict():
    torch.manual_seed(0)
    x = torch.randn(200).requires_grad_()

    def fragile(given):
        if not torch.equal(given, x) and bool(((given - x).abs().max() < 1e-2).all()):
            raise ValueError("too close")
        return torch.relu(given * 3)

    report = check_gradients(fragile, x, variations=(), order=1)
    assert report.findings == ()


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sort().values, lambda x: x.sin() + 0.1 * x.sort().values],
    ids=["sort", "sort and sine"],
)
@pytest.mark.slow
def test_kinks_denser_than_any_usual_step_are_no_error(function):
    torch.manual_seed(1)
    x = torch.randn(30000).requires_grad_()
    report = check_gradients(function, x, variations=(), order=1)
    assert report.findings == ()


def test_a_pole_nearer_than_any_usual_step_is_no_error():
    x = torch.linspace(-1.0, 1.0, 40)
    x[7] = torch.pi / 2 - 2e-4
    report = check_gradients(torch.tan, x.requires_grad_(), variations=(), order=1)
    assert report.findings == ()


def test_jumps_that_lie_dense_near_one_small_entry_are_no_error():
    torch.manual_seed(2)
    divisor = torch.rand(50) + 0.5
    divisor[3] = 3e-4
    numbers = torch.rand(50) * 9
    report = check_gradients(
        lambda y: numbers % y, divisor.requires_grad_(), variations=(), order=1
    )
    assert report.findings == ()


def test_what_rounding_leaves_of_a_gradient_of_zero_is_no_error():
    x = torch.tensor([1.7]).requires_grad_()
    norm = nn.LayerNorm(1)
    report = check_gradients(norm, x, variations=(), order=1)
    assert report.findings == ()
