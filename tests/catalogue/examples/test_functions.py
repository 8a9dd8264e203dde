# ruff: noqa: ARG004 - torch passes ctx, whether a Function needs it or not
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import Function


def _double(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_gcs501_raises_in_backward(example, instead):
    x = torch.ones(2, requires_grad=True)
    y = example("GCS501").Scale.apply(x, 3.0)
    with pytest.raises(
        RuntimeError,
        match=r"function ScaleBackward returned an incorrect number of gradients \(expected 2, got",
    ):
        y.sum().backward()
    instead("GCS501").Scale.apply(x, 3.0).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))


@pytest.mark.parametrize(("surplus", "accepted"), [(None, True), (1.0, False)])
def test_gcs501_surplus_none_is_accepted(surplus, accepted):
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2, None if surplus is None else grad_output

    x = torch.ones(2, requires_grad=True)
    loss = Twice.apply(x).sum()
    if accepted:
        loss.backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0))
    else:
        with pytest.raises(RuntimeError, match="incorrect number of gradients"):
            loss.backward()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_gcs502_the_call_raises(example, instead):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Legacy autograd function with non-static forward"):
        example("GCS502").double(x)
    instead("GCS502").double(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_gcs502_a_missing_staticmethod_alone_is_harmless():
    class Twice(Function):
        def forward(self, x):
            return x * 2

        def backward(self, grad_output):
            return grad_output * 2

    x = torch.ones(2, requires_grad=True)
    Twice.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_gcs503_changes_the_callers_tensor_silently(example, instead):
    def gradient(names):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        hidden = x * 1
        y = names.ShiftedExp.apply(hidden)
        assert hidden.grad_fn.name() == "MulBackward0"
        (y + hidden.pow(2)).sum().backward()
        return x.grad

    wrong, right = gradient(example("GCS503")), gradient(instead("GCS503"))
    assert torch.allclose(right, torch.tensor([0.0, 1.0]).exp() + torch.tensor([2.0, 4.0]))
    assert not torch.allclose(wrong, right, rtol=0.1)


def test_gcs503_even_a_leaf_is_overwritten(example, instead):
    for names, overwritten in ((example("GCS503"), True), (instead("GCS503"), False)):
        leaf = torch.tensor([1.0, 2.0], requires_grad=True)
        names.ShiftedExp.apply(leaf)
        assert (leaf[1] == 1.0).item() is overwritten


def test_gcs503_an_error_comes_only_if_the_tensor_was_saved_before(example):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = example("GCS503").ShiftedExp.apply(x.exp())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def _penalty_gradients(sine):
    torch.manual_seed(0)
    first, last = nn.Linear(2, 3), nn.Linear(3, 1)
    x = torch.randn(2, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(last(sine(first(x))).sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    return first.weight.grad


def test_gcs504_misses_terms_of_second_order_silently(example, instead):
    sine = example("GCS504").Sine.apply
    x = _double(0.3, -0.7)
    assert torch.autograd.gradcheck(sine, x)
    right = _penalty_gradients(torch.sin)
    assert not torch.allclose(_penalty_gradients(sine), right, rtol=0.05)
    with pytest.raises(RuntimeError, match="twice a function that was marked with @once_diff"):
        _penalty_gradients(instead("GCS504").Sine.apply)
    assert torch.autograd.gradcheck(instead("GCS504").Sine.apply, x)


def test_gcs504_the_decorator_is_silent_below_a_plain_sum(instead):
    x = _double(1.0)
    y = instead("GCS504").Sine.apply(x).sum() + x.pow(2).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.autograd.grad(gradient.sum(), x)[0] == 2.0  # right: 2 - sin(1)


def test_gcs505_a_loss_on_the_mask_trains_nothing(example, instead):
    x = torch.randn(4, requires_grad=True)
    _, mask = example("GCS505").Threshold.apply(x, 0.0)
    assert mask.requires_grad
    mask.sum().backward()
    assert torch.equal(x.grad, torch.zeros(4))
    _, mask = instead("GCS505").Threshold.apply(x, 0.0)
    assert not mask.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        mask.sum().backward()


def test_gcs505_integer_and_bool_outputs_are_marked_by_torch():
    class Outputs(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x.argsort(), x > 0

        @staticmethod
        def backward(ctx, grad_output, *_):
            return grad_output * 2

    outputs = Outputs.apply(torch.randn(3, requires_grad=True))
    assert [output.requires_grad for output in outputs] == [True, False, False]


def test_gcs506_masks_the_other_branch_too(example, instead):
    def gradient(names):
        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        ((x + names.Relu.apply(x)) * torch.ones(2)).sum().backward()
        return x.grad

    assert torch.equal(gradient(example("GCS506")), torch.tensor([0.0, 2.0]))
    assert torch.equal(gradient(instead("GCS506")), torch.tensor([1.0, 2.0]))


def test_gcs506_overwrites_the_callers_gradient(example, instead):
    for names, overwritten in ((example("GCS506"), True), (instead("GCS506"), False)):
        given = torch.ones(2)
        names.Relu.apply(torch.tensor([-1.0, 2.0], requires_grad=True)).backward(given)
        assert (given[0] == 0).item() is overwritten


def test_gcs506_arithmetic_on_an_expanded_gradient_raises():
    class Half(Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.mul_(0.5)

    with pytest.raises(RuntimeError, match="single memory location"):
        Half.apply(torch.ones(3, requires_grad=True)).sum().backward()


def test_gcs507_is_wrong_in_second_order_only(example, instead):
    def derivatives(sigmoid):
        x = _double(0.3)
        (first,) = torch.autograd.grad(sigmoid(x).pow(2).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)[0]

    right, fixed = derivatives(torch.sigmoid), derivatives(instead("GCS507").Sigmoid.apply)
    wrong = derivatives(example("GCS507").Sigmoid.apply)
    assert torch.allclose(wrong[0], right[0])
    assert torch.allclose(wrong[1], right[1], rtol=0.1) is False
    assert torch.allclose(fixed[1], right[1])


def test_gcs507_raises_if_no_other_term_is_left(example):
    x = _double(0.3)
    y = example("GCS507").Sigmoid.apply(x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(gradient.sum(), x)


def test_gcs508_the_weight_gets_none(example, instead):
    x, weight = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)
    example("GCS508").Linear.apply(x, weight).sum().backward()
    assert weight.grad is None
    instead("GCS508").Linear.apply(x, weight).sum().backward()
    assert torch.allclose(weight.grad, x.sum(0).expand(4, 3))


def test_gcs508_nothing_shows_while_every_input_needs_a_gradient(example):
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    example("GCS508").Linear.apply(x, weight).sum().backward()
    assert torch.allclose(weight.grad, x.detach().sum(0).expand(4, 3))
