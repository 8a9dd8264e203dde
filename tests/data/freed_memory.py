"""Train while memory is freed that nothing of the program reads; print how each way ends.

Sharded training frees the memory of parameters between forward and backward. Each way runs in a
process of its own, without and under an audit: torch ends a process that reads such memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

import gradcheck_suite as gs
from gradcheck_suite.auditing.session import open_sessions
from gradcheck_suite.errors import UsageError

STEPS = 9
MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


class Away:
    """Frees the memory of tensors and brings it back."""

    def __init__(self):
        self.kept = []

    def free(self, tensors):
        for tensor in tensors:
            self.kept.append((tensor, tensor.detach().clone()))
            tensor.untyped_storage().resize_(0)

    def refill(self, *_):
        for tensor, copy in self.kept:
            tensor.untyped_storage().resize_(copy.nbytes)
            tensor.data.copy_(copy)
        self.kept.clear()


class Keep(nn.Module):
    def forward(self, x):
        self.kept = x
        return x


def train(free, *, optimizer=MOMENTUM, factor=1.0, losses=1, parameters=None):
    """Run a loop that calls ``free(moment, net, optimizer, away)`` at each moment of a step."""
    net = nn.Sequential(
        nn.Linear(64, 64), Keep(), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1, bias=False)
    )
    owned = list(net.parameters()) if parameters is None else parameters(net)
    made = optimizer(owned, lr=1e-3)
    away = Away()
    made.register_step_pre_hook(away.refill)
    for _ in range(STEPS):
        away.refill()
        loss = (net(torch.randn(8, 64)) * factor).square().mean()
        loss.register_hook(away.refill)
        free("forward", net, made, away)
        for again in range(losses):
            loss.backward(retain_graph=again + 1 < losses)
        free("backward", net, made, away)
        made.step()
        free("step", net, made, away)
        made.zero_grad()
        free("zero_grad", net, made, away)


def at(moment, what):
    def free(now, net, optimizer, away):
        if now == moment:
            away.free(what(net, optimizer))

    return free


def parameters_of(net, _optimizer):
    return list(net.parameters())


def buffers_of(net, _optimizer):
    return [each for each in net.buffers() if each.dim()]


def saved_by(net, _optimizer):
    return [net[1].kept.detach()]


def gradients_of(net, _optimizer):
    return [each.grad for each in net.parameters() if each.grad is not None]


def state_of(_net, optimizer):
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim()
    ]


def plain_loop(free):
    """Update by hand, with the gradients freed after each update and never cleared."""
    weight = torch.randn(64, 8, requires_grad=True)
    for _ in range(STEPS):
        F.mse_loss(torch.randn(8, 64) @ weight, torch.zeros(8, 8)).backward()
        weight.data -= 0.1 * weight.grad
        if free:
            weight.grad.untyped_storage().resize_(0)
        weight.grad = None


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.randn_like(x)
        ctx.save_for_backward(noise)
        noise.untyped_storage().resize_(0)
        return x / 2

    @staticmethod
    def backward(_ctx, grad):
        return grad / 2


def custom_function():
    net = nn.Linear(64, 64)
    for _ in range(STEPS):
        loss = Halves.apply(net(torch.randn(8, 64))).sum()
        torch.autograd.grad(loss, net.parameters(), create_graph=True)


def declared_frozen():
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
    away = Away()
    for each in open_sessions():
        each.frozen(net[0])
    for _ in range(STEPS):
        away.refill()
        net(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        away.free(list(net[0].parameters()))
        away.free([each.grad for each in net[0].parameters()])
        optimizer.zero_grad()


def recorded_graph():
    """Free a gradient while it passes, and the parameters, of a graph that is drawn."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 300), nn.Linear(300, 1))
    with gs.record(net, backward=True) as recording:
        out = net(torch.randn(300, 64))
        passed = []
        out.register_hook(passed.append)
        loss = out.sum()
        loss.backward()
        for each in (*passed, *(each.grad for each in net.parameters())):
            each.untyped_storage().resize_(0)
        for each in net.parameters():
            each.untyped_storage().resize_(0)
    assert recording.graph.nodes
    assert gs.trace_graph(out, model=net).nodes


def refused():
    """Give the checks a model without values: they say so."""
    for check in (
        lambda net: gs.check_gradients(net, (torch.randn(2, 64),)),
        lambda net: gs.check_accumulation(
            (net, torch.optim.SGD(net.parameters(), lr=0.1)), lambda *_: None, torch.ones(2, 64)
        ),
    ):
        net = nn.Linear(64, 64)
        net.weight.untyped_storage().resize_(0)
        with pytest.raises(UsageError, match="has no values: its storage was freed"):
            check(net)


MOMENTS = ("forward", "backward", "step", "zero_grad")
LATER = ("step", "zero_grad")
WAYS = {
    **{f"parameters, {m}": lambda m=m: train(at(m, parameters_of)) for m in MOMENTS},
    **{f"buffers, {m}": lambda m=m: train(at(m, buffers_of)) for m in MOMENTS},
    **{f"optimizer state, {m}": lambda m=m: train(at(m, state_of)) for m in MOMENTS},
    "saved tensors, forward": lambda: train(at("forward", saved_by)),
    "gradients, backward": lambda: train(at("backward", gradients_of)),
    "gradients, step": lambda: train(at("step", gradients_of)),
    "gradients of a twice used loss": lambda: train(at("step", gradients_of), losses=2),
    "parameters, not finite": lambda: train(at("forward", parameters_of), factor=float("inf")),
    "parameters nobody owns": lambda: train(
        at("step", gradients_of), parameters=lambda net: list(net[4].parameters())
    ),
    "plain SGD": lambda: train(at("step", parameters_of), optimizer=torch.optim.SGD),
    "update by hand": lambda: plain_loop(free=True),
    "custom function": custom_function,
    "declared frozen": declared_frozen,
    "recorded graph": recorded_graph,
    "refused": refused,
}


def ends_well(way, *, audited):
    """Return the exit status of a way in a process of its own, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        torch.manual_seed(0)
        session = gs.audit(overhead=float("inf")) if audited else contextlib.nullcontext()
        with session:
            way()
        if audited:
            broken = [line for line in session.report.not_covered if "bug in" in line]
            assert not broken, broken
        status = 0
    except BaseException:  # noqa: BLE001 - the parent tells of it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # What torch imports when it is needed first, each of the processes would.
    torch.optim.Adam([torch.ones(1, requires_grad=True)]).step()
    ended = {
        name: [ends_well(way, audited=each) for each in (False, True)] for name, way in WAYS.items()
    }
    sys.stdout.write(json.dumps(ended))
