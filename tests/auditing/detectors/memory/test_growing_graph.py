"""Values that carry their graph from step to step, and that no backward goes through."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from gradcheck_suite import Severity
from gradcheck_suite.auditing.detectors.memory import growing_graph


def network():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def follow(net, after, steps=24, end=lambda: None):
    """Train, with ``after`` in each turn."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        after()
    end()


def averaged_in_place():
    net = network()
    slow = copy.deepcopy(net).requires_grad_(False)

    def blend():
        for ours, theirs in zip(slow.parameters(), net.parameters(), strict=True):
            ours.mul_(0.9).add_(theirs, alpha=0.1)  # <- here

    follow(net, blend)


def averaged_by_lerp():
    net = network()
    slow = [each.detach().clone() for each in net.parameters()]

    def blend():
        for ours, theirs in zip(slow, net.parameters(), strict=True):
            ours.lerp_(theirs, 0.1)  # <- here

    follow(net, blend)


class Shadow:
    def __init__(self, net):
        self.values = {name: each.detach().clone() for name, each in net.named_parameters()}

    def blend(self, net):
        for name, each in net.named_parameters():
            self.values[name] = 0.9 * self.values[name] + 0.1 * each  # <- here


def averaged_anew():
    net = network()
    shadow = Shadow(net)
    follow(net, lambda: shadow.blend(net))


def running_norm_of_weights():
    net = network()
    state = {"norm": torch.zeros(())}

    def blend():
        state["norm"] = 0.9 * state["norm"] + 0.1 * net[0].weight.sum()  # <- here

    follow(net, blend)


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        (averaged_in_place, averaged_in_place),
        (averaged_by_lerp, averaged_by_lerp),
        (averaged_anew, Shadow.blend),
        (running_norm_of_weights, running_norm_of_weights),
    ],
)
def test_a_recorded_average_is_named_at_the_line_that_computes_it(audited, line_of, loop, place):
    (finding,) = audited(loop).findings
    assert (finding.code, finding.severity) == ("GCS201", Severity.WARNING)
    assert finding.location is not None
    assert finding.location.line == line_of(place)
    assert "from its own last value" in finding.message
    assert finding.evidence["steps"] >= 8


def test_the_name_of_one_and_the_number_of_the_others_are_told(audited):
    (finding,) = audited(averaged_in_place).findings
    assert finding.message.startswith("`slow.0.weight` (and 3 more tensors like it)")


def test_many_steps_are_an_error(audited, monkeypatch):
    monkeypatch.setattr(growing_graph, "_SHARE", 100.0)
    net = network()
    shadow = Shadow(net)
    run = audited(lambda: follow(net, lambda: shadow.blend(net), steps=64), overhead=float("inf"))
    (finding,) = run.findings
    assert finding.severity is Severity.ERROR


def detached():
    net = network()
    slow = copy.deepcopy(net).requires_grad_(False)

    def blend():
        for ours, theirs in zip(slow.parameters(), net.parameters(), strict=True):
            ours.mul_(0.9).add_(theirs.detach(), alpha=0.1)

    follow(net, blend)


def not_recorded():
    net = network()
    shadow = Shadow(net)

    def blend():
        with torch.no_grad():
            shadow.blend(net)

    follow(net, blend)


def begun_anew_every_fourth_step():
    net = network()
    state = {"count": 0, "norm": torch.zeros(())}

    def blend():
        state["count"] += 1
        if state["count"] % 4 == 0:
            state["norm"] = torch.zeros(())
        state["norm"] = state["norm"] + net[0].weight.sum()

    follow(net, blend)


def last_losses_kept():
    net = network()
    kept = [None, None]

    def blend():
        kept.append(net[0].weight.sum())
        del kept[0]

    follow(net, blend)


def added_up_for_one_backward_at_the_end():
    net = network()
    state = {"norm": torch.zeros(())}

    def blend():
        state["norm"] = state["norm"] + net[0].weight.sum()

    follow(net, blend, end=lambda: state["norm"].backward())  # noqa: PLW0108 - of its last value


def computed_once_before_the_loop():
    net = network()
    ahead = net[0].weight * 2
    follow(net, lambda: (ahead + net[0].weight).sum().item())


@pytest.mark.parametrize(
    "loop",
    [
        detached,
        not_recorded,
        begun_anew_every_fourth_step,
        last_losses_kept,
        added_up_for_one_backward_at_the_end,
        computed_once_before_the_loop,
    ],
)
def test_what_does_not_grow_or_is_used_is_not_told(audited, loop):
    assert [each for each in audited(loop).findings if each.code == "GCS201"] == []


def test_no_hook_is_left_on_the_graph(audited):
    net = network()
    shadow = Shadow(net)
    session = audited(lambda: follow(net, lambda: shadow.blend(net)))
    assert session.findings
    # A backward after the audit goes through the graph and changes nothing that was told.
    sum(each.sum() for each in shadow.values.values()).backward()
    assert [each.code for each in session.findings] == ["GCS201"]


def test_the_graph_of_another_thread_whose_nodes_have_numbers_of_its_own_is_not_told(audited):
    """Numbers count by thread: one step of one thread may lie across many of another's."""
    kept = []

    def one_long_graph():
        value = torch.ones((), requires_grad=True)
        for _ in range(400):
            value = value * 1.0
        kept.append(value)

    def loop():
        for run in (one_long_graph, lambda: follow(network(), lambda: None)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

    assert [each for each in audited(loop).findings if each.code == "GCS201"] == []
