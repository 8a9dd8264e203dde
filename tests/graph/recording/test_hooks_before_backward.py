"""What is prepared for backward as forward ends tells what a walk at backward's start tells."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.recording import backward


class Net(nn.Module):
    """Keeps its hidden activations, as models with auxiliary losses do."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        self.hidden = self.norm(torch.relu(self.first(x)))
        return self.last(self.hidden) + self.last(-self.hidden)


class WithLoss(Net):
    def forward(self, x):
        return super().forward(x).square().mean()


class TwoHeads(Net):
    def forward(self, x):
        whole = super().forward(x)
        return {"logits": whole, "hidden": [self.hidden.t(), None]}


class Writes(Net):
    def forward(self, x):
        y = super().forward(x).clone()
        y[:, 0] *= 2
        return y[:2]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 2


class Custom(Net):
    def forward(self, x):
        return Doubled.apply(super().forward(x))


def plain(x):
    Net()(x).square().sum().backward()


def summed(x):
    Net()(x).sum().backward()


def loss_within(x):
    WithLoss()(x).backward()


def several_outputs(x):
    found = TwoHeads()(x)
    (found["logits"].sum() + found["hidden"][0].square().sum()).backward()


def one_of_several_outputs(x):
    TwoHeads()(x)["hidden"][0].square().sum().backward()


def output_used_twice(x):
    y = Net()(x)
    (y.exp().sum() + (3 * y).sum() + y[0].sum()).backward()


def output_viewed(x):
    Net()(x).t().reshape(-1).view(3, -1).square().sum().backward()


def regularized(x):
    net = Net()
    (net(x).sum() + sum(p.square().sum() for p in net.parameters())).backward()


def auxiliary_loss(x):
    net = Net()
    (net(x).sum() + net.hidden.abs().sum()).backward()


def one_after_another(x):
    first, second = Net(), nn.Linear(3, 2)
    second(first(x)).square().sum().backward()


def twins(x):
    net = Net()
    (net(x) - net(2 * x)).square().sum().backward()


def written_output(x):
    y = Writes()(x)
    y.mul_(2)
    y.sum().backward()


def output_written_after(x):
    y = Net()(x)
    y.exp_().sum().backward()


def hook_after_forward(x):
    y = Net()(x)
    y.register_hook(lambda gradient: gradient * 10)
    y.square().sum().backward()


def hook_within_forward(x):
    net = Net()
    net.norm.register_forward_hook(lambda _m, _a, y: y.register_hook(torch.neg) and None)
    net(x).square().sum().backward()


def custom_function(x):
    Custom()(x).square().sum().backward()


