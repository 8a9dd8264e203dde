"""The stream of events: each kind fires where it should, once, in order, with the user's line."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import gradcheck_suite as gs
from gradcheck_suite.auditing import events
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.instrumentation import clipping

KINDS = [getattr(events, name) for name in events.__all__ if hasattr(getattr(events, name), "site")]
ALL = [*KINDS, events.SessionEnded]


def whole(event):
    return event


def number_of(event):
    return event.number


class Listener:
    """A detector that keeps what it is told, of some kinds."""

    def __init__(self, kinds, keep=whole):
        self.kinds = kinds
        self.keep = keep
        self.seen = []

    def subscriptions(self):
        return dict.fromkeys(self.kinds, lambda event: self.seen.append(self.keep(event)))

    def findings(self):
        return []


@pytest.fixture
def listen():
    """Run a loop and return the events of these kinds, or what is to be kept of each.

    Events hold their graphs, and a hundred graphs that are kept are a leak to search for.
    """

    def run(loop, *kinds, keep=whole, **arguments):
        session = gs.audit(**arguments)
        listener = Listener(kinds or ALL, keep)
        session._recorder.bus.subscribe([listener])
        with session:
            loop()
        assert not session._recorder.bus.failures
        return listener.seen

    return run


def names(seen):
    return [type(event).__name__ for event in seen]


def test_what_grad_returns_is_told_once_and_nothing_of_backward(listen, line_of):
    def loop():
        x = torch.ones(3, requires_grad=True)
        y = torch.ones(3, requires_grad=True)
        torch.autograd.grad((x * 2).sum(), (x, y), allow_unused=True)  # <- grad
        (x * y).sum().backward()

    seen = []

    def keep(event):
        seen.append((event.finished.site, [each is None for each in event.gradients]))

    listen(loop, events.GradientsReturned, keep=keep)
    ((site, missing),) = seen
    assert location_of(site).line == line_of(loop, "grad")
    assert missing == [False, True]


def test_grad_inside_the_backward_of_a_function_is_told(listen, line_of):
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(x * x, x, gradient)  # <- grad

    def loop():
        Squared.apply(torch.ones(3, requires_grad=True)).sum().backward()

    def keep(event):
        return event.function, len(event.roots), len(event.inputs), event.site

    ((function, roots, inputs, site),) = listen(loop, events.GradientsAskedInside, keep=keep)
    assert function is Squared
    assert (roots, inputs) == (1, 1)
    assert location_of(site).line == line_of(Squared.backward, "grad")


def test_one_step_in_order(listen, line_of):
    def loop():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- made
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        model.train()
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2)).sum()
        loss.backward()  # <- backward
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # <- step
        scheduler.step()

    kinds = [kind for kind in ALL if kind not in (events.GradModeChanged, events.Written)]
    seen = listen(loop, *kinds)
    assert names(seen) == [
        "OptimizerConstructed",
        "ModeChanged",
        "GradientsCleared",
        "ForwardFinished",
        "BackwardStarted",
        "BackwardFinished",
        "GradientsClipped",
        "StepStarted",
        "StepFinished",
        "SchedulerStepped",
        "SessionEnded",
    ]
    sites = {type(event).__name__: location_of(event.site).line for event in seen[:-1]}
    assert sites["OptimizerConstructed"] == line_of(loop, "made")
    assert sites["BackwardStarted"] == sites["BackwardFinished"] == line_of(loop, "backward")
    assert sites["StepStarted"] == sites["StepFinished"] == line_of(loop, "step")


def test_backward_tells_which_gradients_it_made_and_added_to(listen):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        model.weight.sum().backward()
        torch.autograd.grad(model(torch.ones(3, 2)).sum(), model.weight)

    first, second, third = listen(loop, events.BackwardFinished)
    assert [id(p) for p in first.created] == [id(p) for p in model.parameters()]
    assert first.accumulated == ()
    assert second.created == ()
    assert [id(p) for p in second.accumulated] == [id(model.weight)]
    assert (third.created, third.accumulated) == ((), ())


def test_gradients_that_are_there_before_a_backward_are_told_of(listen):
    def loop():
        weight, other = (torch.ones(2, requires_grad=True) for _ in range(2))
        optimizer = torch.optim.SGD([weight, other], lr=0.1)
        weight.sum().backward()
        other.sum().backward()
        torch.autograd.grad(weight.sum(), weight)
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.zero_grad(set_to_none=False)
        weight.sum().backward()
        weight.grad = None
        weight.sum().backward()

    seen = listen(loop, events.GradientsFound)
    assert [event.started.number for event in seen] == [1, 2, 4]


def test_gradients_of_the_models_parameters_are_followed_without_an_optimizer(listen):
    model = nn.Linear(2, 1)

    def loop():
        model(torch.ones(3, 2)).sum().backward()

    (finished,) = listen(loop, events.BackwardFinished, model=model)
    assert len(finished.created) == 2


def test_backward_and_grad_differ_and_failures_show(listen):
    def loop():
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad((x * x).sum(), x, create_graph=True)
        y = (x * x).sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()

    seen = listen(loop, events.BackwardStarted, events.BackwardFinished)
    assert [event.accumulates for event in seen[::2]] == [False, True, True, True]
    assert [event.number for event in seen[::2]] == [0, 1, 2, 3]
    assert [event.failed for event in seen[1::2]] == [False, False, False, True]
    assert [event.keeps_graph for event in seen[1::2]] == [True, True, False, False]
    assert [event.creates_graph for event in seen[1::2]] == [True, False, False, False]
    assert all(len(event.roots) == 1 for event in seen[::2])


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_under_whatever_name(listen, foreach):
    model = nn.Linear(2, 1)
    model(torch.ones(3, 2)).sum().backward()
    parameters = iter(list(model.parameters()))

    def loop():
        clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        clip_grad_value_(model.parameters(), 0.5, foreach=foreach)
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.ones(()))
        clip_grad_norm_(model.weight, 1.0)
        list(parameters)
        clip_grad_norm_(parameters, 1.0)
        with pytest.raises(RuntimeError, match="empty"):
            clip_grad_value_([], 1.0)

    seen = listen(loop, events.GradientsClipped)
    assert [(event.function, len(event.gradients), event.parameters) for event in seen] == [
        ("clip_grad_norm_", 2, 2),
        ("clip_grad_value_", 2, None),
        ("clip_grad_norm_", 2, 2),
        ("clip_grad_norm_", 1, 1),
        ("clip_grad_norm_", 0, 0),
        ("clip_grad_value_", 0, None),
    ]


def test_without_torchs_inner_names_the_public_ones_are_watched(listen, monkeypatch):
    monkeypatch.setattr(clipping, "clipping_internals", lambda: ("clip_grad_norm_", None))
    model = nn.Linear(2, 1)
    model(torch.ones(3, 2)).sum().backward()

    def loop():
        torch.nn.utils.clip_grad.clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_value_(model.weight, 0.5)

    seen = listen(loop, events.GradientsClipped)
    assert [(event.function, event.parameters) for event in seen] == [
        ("clip_grad_norm_", 2),
        ("clip_grad_value_", 2),
        ("clip_grad_value_", 1),
    ]


def test_the_gradient_scaler(listen):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        scaler = torch.amp.GradScaler("cpu")
        loss = model(torch.ones(3, 2)).sum()
        scaler.scale([loss, loss])[0].backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        model.weight.grad.fill_(torch.inf)
        scaler.step(optimizer)

    kinds = (
        events.LossScaled,
        events.GradientsUnscaled,
        events.ScalerStepped,
        events.ScalerUpdated,
    )
    seen = listen(loop, *kinds)
    assert names(seen) == [
        "LossScaled",
        "GradientsUnscaled",
        "GradientsUnscaled",
        "ScalerStepped",
        "ScalerUpdated",
        "ScalerStepped",
    ]
    assert [event.failed for event in seen[1:3]] == [False, True]
    assert [seen[3].stepped, seen[5].stepped] == [True, False]


def test_optimizers_are_made_given_groups_and_cleared(listen):
    layers = nn.Linear(2, 1), nn.Linear(2, 1)

    def loop():
        optimizer = torch.optim.Adam(layers[0].parameters())
        optimizer.add_param_group({"params": list(layers[1].parameters())})
        optimizer.zero_grad(set_to_none=False)
        layers[0].zero_grad()

    seen = listen(
        loop, events.OptimizerConstructed, events.ParameterGroupAdded, events.GradientsCleared
    )
    assert names(seen) == [
        "OptimizerConstructed",
        "ParameterGroupAdded",
        "GradientsCleared",
        "GradientsCleared",
    ]
    assert [event.set_to_none for event in seen[2:]] == [False, True]
    assert seen[3].owner is layers[0]


def test_only_the_given_optimizers_are_told_of(listen):
    model = nn.Linear(2, 1)
    mine, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))

    def loop():
        for optimizer in (mine, other):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()

    seen = listen(loop, events.GradientsCleared, events.StepFinished, optimizers=mine)
    assert names(seen) == ["GradientsCleared", "StepFinished"]
    assert seen[1].optimizer is mine


def test_chained_schedulers_step_once(listen):
    weight = torch.ones(1, requires_grad=True)

    def loop():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
        chained = torch.optim.lr_scheduler.ChainedScheduler(schedulers)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        optimizer.step()
        chained.step()
        plateau.step(1.0)

    seen = listen(loop, events.SchedulerStepped)
    assert [type(event.scheduler).__name__ for event in seen] == [
        "ChainedScheduler",
        "ReduceLROnPlateau",
    ]
    assert all(isinstance(event.optimizer, torch.optim.SGD) for event in seen)


def test_a_state_of_chained_schedulers_is_told_of_once(listen, line_of):
    weight = torch.ones(1, requires_grad=True)

    def loop():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        parts = [torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2) for _ in range(2)]
        chained = torch.optim.lr_scheduler.ChainedScheduler(parts)
        state = {**chained.state_dict(), "_last_lr": [0.3]}
        chained.load_state_dict(state)  # <- here

    def keep(event):
        return type(event.scheduler), type(event.optimizer), event.before, location_of(event.site)

    (told,) = listen(loop, events.SchedulerStateLoaded, keep=keep)
    assert told[:3] == (torch.optim.lr_scheduler.ChainedScheduler, torch.optim.SGD, (0.1,))
    assert told[3].line == line_of(loop)


def test_modes_and_forwards_of_the_outermost_module(listen):
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())

    def loop():
        net.eval()
        with torch.no_grad():
            net(torch.ones(1, 2))
        with torch.inference_mode():
            net(torch.ones(1, 2))
        net.train()
        net(torch.ones(1, 2))

    seen = listen(loop, events.ModeChanged, events.ForwardFinished)
    assert names(seen) == [
        "ModeChanged",
        "ForwardFinished",
        "ForwardFinished",
        "ModeChanged",
        "ForwardFinished",
    ]
    assert [seen[0].training, seen[3].training] == [False, True]
    forwards = [seen[1], seen[2], seen[4]]
    assert all(event.module is net for event in forwards)
    assert [(event.grad_enabled, event.inference) for event in forwards] == [
        (False, False),
        (False, True),
        (True, False),
    ]


def test_forwards_are_looked_at_in_the_first_steps_and_cost_nothing_later(listen):
    unwatched = nn.Module.__call__
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()

        assert nn.Module.__call__ is unwatched

    assert len(listen(loop, events.ForwardFinished)) == 8


def test_grad_mode(listen):
    def loop():
        with torch.no_grad(), torch.enable_grad():
            pass
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(True)

    seen = listen(loop, events.GradModeChanged)
    assert [(event.kind, event.entered, event.enabled) for event in seen] == [
        ("no_grad", True, False),
        ("enable_grad", True, True),
        ("enable_grad", False, False),
        ("no_grad", False, True),
        ("set_grad_enabled", True, False),
        ("set_grad_enabled", True, True),
    ]


def test_writes_and_refusals(listen):
    leaf = torch.ones(2, requires_grad=True)

    def loop():
        torch.zeros(3).add_(1)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            leaf.mul_(2)

    written, refused = listen(loop, events.Written, events.WriteRefused)
    assert (written.operation, refused.operation) == ("add_", "mul_")
    assert refused.tensor is leaf
    assert "leaf Variable" in str(refused.error)


def test_writes_that_set_all_of_a_computed_weight(listen, line_of):
    def loop():
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
        layer.weight.data.mul_(2)
        layer.weight.data[0].zero_()
        layer.weight.data.zero_()  # <- here
        with nn.utils.parametrize.cached():
            layer.weight.data.zero_()
        held.extend(layer.weight for _ in range(100))  # more than are followed at a time
        held[-1].detach().fill_(1)

    held = []
    first, second = listen(loop, events.ComputedWeightWritten)
    assert (first.operation, first.computed_by) == ("zero_", "weight_norm")
    assert location_of(first.site).line == line_of(loop)
    assert first.memory.expired()
    assert second.operation == "fill_"
    assert not second.memory.expired()


def test_steps_can_be_marked_by_the_program():
    session = gs.audit()
    listener = Listener([events.StepMarked])
    session._recorder.bus.subscribe([listener])
    session.step()
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with session:
        for _ in range(3):
            for _ in range(2):
                optimizer.zero_grad()
                (weight * weight).sum().backward()
                optimizer.step()
            session.step()
    assert [event.number for event in listener.seen] == [2, 3, 4]
    assert session.report.summary["steps"] == 5


def test_nothing_is_watched_that_nobody_reads():
    before = (nn.Linear.__call__, torch.no_grad.__enter__)
    with gs.audit():
        nn.Linear(2, 2)
        assert (vars(nn.Linear).get("__call__"), torch.no_grad.__enter__) == (None, before[1])


def test_optimizers_and_models_die_with_their_names():
    alive = []

    def loop():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        alive.extend([weakref.ref(model), weakref.ref(optimizer)])
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
        del model, optimizer
        assert [reference() for reference in alive] == [None, None]

    with gs.audit():
        loop()


def test_of_many_backwards_without_an_optimizer_every_eighth_is_told(listen):
    x = torch.randn(3, requires_grad=True)

    def loop():
        for _ in range(100):
            x.exp().sum().backward()

    started = listen(loop, events.BackwardStarted, keep=number_of)
    assert started == [*range(32), *range(32, 100, 8)]
    finished = listen(loop, events.BackwardFinished, keep=number_of)
    assert len(finished) == len(started)


@pytest.mark.parametrize("known", ["model", "optimizer"])
def test_of_many_backwards_before_a_step_all_are_told(listen, known):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"model": model} if known == "model" else {"optimizers": optimizer}

    def loop():
        for _ in range(50):
            model(torch.ones(2, 3)).sum().backward()

    assert len(listen(loop, events.BackwardStarted, keep=number_of, **arguments)) == 50


def test_a_backward_that_nobody_is_told_of_still_tells_its_failure(listen):
    x = torch.randn(3, requires_grad=True)

    def loop():
        for _ in range(41):
            x.exp().sum().backward()
        loss = x.exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    (failed,) = listen(loop, events.BackwardFailed)
    assert failed.number == 42
    assert "second time" in str(failed.error)


def test_the_first_steps_after_many_backwards_without_any_are_checksummed():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def noted():
        return session.report.summary["saved_tensors_checksummed"]

    with gs.audit(checksum_every=0) as session:
        for _ in range(50):
            weight.exp().sum().backward()
        optimizer.step()
        before = noted()
        weight.exp().sum().backward()
        assert noted() > before
        for _ in range(3):
            optimizer.step()
        before = noted()
        weight.exp().sum().backward()
        assert noted() == before
