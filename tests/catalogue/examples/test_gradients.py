# ruff: noqa: ARG004 - torch passes ctx, whether a Function needs it or not
from __future__ import annotations

import pytest
import torch
from torch.autograd import Function, gradcheck
from torch.autograd.gradcheck import GradcheckError


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gcs601_differs_from_finite_differences(example, instead):
    x = _random(2, 4)
    with pytest.raises(GradcheckError):
        gradcheck(example("GCS601").RMSNorm.apply, x)
    assert gradcheck(instead("GCS601").RMSNorm.apply, x)


def test_gcs602_only_the_second_order_is_wrong(example, instead):
    def second(cube):
        x = torch.tensor([2.0], requires_grad=True)
        (first,) = torch.autograd.grad(cube.apply(x).pow(2).sum(), x, create_graph=True)
        assert first == 192.0  # 6 x^5
        return torch.autograd.grad(first.sum(), x)[0].item()

    assert second(example("GCS602").Cube) == 288.0
    assert second(instead("GCS602").Cube) == 480.0  # 30 x^4


def test_gcs603_two_backwards_differ(example, instead):
    def gradients(double):
        x = torch.ones(3, requires_grad=True)
        y = double.apply(x).sum()
        return [torch.autograd.grad(y, x, retain_graph=True)[0][0].item() for _ in range(2)]

    assert gradients(example("GCS603").Double) == [2.0, 4.0]
    assert gradients(instead("GCS603").Double) == [2.0, 2.0]


def test_gcs604_the_forward_is_finite_and_the_gradient_is_not(example, instead):
    for names, finite in ((example("GCS604"), False), (instead("GCS604"), True)):
        points = torch.randn(3, 2, requires_grad=True)
        distance = names.pairwise_distance(points, points)
        assert distance.isfinite().all()
        assert torch.allclose(distance, torch.cdist(points, points), atol=1e-5)
        distance.mean().backward()
        assert points.grad.isfinite().all().item() is finite


@pytest.mark.parametrize(
    ("function", "edge"),
    [
        (torch.sqrt, 0.0),
        (lambda x: x**0.5, 0.0),
        (torch.acos, 1.0),
        (torch.log, 0.0),
    ],
)
def test_gcs604_the_slope_at_the_edge_is_infinite(function, edge):
    x = torch.tensor([edge], requires_grad=True)
    function(x).sum().backward()
    assert x.grad.isinf().all()


@pytest.mark.parametrize(
    "hidden",
    [
        lambda x: torch.where(x > 0, x.log(), 0.0),
        lambda x: x.log().clamp(min=-10),
        lambda x: (x * x).sum().sqrt(),
    ],
)
def test_gcs604_hiding_the_edge_afterwards_gives_nan(hidden):
    x = torch.zeros(3, requires_grad=True)
    loss = hidden(x).sum()
    assert loss.isfinite()
    loss.backward()
    assert x.grad.isnan().all()


@pytest.mark.parametrize(
    "safe",
    [
        torch.linalg.vector_norm,
        lambda x: torch.cdist(x[None], x[None]).sum(),
        torch.std,
        lambda x: x.clamp_min(1e-12).sqrt().sum(),
    ],
)
def test_gcs604_these_are_safe_at_zero(safe):
    x = torch.zeros(3, requires_grad=True)
    safe(x).backward()
    assert torch.equal(x.grad, torch.zeros(3))


def _forward_and_reverse(function):
    x, one = torch.tensor([2.0]), torch.ones(1)
    _, jvp = torch.func.jvp(function, (x,), (one,))
    _, pull_back = torch.func.vjp(function, x)
    return jvp.item(), pull_back(one)[0].item()


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_gcs605_the_modes_disagree(example, instead):
    assert _forward_and_reverse(example("GCS605").Cube.apply) == (6.0, 12.0)
    assert _forward_and_reverse(instead("GCS605").Cube.apply) == (12.0, 12.0)


def _per_sample(function, x):
    def loss(row):
        return (function(row) * torch.tensor([1.0, 2.0, 4.0])).sum()

    gradient = torch.func.grad(loss)
    return torch.func.vmap(gradient)(x), torch.stack([gradient(row) for row in x])


def test_gcs606_per_sample_gradients_are_silently_wrong(example, instead):
    x = torch.randn(2, 3)
    batched, looped = _per_sample(example("GCS606").Cumulate.apply, x)
    assert batched.shape == looped.shape
    assert not torch.allclose(batched, looped)
    assert torch.allclose(*_per_sample(instead("GCS606").Cumulate.apply, x))
    assert gradcheck(example("GCS606").Cumulate.apply, _random(3))


