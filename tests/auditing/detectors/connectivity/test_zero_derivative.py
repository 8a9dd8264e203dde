"""GCS411 and GCS401 of gradients from ``autograd.grad`` that are zero each time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def derivative(u, x):
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]  # <- here


def solve(activation, residual, steps=8):
    net = nn.Sequential(nn.Linear(1, 8), activation, nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        x = torch.rand(6, 1, requires_grad=True)
        loss = residual(net(x), x).square().mean() + net(torch.zeros(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def second_order(u, x):
    return derivative(derivative(u, x), x) + torch.sin(x)


def first_order(u, x):
    return derivative(u, x) + u


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(), nn.Hardtanh()])
def test_a_second_derivative_of_straight_pieces_is_told(audited, only, line_of, activation):
    finding = only(audited(lambda: solve(activation, second_order)), "GCS411")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(derivative)
    assert "all 6 elements that this autograd.grad() returns are exactly zero" in finding.message
    assert finding.related[0].location.function == "second_order"
    assert finding.evidence == {"steps": 5, "elements": 6}


@pytest.mark.parametrize(
    ("activation", "residual"), [(nn.Tanh(), second_order), (nn.ReLU(), first_order)]
)
def test_nothing_is_said_of_derivatives_that_are_not_zero(audited, activation, residual):
    assert audited(lambda: solve(activation, residual)).findings == ()


def test_nothing_is_said_of_a_run_that_is_too_short(audited):
    assert audited(lambda: solve(nn.ReLU(), second_order, steps=3)).findings == ()


def test_a_last_layer_that_begins_at_zero_is_left_alone(audited):
    def loop():
        critic = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
        nn.init.zeros_(critic[2].weight)
        optimizer = torch.optim.Adam(critic.parameters())
        for _ in range(8):
            real = torch.randn(6, 4, requires_grad=True)
            score = critic(real)
            penalty = derivative(score, real).square().sum(1).mean()
            optimizer.zero_grad()
            (nn.functional.softplus(-score).mean() + penalty).backward()
            optimizer.step()

    assert audited(loop).findings == ()


def test_what_is_allowed_to_be_unused_is_left_alone(audited):
    def loop():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        other = torch.zeros(1, requires_grad=True)
        for _ in range(8):
            loss = net(torch.randn(6, 4)).square().mean()
            torch.autograd.grad(loss, other, allow_unused=True, retain_graph=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert audited(loop).findings == ()


def test_an_attack_without_a_direction_is_a_note(audited, only):
    def loop():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(8):
            x = torch.randn(6, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x.round()).sum(), x)
            optimizer.zero_grad()
            net(x.detach() + 0.1 * slope.sign()).square().mean().backward()
            optimizer.step()

    finding = only(audited(loop), "GCS401")
    assert finding.severity is Severity.NOTE
    assert "in each of 5 steps looked at" in finding.message


class Policy(nn.Module):
    def __init__(self, *, spread=True):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.log_std = nn.Parameter(torch.tensor([-1.5, 0.5]), requires_grad=spread)

    def forward(self, x):
        return torch.distributions.Normal(self.mean(x), self.log_std.exp())


def curvature(policy, divergence, x):
    parameters = [each for each in policy.parameters() if each.requires_grad]
    first = torch.autograd.grad(divergence(policy, x), parameters, create_graph=True)  # <- here
    along = sum((each * torch.ones_like(each)).sum() for each in first)
    return torch.autograd.grad(along, parameters)


def curvature_of_a_closure(policy, divergence, x):
    parameters = [each for each in policy.parameters() if each.requires_grad]
    first = torch.autograd.grad(divergence(policy, x), parameters, create_graph=True)  # <- here

    def along(directions):
        products = zip(first, directions, strict=True)
        total = sum((each * direction).sum() for each, direction in products)
        return torch.autograd.grad(total, parameters)

    return along([torch.ones_like(each) for each in parameters])


def natural_gradient(divergence, curvature=curvature, **options):
    policy, value = Policy(**options), nn.Linear(3, 1)
    optimizer = torch.optim.Adam(value.parameters())
    parameters = [each for each in policy.parameters() if each.requires_grad]
    for _ in range(8):
        x = torch.randn(6, 3)
        with torch.no_grad():
            action = policy(x).sample()
        gain = policy(x).log_prob(action).mean()
        gradient = torch.autograd.grad(gain, parameters)
        curved = curvature(policy, divergence, x)
        with torch.no_grad():
            for p, g, c in zip(parameters, gradient, curved, strict=True):
                p.add_(g / (1 + c.abs()), alpha=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            value(x).square().mean().backward()
            optimizer.step()


def from_itself(policy, x):
    one, other = policy(x), policy(x)
    ratio = (2 * one.scale.log()).exp() + (one.mean - other.mean).square()
    parts = other.scale.log() - one.scale.log() + ratio / (2 * (2 * other.scale.log()).exp()) - 0.5
    return parts.sum(1).mean()


def from_what_it_was(policy, x):
    with torch.no_grad():
        old = policy(x)
        old = torch.distributions.Normal(old.mean, old.scale)
    return torch.distributions.kl_divergence(old, policy(x)).sum(1).mean()


@pytest.mark.parametrize("spread", [False, True])
def test_the_curvature_of_a_divergence_from_itself_is_told(audited, only, line_of, spread):
    finding = only(audited(lambda: natural_gradient(from_itself, spread=spread)), "GCS411")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(curvature)
    assert ("exactly zero" in finding.message) is not spread
    assert "divergence of something from itself" in finding.hint


@pytest.mark.parametrize("spread", [False, True])
def test_a_divergence_from_what_the_policy_was_has_a_curvature(audited, spread):
    for function in (curvature, curvature_of_a_closure):
        session = audited(
            lambda function=function: natural_gradient(from_what_it_was, function, spread=spread)
        )
        assert session.findings == ()


def test_a_closure_that_goes_through_zeros_is_told_once(audited, only, line_of):
    finding = only(audited(lambda: natural_gradient(from_itself, curvature_of_a_closure)), "GCS411")
    assert finding.location.line == line_of(curvature_of_a_closure)
