"""GCS404 and GCS401 of parameters that a Function uses and hands no gradient to."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradcheck_suite.findings import Severity


class Recompute(torch.autograd.Function):
    """Save memory: the forward runs again in backward."""

    @staticmethod
    def forward(ctx, block, x, *parameters):
        ctx.block = block
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.block(x)
        return (None, *torch.autograd.grad(out, (x, *parameters), gradient, allow_unused=True))


class Block(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.experts = experts  # <- kept

    def forward(self, x):
        return self.gate(x) + sum(expert(x) for expert in self.experts)


def trained(block, parameters=None, also=(), apply=None):
    def loop():
        head = nn.Linear(4, 1)
        given = list(block.parameters()) if parameters is None else parameters
        own = {id(each): each for each in (*block.parameters(), *head.parameters(), *also)}
        optimizer = torch.optim.SGD(own.values(), lr=0.01)
        for _ in range(6):
            x = torch.randn(6, 4)
            out = apply(x) if apply else Recompute.apply(block, x, *given)
            loss = head(out).square().mean() + 0.1 * block(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return loop


def layers():
    return [nn.Linear(4, 4), nn.Linear(4, 4)]


def test_layers_in_a_plain_list_are_told_where_they_are_kept(audited, only):
    experts = layers()
    owned = [each for expert in experts for each in expert.parameters()]
    finding = only(audited(trained(Block(experts), also=owned)), "GCS404")
    assert finding.severity is Severity.WARNING
    lines, first = inspect.getsourcelines(Block)
    kept = next(i for i, line in enumerate(lines) if line.endswith("# <- kept\n"))
    assert finding.location.line == first + kept
    assert "backward of Recompute computes through 4 parameters" in finding.message
    assert "the list `experts` of Block is not registered" in finding.message


def test_parameters_that_were_not_given_are_told_at_the_call(audited, only):
    block = Block(nn.ModuleList(layers()))
    finding = only(audited(trained(block, list(block.gate.parameters()))), "GCS401")
    assert finding.severity is Severity.WARNING
    assert finding.location.function == "Recompute.backward"
    assert finding.evidence["parameters"] == 4


def test_what_no_optimizer_owns_is_a_note(audited):
    teacher = nn.Linear(4, 4)

    class Guided(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 4)

        def forward(self, x):
            return self.gate(x) + teacher(x)

    session = audited(trained(Guided()))
    (finding,) = [each for each in session.findings if each.code == "GCS401"]
    assert finding.severity is Severity.NOTE
    assert finding.evidence["lowered"] == ("no optimizer owns them",)


def test_nothing_is_said_where_all_are_given(audited):
    assert audited(trained(Block(nn.ModuleList(layers())))).findings == ()


def test_nothing_is_said_of_a_function_that_asks_for_no_parameter(audited):
    """As an implicit layer: the parameters have their gradients from a call outside of it."""
    block = Block(nn.ModuleList(layers()))
    assert audited(trained(block, parameters=[])).findings == ()


def test_nothing_is_said_of_what_is_frozen(audited):
    block = Block(nn.ModuleList(layers()))
    block.experts.requires_grad_(False)
    given = list(block.gate.parameters())
    session = audited(trained(block, given))
    assert session.report.at_least(Severity.WARNING) == ()


def test_nothing_is_said_of_checkpoints(audited):
    block = Block(nn.ModuleList(layers()))

    def apply(x):
        return checkpoint(block, x.requires_grad_(), use_reentrant=True)

    assert audited(trained(block, apply=apply)).findings == ()
