"""Parameters that a step moves by gradients of zeros that were left (GCS303), and those it may."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Linear(4, 6)
        self.towers = nn.ModuleList(nn.Linear(6, 1) for _ in range(3))

    def forward(self, x, domain):
        return self.towers[domain](self.bottom(x).tanh())


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def by_domain(make, *, to_none=False, domains=(0, 1, 2), steps=24):
    model = Towers()
    optimizer = make(model.parameters())
    for turn in range(steps):
        loss = sum(
            model(torch.randn(5, 4), each).square().mean() for each in domains_of(turn, domains)
        )
        optimizer.zero_grad(set_to_none=to_none)  # <- here
        loss.backward()
        optimizer.step()


def domains_of(turn, domains):
    return domains if len(domains) < 3 else domains[turn % 3 : turn % 3 + 1]


def test_towers_that_a_batch_does_not_use(audited, only, line_of):
    finding = only(audited(lambda: by_domain(adam)), "GCS303")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(by_domain)
    assert "Adam.step() moved parameters that no backward had reached since its last step" in (
        finding.message
    )
    assert "the zeros that zero_grad(set_to_none=False) had left" in finding.message
    assert finding.evidence["steps"] >= 4


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (adam, {"to_none": True}),
        (plain, {}),
        (adam, {"domains": (0, 1)}),
    ],
)
def test_towers_that_stay_or_are_used(audited, make, options):
    found = audited(lambda: by_domain(make, **options)).findings
    assert not [each for each in found if each.code == "GCS303"]


def test_zeros_that_a_backward_made(audited):
    def loop():
        weight, other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        optimizer = adam([weight, other])
        for turn in range(20):
            optimizer.zero_grad(set_to_none=False)
            (weight.square() + float(turn % 2) * other).sum().backward()
            optimizer.step()

    assert not audited(loop).findings
