from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef


class Saved:
    """A saved tensor that counts how many of its kind are alive."""

    alive = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        Saved.alive += 1

    def __del__(self) -> None:
        Saved.alive -= 1


@pytest.fixture
def counting():
    Saved.alive = 0
    return torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def _train_epoch(names, batches):
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return names.train_epoch(model, optimizer, batches)


def test_gcs201_keeps_every_graph(example, instead, batches, counting):
    with counting:
        total, history = _train_epoch(example("GCS201"), batches)
        nodes, node = 0, total.grad_fn
        while node is not None and node.next_functions:
            nodes, node = nodes + 1, node.next_functions[0][0]
        assert nodes >= len(batches)
        assert all(output.grad_fn is not None for output in history)
        total, history = _train_epoch(instead("GCS201"), batches)
    assert isinstance(total, float)
    assert not any(output.requires_grad for output in history)
    assert Saved.alive == 0


@pytest.mark.parametrize(("backward", "kept"), [(True, 0), (False, 3)])
def test_gcs201_backward_frees_the_activations_but_not_the_nodes(backward, kept, counting):
    model, total = _model(), torch.zeros(())
    with counting:
        for _ in range(3):
            before = Saved.alive
            loss = model(torch.randn(4, 8)).pow(2).mean()
            saved_by_one_step = Saved.alive - before
            if backward:
                loss.backward()
            total = total + loss
            del loss
    assert Saved.alive == kept * saved_by_one_step
    assert total.grad_fn.next_functions[0][0].next_functions[0][0].name() == "AddBackward0"


def _train_cell(names, steps: int = 3):
    cell = nn.GRUCell(3, 4)
    names.train(cell, [(torch.randn(2, 3), torch.randn(2, 4)) for _ in range(steps)])


def test_gcs202_raises_in_the_second_step(example, instead):
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        _train_cell(example("GCS202"))
    _train_cell(example("GCS202"), steps=1)
    _train_cell(instead("GCS202"))


def test_gcs202_retain_graph_only_changes_the_error():
    cell = nn.GRUCell(3, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(2, 4)

    def step(state):
        state = cell(torch.randn(2, 3), state)
        optimizer.zero_grad()
        state.pow(2).mean().backward(retain_graph=True)
        optimizer.step()
        return state

    second = step(step(state))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(second)


def test_gcs203_keeps_the_activations_over_the_next_forward(example, instead, batches, counting):
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = _model()
            self.alive_at_start = []

        def forward(self, x):
            self.alive_at_start.append(Saved.alive)
            return self.model(x)

    alive = []
    for names in (example("GCS203"), instead("GCS203")):
        model = Watched()
        with counting:
            names.train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
        alive.append(model.alive_at_start)
    assert alive[0][0] == 0
    assert alive[0][1] > 0
    assert alive[1] == [0, 0, 0]


def test_gcs204_eval_does_not_stop_recording(example, instead):
    recorded = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (recorded.append(tensor.shape), tensor)[1], lambda tensor: tensor
    )
    model, loader = nn.Linear(8, 3), [(torch.randn(4, 8), torch.zeros(4).long())]
    with hooks:
        correct = example("GCS204").evaluate(model, loader)
    assert recorded
    recorded.clear()
    with hooks:
        assert instead("GCS204").evaluate(model, loader) == correct
    assert not recorded
    assert model.training


def test_gcs205_skips_the_version_check(example, instead):
    def gradient(square):
        x = torch.ones(3, requires_grad=True)
        hidden = x * 1
        y = square.apply(hidden)
        hidden.zero_()
        y.sum().backward()
        return x.grad

    assert torch.equal(gradient(example("GCS205").Square), torch.zeros(3))  # right: 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(instead("GCS205").Square)


def test_gcs205_a_kept_output_waits_for_the_garbage_collector():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.output = x.exp()
            return ctx.output

        @staticmethod
        def backward(ctx, grad_output):
            return ctx.output * grad_output

    def one():
        output = Exp.apply(torch.zeros(9, requires_grad=True))
        output.sum().backward()
        return StorageWeakRef(output.untyped_storage())

    gc.collect()
    gc.disable()
    try:
        outputs = [one() for _ in range(5)]
        assert not any(output.expired() for output in outputs)
        gc.collect()
        assert all(output.expired() for output in outputs)
    finally:
        gc.enable()


def test_gcs205_attributes_outlive_backward_and_hide_from_hooks(example, instead, counting):
    for names, alive_after, seen in ((example("GCS205"), True, 0), (instead("GCS205"), False, 1)):
        x = torch.ones(3, requires_grad=True)
        with counting:
            hidden = x * 1
            y = names.Square.apply(hidden)
        assert Saved.alive == seen
        kept = StorageWeakRef(hidden.untyped_storage())
        del hidden
        y.sum().backward()
        assert kept.expired() is not alive_after


def test_gcs206_warns_and_leaves_a_cycle(example, instead):
    def step(names):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names.train_step(model, optimizer, torch.randn(4, 3), torch.randn(4, 1))
        return StorageWeakRef(model[0].weight.untyped_storage()), model[0].weight.grad.grad_fn

    with pytest.warns(UserWarning, match="will create a reference cycle"):
        weight, grad_fn = step(example("GCS206"))
    assert grad_fn is not None
    del grad_fn
    gc.collect()
    assert not weight.expired()

    weight, grad_fn = step(instead("GCS206"))
    assert grad_fn is None
    gc.collect()
    assert weight.expired()


def test_gcs206_both_give_the_same_gradient(example, instead):
    gradients = []
    for names, warns in ((example("GCS206"), True), (instead("GCS206"), False)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x, y = torch.randn(4, 3), torch.randn(4, 1)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            names.train_step(model, optimizer, x, y)
        assert bool(warned) is warns
        gradients.append(model[0].weight.grad.detach().clone())
        optimizer.zero_grad(set_to_none=True)
    assert torch.allclose(*gradients)


def test_gcs207_keeps_a_graph_for_each_call(example, instead):
    for names, with_graph in ((example("GCS207"), True), (instead("GCS207"), False)):
        layer = nn.Linear(3, 3)
        features = names.Features(layer)
        for _ in range(4):
            layer(torch.randn(2, 3)).sum().backward()
        assert [output.requires_grad for output in features.outputs] == [with_graph] * 4
    features.close()
    layer(torch.randn(2, 3))
    assert not features.outputs


def test_gcs209_leaves_a_hook_for_each_map(example, instead):
    gradients = []
    for names, left in ((example("GCS209"), 3), (instead("GCS209"), 0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        for _ in range(3):
            names.saliency(model, torch.randn(4))
        assert len(model[1]._backward_hooks) == left
        (-model(torch.randn(6, 4)).square().mean()).backward()
        gradients.append(model[0].weight.grad)
    assert not torch.allclose(*gradients)


def test_gcs208_backs_twice_through_the_trunk(example, instead):
    trunk, heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)
    x, targets = torch.randn(2, 3), (torch.randn(2, 1), torch.randn(2, 1))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        example("GCS208").train_step(trunk, heads, optimizer, x, targets)
    instead("GCS208").train_step(trunk, heads, optimizer, x, targets)
    assert all(parameter.grad is not None for parameter in trunk.parameters())
