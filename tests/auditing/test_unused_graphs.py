"""Graphs kept or recorded for nothing, and those that are needed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

STEPS = 6


def trained(loss_of=None, after=None, steps=STEPS):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).pow(2).mean()
        (loss.backward if loss_of is None else lambda loss=loss: loss_of(net, loss))()
        optimizer.step()
        if after is not None:
            after(net)


def retained_for_nothing():
    trained(lambda _, loss: loss.backward(retain_graph=True))  # <- here


def evaluated_with_graph():
    def validate(net):
        net.eval()
        for _ in range(2):
            net(torch.randn(3, 4)).sum().item()  # <- here
        net.train()

    trained(after=validate)


def evaluated_in_a_helper():
    def predict(net, x):
        return net(x).argmax(1)  # <- here

    def validate(net):
        net.eval()
        predict(net, torch.randn(3, 4))
        net.train()

    trained(after=validate)


def inference_only():
    net = nn.Linear(4, 2).eval()
    net.eval()
    for _ in range(5):
        net(torch.randn(3, 4)).tolist()  # <- here


def graph_in_every_gradient():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        loss = net(torch.randn(3, 4)).pow(2).mean()
        loss.backward(create_graph=True)  # <- here
        optimizer.step()


BUGS = [
    (retained_for_nothing, "GCS203"),
    (evaluated_with_graph, "GCS204"),
    (evaluated_in_a_helper, "GCS204"),
    (inference_only, "GCS204"),
    (graph_in_every_gradient, "GCS206"),
]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("case", BUGS, ids=lambda case: case[0].__name__)
def test_what_nobody_uses_is_told_with_its_line(audited, line_of, case):
    loop, code = case
    found = [each for each in audited(loop).findings if each.code == code]
    assert len(found) == 1
    assert found[0].location.line == line_of(loop)


def two_losses_over_one_trunk():
    def losses(net, loss):
        loss.backward(retain_graph=True)
        (loss * 2).backward()

    trained(losses)


def three_losses_over_one_trunk():
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 1) for _ in range(3)]
    parameters = [p for module in (trunk, *heads) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = trunk(torch.randn(3, 4)).tanh()
        first, second, third = (head(hidden).mean() for head in heads)
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        third.backward()
        optimizer.step()


def rows_of_a_jacobian():
    def rows(net, loss):
        out = net(torch.randn(3, 4))
        for index in range(3):
            torch.autograd.grad(out[index, 0], net[0].weight, retain_graph=True)
        loss.backward()

    trained(rows)


def penalty():
    def penalized(net, loss):
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        (loss + sum(each.pow(2).sum() for each in gradients)).backward()

    trained(penalized)


def cleared_each_step():
    def curved(net, loss):
        net.zero_grad()
        loss.backward(create_graph=True)
        sum(each.grad.square().sum() for each in net.parameters()).backward()

    trained(curved)


def evaluated_without_graph():
    def validate(net):
        net.eval()
        with torch.no_grad():
            for _ in range(4):
                net(torch.randn(3, 4))
        net.train()

    trained(after=validate)


def trained_in_evaluation_mode():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        net.eval()
        optimizer.zero_grad()
        net(torch.randn(3, 4)).mean().backward()
        optimizer.step()


def saliency():
    def explain(net):
        net.eval()
        x = torch.randn(3, 4, requires_grad=True)
        torch.autograd.grad(net(x).sum(), x)
        net.train()

    trained(after=explain)


def frozen_in_evaluation_mode():
    teacher = nn.Linear(4, 1).requires_grad_(False)

    def validate(_net):
        teacher.eval()
        teacher(torch.randn(3, 4))

    trained(after=validate)


CLEAN = [
    two_losses_over_one_trunk,
    three_losses_over_one_trunk,
    rows_of_a_jacobian,
    penalty,
    cleared_each_step,
    evaluated_without_graph,
    trained_in_evaluation_mode,
    saliency,
    frozen_in_evaluation_mode,
]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("loop", CLEAN, ids=lambda loop: loop.__name__)
def test_nothing_is_said_of_graphs_that_are_needed(audited, loop):
    codes = {each.code for each in audited(loop).findings}
    assert codes.isdisjoint({"GCS203", "GCS204", "GCS206"})


def test_no_hook_stays_on_a_module_in_evaluation_mode(audited):
    net = nn.Linear(4, 2)

    def loop():
        net.eval()
        copy.deepcopy(net)(torch.randn(3, 4))

    audited(loop)
    assert not net._forward_hooks