def test_gcs606_a_branch_on_values_raises_under_vmap():
    class Branching(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2 if grad_output.abs().max() > 0 else grad_output

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(Branching.apply(x), x, torch.eye(3), is_grads_batched=True)


def test_gcs607_fails_once_an_output_is_ignored(example, instead):
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    together = sum(example("GCS607").SumAndDifference.apply(a, b)).sum()
    together.backward()
    total, _ = example("GCS607").SumAndDifference.apply(a, b)
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+.*'NoneType'"):
        total.sum().backward()
    a.grad = b.grad = None
    total, _ = instead("GCS607").SumAndDifference.apply(a, b)
    total.sum().backward()
    assert torch.equal(b.grad, torch.ones(2))


def test_gcs608_the_second_output_has_no_graph(example, instead):
    for names, attached in ((example("GCS608"), False), (instead("GCS608"), True)):
        query = _random(3, 4)
        output, entropy = names.attention(query, _random(5, 4), _random(5, 4))
        assert output.requires_grad
        assert entropy.requires_grad is attached
        shifted = names.attention(query + 0.1, query.detach(), query.detach())[1]
        assert not torch.allclose(shifted, names.attention(query, query.detach(), query)[1])


def test_gcs608_gradcheck_skips_such_outputs(example):
    key, value = _random(5, 4).detach(), _random(5, 4).detach()
    assert gradcheck(lambda query: example("GCS608").attention(query, key, value), _random(3, 4))


def test_gcs609_a_transposed_gradient_is_misread(example, instead):
    def gradient(names):
        x = torch.randn(2, 3, requires_grad=True)
        (names.Scale.apply(x, 2.0).t() * torch.arange(6.0).view(3, 2)).sum().backward()
        return x.grad

    right = 2 * torch.arange(6.0).view(3, 2).t()
    assert torch.equal(gradient(instead("GCS609")), right)
    assert not torch.equal(gradient(example("GCS609")), right)
    assert gradcheck(lambda x: example("GCS609").Scale.apply(x, 2.0), _random(2, 3))


def test_gcs610_the_gradient_does_not_scale_with_the_loss(example, instead):
    def gradient(names, factor):
        x = torch.ones(3, requires_grad=True)
        (factor * names.Identity.apply(x)).sum().backward()
        return x.grad[0].item()

    assert [gradient(example("GCS610"), factor) for factor in (1.0, 100.0)] == [1.0, 1.0]
    assert [gradient(instead("GCS610"), factor) for factor in (1.0, 100.0)] == [1.0, 100.0]
    for fast_mode in (False, True):
        assert gradcheck(example("GCS610").Identity.apply, _random(3), fast_mode=fast_mode)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gcs611_compiled_and_eager_differ(example, instead):
    def gradients(function):
        found = []
        # The front end alone decides here; generating code would only take time.
        for run in (function, torch.compile(function, backend="eager")):
            x = torch.tensor([3.0, 4.0], requires_grad=True)
            run(x)[0].backward()
            found.append(x.grad)
        torch.compiler.reset()
        return found

    eager, compiled = gradients(example("GCS611").normalize)
    assert torch.allclose(eager, torch.tensor([0.128, -0.096]))
    assert torch.allclose(compiled, torch.tensor([0.2, 0.0]))
    eager, compiled = gradients(instead("GCS611").normalize)
    assert torch.allclose(eager, compiled)


def test_gcs612_a_constant_makes_what_follows_wider(example, instead):
    model = torch.nn.Linear(3, 64)
    loss = example("GCS612").loss(model, torch.randn(2, 3))
    assert loss.dtype is torch.float64
    loss.backward()
    assert model.weight.grad.dtype is torch.float32
    assert instead("GCS612").loss(model, torch.randn(2, 3)).dtype is torch.float32


def test_gcs613_backward_sees_another_mask_than_forward(example, instead):
    def error(names):
        """How far the gradient is from what the kept output says it is, for a linear body."""
        torch.manual_seed(3)
        model = names.Encoder(64)
        output = model(torch.randn(8, 64))
        kept = output.detach() != 0
        output.sum().backward()
        expected = kept.sum(0) * 2.0
        return (model.body[0].bias.grad - expected).abs().max()

    assert error(example("GCS613")) > 1
    assert error(instead("GCS613")) == 0


def test_gcs614_the_best_that_is_learned_is_the_mean_of_the_targets(example, instead):
    def error(names):
        torch.manual_seed(0)
        x = torch.randn(32, 3)
        y = 3 * x[:, 0]
        model = names.build()
        names.train(model, [(x, y)] * 400, steps=400)
        return (model(x).squeeze(-1) - y).pow(2).mean().item() / y.var().item()

    assert error(example("GCS614")) > 0.5
    assert error(instead("GCS614")) < 0.1
