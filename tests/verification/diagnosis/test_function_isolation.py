"""A Function is named only where it is wrong by itself, at the inputs that it really gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 1.0

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y, grad_output * x


def drawn(*shape, dtype=torch.float64):
    # Drawn in one dtype: versions of torch draw other numbers in half precision.
    generator = torch.Generator().manual_seed(1)
    drawn_numbers = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return drawn_numbers.to(dtype).requires_grad_()


INNOCENT = {
    "detach before": lambda x: Scaled.apply(x - x.mean(0).detach(), 1.0),
    "detach beside": lambda x: Scaled.apply(x, 1.0) + x.detach() ** 2,
    "detach into": lambda x: Product.apply(x, x.detach()),
    "two of them": lambda x: Product.apply(Scaled.apply(x.sin(), 1.0), x.detach()),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", INNOCENT)
@pytest.mark.sampled(every=4)
def test_a_detach_is_not_laid_at_the_door_of_a_function(name, dtype):
    (finding,) = check_gradients(INNOCENT[name], drawn(4, 5, dtype=dtype)).findings
    assert finding.code == "GCS601"
    assert "made by" not in finding.message
    assert "; `detach()` takes a part of it out of the graph there" in finding.message
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[finding.location.line - 1]
    assert name in line
    assert "detach()" in line
    assert "functions" not in finding.evidence


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_function_that_is_wrong_is_named(dtype):
    def wrong(x):
        return Product.apply(Scaled.apply(x.sin(), 1.25), x)

    (finding,) = check_gradients(wrong, drawn(4, 5, dtype=dtype)).findings
    assert finding.message.endswith("made by Scaled.backward")
    assert finding.location.function == "Scaled.backward"


def test_a_hook_that_clamps_is_not_laid_at_the_door_of_a_function():
    def hooked(x):
        y = x * 2.0
        y.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
        return Scaled.apply(y, 1.0)

    (finding,) = check_gradients(hooked, drawn(4, 5)).findings
    assert finding.code == "GCS610"
    assert "made by" not in finding.message


class Bag(nn.Module):
    """The gradient of an embedding bag can't be differentiated again; the Function's can."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 4, mode="mean", sparse=True).double()

    def forward(self, words):
        return Scaled.apply(self.bag(words), 1.0)


def test_an_op_of_torch_without_second_order_is_not_laid_at_the_door_of_a_function():
    words = torch.arange(6).view(2, 3)
    report = check_gradients(Bag(), words)
    assert not report.findings
    assert any(
        "order 2" in line and "no custom Function's doing" in line and "NotImplementedError" in line
        for line in report.not_covered
    )
    (finding,) = check_gradients(Bag(), words, order=2).findings
    assert finding.severity is Severity.ERROR
    assert "made by" not in finding.message
    assert finding.hint is None


def test_a_wrong_second_order_of_torch_is_not_laid_at_the_door_of_a_function():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5).double())
    report = check_gradients(lambda x: Scaled.apply(layer(x), 1.0), drawn(3, 4))
    assert not report.findings
    assert all(verdict.status == "pass" for verdict in report.verdicts)


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]


def test_of_two_functions_that_with_the_wrong_second_order_is_named():
    def both(x):
        return Saved.apply(Product.apply(x, x))

    (finding,) = check_gradients(both, drawn(3, 4)).findings
    assert finding.code == "GCS602"
    assert "made by Saved.backward" in finding.message
    assert finding.location.function == "Saved.backward"


def test_a_reentrant_checkpoint_is_told_as_such_with_a_function_on_the_way():
    layer = nn.Linear(4, 4).double()

    def checkpointed(x):
        return Scaled.apply(checkpoint(layer, x, use_reentrant=True), 1.0)

    with pytest.raises(UsageError, match="use_reentrant=False"):
        check_gradients(checkpointed, drawn(3, 4))
