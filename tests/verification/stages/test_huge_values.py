"""Backwards that overflow where forward does not, and sizes that only some functions mean."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite import Severity, check_gradients


class LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx, grad):
        weights = ctx.saved_tensors[0].exp()
        return grad[..., None] * weights / weights.sum(-1, keepdim=True)


class SafeLogSumExp(LogSumExp):
    @staticmethod
    def backward(ctx, grad):
        return grad[..., None] * ctx.saved_tensors[0].softmax(-1)


class Pairs(torch.autograd.Function):
    """Leaves the last column out where their number is odd."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        count = x.shape[1] // 2 * 2
        found = torch.zeros_like(x)
        found[:, :count] = (2 * x * grad)[:, :count]
        return found


class Halves(torch.autograd.Function):
    """Rotates pairs, as rotary embeddings do; made for even sizes."""

    @staticmethod
    def forward(_ctx, x):
        one, two = x.chunk(2, -1)
        return torch.cat([-two, one], -1)

    @staticmethod
    def backward(_ctx, grad):
        one, two = grad.chunk(2, -1)
        return torch.cat([two, -one], -1)


class Blocks(torch.autograd.Function):
    """Works in blocks of 64 columns and forgets a rest beyond the first block."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        found = 2 * x * grad
        rows = x.shape[0]
        if rows > 64:
            found = found.clone()
            found[rows // 64 * 64 :] = 0
        return found


class Spectrum(torch.autograd.Function):
    """Comes back one short from the spectrum of an odd number of samples."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(torch.fft.rfft(kernel))
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=x.shape[-1])

    @staticmethod
    def backward(ctx, grad):
        (kernel,) = ctx.saved_tensors
        return torch.fft.irfft(torch.fft.rfft(grad) * kernel.conj()), None


class Root(torch.autograd.Function):
    """Smooth at zero; its backward divides zero by zero there."""

    @staticmethod
    def forward(ctx, x):
        root = x.abs().sqrt()
        ctx.save_for_backward(x, root)
        return x * root

    @staticmethod
    def backward(ctx, grad):
        x, root = ctx.saved_tensors
        return grad * 1.5 * x.abs() / root


def draw(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()


def softplus(x):
    return torch.where(x > 20, x, torch.log(1 + x.exp()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", [LogSumExp, softplus])
def test_overflow_in_backward_is_a_warning(function, dtype):
    (finding,) = check_gradients(function, draw(4, 6, dtype=dtype)).findings
    assert finding.code == "GCS604"
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("only for huge values, whose exponential overflows: ")
    assert " entries, first `" in finding.message
    assert finding.evidence["variation"] == "magnitudes"


@pytest.mark.parametrize(
    "function",
    [SafeLogSumExp, torch.nn.functional.softplus, torch.exp, lambda x: x.exp().sum(-1).log()],
)
def test_what_is_safe_or_overflows_in_forward_is_silent(function):
    assert check_gradients(function, draw(4, 6)).findings == ()


def test_a_middle_dimension_is_resized_too():
    (finding,) = check_gradients(Pairs, draw(2, 4, 3)).findings
    assert finding.message.startswith("only with dimension 1 of size 5 in place of 4: ")


def test_what_other_sizes_change_in_forward_and_is_right_for_multiples_is_a_warning():
    (finding,) = check_gradients(Halves, draw(3, 6)).findings
    assert finding.severity is Severity.WARNING
    assert finding.hint.endswith(
        "it is right for multiples of 6; if only these are meant, let forward refuse others"
    )


def test_what_forward_does_as_before_in_every_size_is_an_error():
    (finding,) = check_gradients(Pairs, draw(3, 6)).findings
    assert finding.severity is Severity.ERROR


def test_a_block_that_no_multiple_fills_is_an_error():
    (finding,) = check_gradients(Blocks, draw(4, 6)).findings
    assert finding.severity is Severity.ERROR


def transforms_expanded_tensors():
    try:
        torch.fft.rfft(torch.ones(()).expand(3, 8))
    except RuntimeError:
        return False
    return True


@pytest.mark.skipif(
    not transforms_expanded_tensors(), reason="torch.fft itself refuses an expanded tensor here"
)
def test_a_backward_that_raises_for_a_size_that_forward_takes():
    kernel = draw(8).detach()
    (finding,) = check_gradients(Spectrum, (draw(3, 8), kernel)).findings
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("only with a last dimension of 11 in place of 8: Spectrum")


def test_nan_at_one_entry_is_named_though_the_gradient_is_right_close_by():
    x = draw(3, 4).detach()
    x[0, 1] = 0.0
    (finding,) = check_gradients(Root, x.requires_grad_(), order=1).findings
    assert finding.code == "GCS604"
    assert "; 1 of 12 entries: `x[0, 1]`; made by" in finding.message
    assert finding.hint is None