def penalty(x):
    x.requires_grad_()
    y = Net()(x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    (y + gradient.square().sum()).backward()


def twice(x):
    loss = Net()(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def forgotten_forward(x):
    net = Net()
    net(x)
    net.last(net.hidden).sum().backward()


def two_steps(x):
    net = Net()
    for _ in range(2):
        net(x).square().sum().backward()


def unrelated_first(x):
    other = nn.Parameter(torch.ones(3)).exp()
    y = Net()(x)
    other.sum().backward()
    y.sum().backward()


def with_given_gradient(x):
    y = Net()(x)
    y.backward(torch.arange(12.0).view(4, 3))


PROGRAMS = [
    *(plain, summed, loss_within, several_outputs, one_of_several_outputs, output_used_twice),
    *(output_viewed, regularized, auxiliary_loss, one_after_another, twins, written_output),
    *(output_written_after, hook_after_forward, hook_within_forward, custom_function, penalty),
    *(twice, forgotten_forward, two_steps, unrelated_first, with_given_gradient),
]


def recorded(program, *, modules):
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    with gs.record(backward=True, modules=modules) as recording:
        program(x)
    return recording


def told(recording):
    graph = recording.graph
    first = min(node.sequence_number for node in graph.nodes if node.sequence_number is not None)
    every = [recording.gradients(), recording.incoming()]
    numbers = [
        {(number - first, index): gradient for (number, index), gradient in some.items()}
        for some in every
    ]
    edges = [
        (graph.node(edge.source).op, graph.node(edge.target).op, edge.gradient)
        for edge in graph.edges
    ]
    return edges, numbers


@pytest.fixture
def unprepared(monkeypatch):
    """Return a function from which on all is done as backward begins."""

    def stop():
        monkeypatch.setattr(backward.BackwardRecorder, "prepare", lambda *_: None)

    return stop


@pytest.mark.parametrize("modules", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_figures(program, modules, unprepared):
    prepared = recorded(program, modules=modules)
    unprepared()
    assert told(prepared) == told(recorded(program, modules=True))
    assert all(gradient is not None for *_, gradient in told(prepared)[0])
    assert not prepared.not_recorded


@pytest.mark.parametrize("modules", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_gradients_as_without(program, modules):
    def leaves():
        torch.manual_seed(0)
        made = []
        build = nn.Linear.__init__
        try:
            nn.Linear.__init__ = lambda self, *a: (build(self, *a), made.append(self))[0]
            x = torch.randn(4, 5)
            program(x)
        finally:
            nn.Linear.__init__ = build
        return [p.grad for module in made for p in module.parameters()]

    bare = leaves()
    with gs.record(backward=True, modules=modules):
        watched = leaves()
    for mine, theirs in zip(watched, bare, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or (torch.equal(mine, theirs) and mine.stride() == theirs.stride())


@pytest.mark.parametrize("modules", [True, False])
def test_what_backward_is_left_with_is_the_loss(monkeypatch, modules):
    walked = []
    place = backward.place_sparse_hooks

    def note(*args):
        found = place(*args)
        walked.append(found.nodes)
        return found

    monkeypatch.setattr(backward, "place_sparse_hooks", note)
    recorded(two_steps, modules=modules)
    first, loss, *_ = walked
    assert walked == [first, loss, first, loss]
    assert loss == 2 < first


def test_modules_called_one_after_another_are_not_walked_each_time(monkeypatch):
    walks = []
    place = backward.place_sparse_hooks
    monkeypatch.setattr(
        backward, "place_sparse_hooks", lambda *args: walks.append(args) or place(*args)
    )
    cell = nn.RNNCell(3, 3)
    with gs.record(backward=True) as recording:
        for _ in range(3):
            state = torch.zeros(2, 3)
            for _ in range(20):
                state = cell(torch.ones(2, 3), state)
            state.sum().backward()
    assert len(walks) <= 1 + 3
    assert all(edge.gradient for edge in recording.graph.edges)


def test_a_forward_that_no_backward_follows_keeps_nothing():
    net = Net()
    with gs.record(backward=True):
        y = net(torch.ones(4, 5))
        hidden = weakref.ref(net.hidden)
        del net.hidden, y
        assert hidden() is None


@pytest.mark.parametrize("program", [auxiliary_loss, twins])
def test_no_node_is_hooked_twice(program, unprepared):
    def taken(recording):
        (watched,) = recording._backward.backwards
        return len(list(watched.stats.results()))

    prepared = recorded(program, modules=True)
    unprepared()
    assert taken(prepared) == taken(recorded(program, modules=True))


def test_a_second_backward_adds_nothing_to_the_first():
    net = Net()
    with gs.record(backward=True) as recording:
        y = net(torch.ones(4, 5))
        y.backward(torch.ones_like(y), retain_graph=True)
        (first,) = recording._backward.backwards
        y.backward(2 * torch.ones_like(y))
    _, second = recording._backward.backwards
    assert first.gradients.keys() == second.gradients.keys()
    for place, gradient in first.gradients.items():
        assert second.gradients[place].norm == pytest.approx(2 * gradient.norm)


def test_backward_on_another_thread_is_left_alone():
    with gs.record(backward=True) as recording:
        loss = Net()(torch.ones(4, 5)).sum()
        prepared = recording._backward._prepared
        thread = threading.Thread(target=lambda: loss.backward(retain_graph=True))
        thread.start()
        thread.join()
        assert not list(prepared.stats.results())
        loss.backward()
    assert all(edge.gradient for edge in recording.graph.edges)


def test_nothing_is_taken_once_the_recording_is_over(monkeypatch):
    taken = []
    with gs.record(backward=True) as recording:
        loss = Net()(torch.ones(4, 5)).sum()
        prepared = recording._backward._prepared
        assert prepared is not None
    monkeypatch.setattr(prepared.stats, "_hold", lambda *args: taken.append(args))
    loss.backward()
    assert not taken
    assert not list(prepared.stats.results())


def test_a_torch_function_mode_of_the_program_is_not_told():
    class Seen(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, _types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def run(**options):
        torch.manual_seed(0)
        net, x = Net(), torch.ones(4, 5)
        with Seen() as seen:
            if options:
                with gs.record(**options):
                    net(x).sum().backward()
            else:
                net(x).sum().backward()
        return seen.names

    assert run(backward=True) == run()


def test_a_forward_that_fails_within_leaves_the_outermost_one_known(unprepared):
    class Fails(nn.Module):
        def forward(self, _):
            raise ValueError("not today")

    class Recovers(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = nn.Sequential(Fails())
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            try:
                return self.fails(x)
            except ValueError:
                return self.layer(x).tanh()

    def program(x):
        Recovers()(x).sum().backward()

    prepared = recorded(program, modules=False)
    (watched,) = prepared._backward.backwards
    assert watched.prepared is not None
    unprepared()
    assert told(prepared) == told(recorded(program, modules=False))
