"""Every hook and every replaced name is gone when the audit is over, however it ends."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import weakref
from contextlib import ExitStack
from multiprocessing.process import BaseProcess

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim import optimizer as optimizer_module

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import (
    checkpoint_entry_points,
    engine_entry_points,
    in_place_functions,
    top_saved_tensors_hooks,
)

NAMES = [
    *in_place_functions(),
    *engine_entry_points(),
    (torch.autograd.graph, "disable_saved_tensors_hooks"),
    (torch.autocast, "__enter__"),
    (torch.nn.functional, "dropout"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    (torch.optim.lr_scheduler, "warnings"),
    (torch.nn.Module, "__call__"),
    (torch.nn.Module, "state_dict"),
    (torch.nn.Module, "load_state_dict"),
    (torch.nn.Module, "register_forward_hook"),
    (torch.nn.utils.parametrize.ParametrizationList, "forward"),
    (prune.BasePruningMethod, "apply_mask"),
    (torch.optim.Optimizer, "load_state_dict"),
    (torch.optim.lr_scheduler.LRScheduler, "load_state_dict"),
    (torch.optim.lr_scheduler.SequentialLR, "load_state_dict"),
    (BaseProcess, "start"),
    (subprocess.Popen, "__init__"),
    *filter(None, checkpoint_entry_points()),
]


def snapshot():
    hooks = (
        optimizer_module._global_optimizer_pre_hooks,
        optimizer_module._global_optimizer_post_hooks,
    )
    return (
        [(owner, name, vars(owner).get(name), getattr(owner, name)) for owner, name in NAMES],
        [dict(table) for table in hooks],
        top_saved_tensors_hooks(),
    )


def work():
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.exp().sum().backward()
    optimizer.step()


@pytest.fixture
def unchanged():
    before = snapshot()
    yield
    assert snapshot() == before


@pytest.mark.usefixtures("unchanged")
class TestEverythingIsPutBack:
    def test_after_a_clean_run(self):
        with gs.audit():
            assert torch.Tensor.add_ is not NAMES[0]
            assert top_saved_tensors_hooks() is not None
            work()

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_after_an_exception(self, error):
        def loop():
            work()
            raise error("stop")

        with pytest.raises(error), gs.audit():
            loop()

    def test_after_an_interrupt_inside_backward(self):
        def interrupt(gradient):
            raise KeyboardInterrupt

        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        y.register_hook(interrupt)
        with pytest.raises(KeyboardInterrupt), gs.audit() as session:
            y.sum().backward()
        assert session.report.summary["backwards"] == 1

    def test_nested_audits(self):
        with gs.audit() as outer:
            work()
            with gs.audit() as inner:
                work()
                work()
            work()
        assert (outer.report.summary["steps"], inner.report.summary["steps"]) == (2, 2)
        assert any("opened within this one" in line for line in outer.report.not_covered)

    def test_audits_left_out_of_order(self):
        outer, inner = gs.audit(), gs.audit()
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        work()
        inner.__exit__(None, None, None)
        assert inner.report.summary["steps"] == 1

    def test_left_while_hooks_of_the_users_lie_above(self):
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
        with ExitStack() as stack:
            session = gs.audit()
            session.__enter__()
            stack.enter_context(hooks)
            top = top_saved_tensors_hooks()
            session.__exit__(None, None, None)
            assert top_saved_tensors_hooks() == top


def test_somebody_elses_replacement_is_left_to_them():
    original = torch.relu_
    session = gs.audit()
    session.__enter__()
    ours = torch.relu_

    def theirs(x):
        return ours(x)

    torch.relu_ = theirs
    try:
        session.__exit__(None, None, None)
        assert torch.relu_ is theirs
        assert torch.equal(torch.relu_(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    finally:
        torch.relu_ = original


def test_the_users_exception_arrives_unchanged():
    error = ValueError("mine")
    cause = KeyError("why")

    def loop():
        raise error from cause

    with pytest.raises(ValueError, match="mine") as info, gs.audit():
        loop()
    assert info.value is error
    assert error.__cause__ is cause
    assert error.args == ("mine",)


def test_models_are_copied_and_saved_as_before():
    net = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters())
    with gs.audit():
        net(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        copy.deepcopy(net)
        torch.save(net, io.BytesIO())
        assert not net.weight._backward_hooks
        assert not net._forward_hooks


@pytest.mark.slow
def test_nothing_grows_over_clean_steps():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            net(torch.randn(3, 4)).sum().backward()
            optimizer.step()

    def count():
        gc.collect()
        kinds = [type(thing) for thing in gc.get_objects()]
        ours = sum(str(kind.__module__).startswith("gradcheck_suite") for kind in kinds)
        return ours, sum(issubclass(kind, torch.Tensor) for kind in kinds)

    with gs.audit():
        steps(300)
        ours, tensors = count()
        steps(400)
        ours_later, tensors_later = count()
    assert tensors_later <= tensors
    # The tables of recent steps and writes are bounded, but may fill up meanwhile.
    assert ours_later - ours < 200


def test_tensors_die_when_they_would_without_an_audit():
    with gs.audit():
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        alive = weakref.ref(y)
        gc.disable()
        try:
            del y, z
            assert alive() is None
        finally:
            gc.enable()
