"""Graphs of gradients, by ``backward(create_graph=True)``: used, or dropped for nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

pytestmark = pytest.mark.filterwarnings("ignore:Using backward")


def parts():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def loss_of(net):
    return net(torch.randn(6, 4)).square().mean()


def dropped_by_zero_grad():
    net, optimizer = parts()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(net).backward(create_graph=True)  # <- here
        optimizer.step()
    optimizer.zero_grad()


def detached_by_zeros():
    net, optimizer = parts()
    for _ in range(5):
        loss_of(net).backward(create_graph=True)  # <- here
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("loop", [dropped_by_zero_grad, detached_by_zeros])
def test_graphs_of_gradients_that_nothing_goes_through_are_told(audited, only, line_of, loop):
    finding = only(audited(loop), "GCS206")
    assert finding.location.line == line_of(loop)
    assert "5 times, and nothing went through any of them" in finding.message
    assert finding.severity is Severity.NOTE
    assert finding.hint.startswith("leave out create_graph=True")


def penalty_on_the_gradients():
    net, optimizer = parts()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(net).backward(create_graph=True)
        sum(p.grad.square().sum() for p in net.parameters()).backward()
        optimizer.step()
        optimizer.zero_grad()


def product_with_the_hessian():
    net, optimizer = parts()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(net).backward(create_graph=True)
        weights = list(net.parameters())
        along = [torch.randn_like(p) for p in weights]
        products = torch.autograd.grad([p.grad for p in weights], weights, along)
        optimizer.step()
        optimizer.zero_grad()
        assert len(products) == len(along)


class AdaHessian(torch.optim.Optimizer):
    """Scales by an estimate of the Hessian's diagonal, taken anew every few steps."""

    def __init__(self, weights, every):
        super().__init__(weights, {"lr": 0.01})
        self.every, self.steps, self.scale = every, 0, {}

    def step(self, closure=None):  # noqa: ARG002 - as torch calls it
        weights = self.param_groups[0]["params"]
        if self.steps % self.every == self.every - 1:
            along = [torch.randint_like(p, 0, 2) * 2 - 1 for p in weights]
            found = torch.autograd.grad([p.grad for p in weights], weights, along)
            self.scale = {p: (z * h).abs() for p, z, h in zip(weights, along, found, strict=True)}
        self.steps += 1
        with torch.no_grad():
            for p in weights:
                p.sub_(0.01 * p.grad / (1 + self.scale.get(p, torch.zeros(()))))


def second_order_optimizer(every, steps=14):
    net, _ = parts()
    optimizer = AdaHessian(net.parameters(), every)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net).backward(create_graph=True)
        optimizer.step()
    optimizer.zero_grad()


def curvature_at_each_step():
    second_order_optimizer(1)


def curvature_now_and_then():
    second_order_optimizer(6)


def curvature_after_many_steps():
    second_order_optimizer(40, steps=41)


def unrolled_by_hand():
    rate = torch.tensor(0.1, requires_grad=True)
    outer = torch.optim.SGD([rate], lr=0.01)
    for _ in range(4):
        weight = torch.randn(3, requires_grad=True)
        current = weight
        for _ in range(5):
            current.retain_grad()
            (current - 1).square().sum().backward(create_graph=True, inputs=[current])
            current = current - rate * current.grad
        outer.zero_grad()
        current.square().sum().backward(inputs=[rate])
        outer.step()


def twice_only():
    net, optimizer = parts()
    for step in range(6):
        optimizer.zero_grad()
        loss_of(net).backward(create_graph=step < 2)
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        penalty_on_the_gradients,
        product_with_the_hessian,
        curvature_at_each_step,
        curvature_now_and_then,
        curvature_after_many_steps,
        unrolled_by_hand,
        twice_only,
    ],
)
def test_graphs_of_gradients_that_are_used_are_fine(audited, loop):
    assert audited(loop).findings == ()
