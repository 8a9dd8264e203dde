"""What kind of mistake a gradient shows is said in words, and only if a probe bears it out."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import Function

from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.diagnosis.classify import name_ratio
from tests.verification.mutants.claims import added_by


def times(spoil, forward=torch.sin, slope=torch.cos):
    """Make a Function whose gradient is ``spoil`` of the right one."""

    class Times(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return spoil(grad_output * slope(x))

    return Times


def only_finding(target, *inputs):
    (finding,) = check_gradients(target, inputs, order=1, variations=()).findings
    return finding


@pytest.mark.parametrize(
    ("ratio", "name"),
    [
        (2.0, "2"),
        (0.5, "1/2"),
        (1.0 / 3.0, "1/3"),
        (math.pi, "pi"),
        (2.0 * math.pi, "2*pi"),
        (math.sqrt(2.0), "sqrt(2)"),
        (7.0, "7, and 7 is the size of dimension 0 of `x`"),
        (1.0 / 35.0, "1/35, and 35 is the number of elements of `x`"),
        (-math.sqrt(7.0), "-sqrt(7), and 7 is the size of dimension 0 of `x`"),
        (1.2345, ""),
    ],
)
def test_a_ratio_is_named_if_it_equals_a_known_number(ratio, name):
    assert name_ratio(ratio, 1e-9, [("x", (7, 5))]) == name


@pytest.mark.parametrize("ratio", [2.0, 0.5, -3.0, math.pi, 1.01, 1.00001])
def test_a_constant_factor_is_told(randn, ratio):
    finding = only_finding(times(lambda g: ratio * g), randn(4, 5))
    assert finding.evidence["kind"] == "factor"
    assert finding.evidence["ratio"] == pytest.approx(ratio)
    assert f"is {ratio:.6g} times the numeric one" in finding.message


def test_the_size_that_a_factor_equals_is_hinted(randn):
    finding = only_finding(times(lambda g: 5 * g), randn(4, 5))
    assert finding.hint.startswith("5 is the size of dimension 1 of `x`")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda g: -g, "sign", "has the wrong sign"),
        (lambda g: g.t().contiguous(), "transposed", "once dimensions 0 and 1 are swapped"),
        (lambda g: 2 * g.t(), "transposed", "is 2 times as large as it should be"),
        (lambda g: g.flip(0), "flipped", "flip(0) of it is right"),
        (lambda g: g.roll(1, 1), "shifted", "roll(-1, 1) of it is right"),
        (
            lambda g: g + g.mean(1, keepdim=True),
            "missing term",
            "once - 0.5 * grad_input.mean(1, keepdim=True) is added, where grad_input is what",
        ),
        (lambda g: g * (torch.arange(25).view(5, 5) != 7), "region", "one entry, `x[1, 2]`"),
        (lambda g: torch.cat([g[:3], 0 * g[3:]]), "region", "at `x[3:, :]`"),
        (lambda g: torch.cat([g[:, :1], 0 * g[:, 1:3], g[:, 3:]], 1), "region", "`x[:, 1:3]`"),
        (lambda g: g * torch.tensor([1.0, 2.0]).repeat(3)[:5], "region", "`x[:, 1::2]`"),
    ],
)
def test_each_kind_has_its_words(randn, spoil, kind, words):
    finding = only_finding(times(spoil), randn(5, 5))
    assert finding.evidence["kind"] == kind
    assert words in finding.message


def rms_norm(eps):
    """Return the RMS normalisation, and one whose backward has the wrong power of the inverse."""

    def right(x, weight):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps) * weight

    class WrongPower(Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return right(x, weight)

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            inverse = torch.rsqrt(x.square().mean(1, keepdim=True) + eps)
            scaled = grad_output * weight
            inner = (scaled * x).mean(1, keepdim=True)
            return inverse * scaled - inverse.square() * x * inner, (grad_output * x * inverse).sum(
                0
            )

    return right, WrongPower


def mended(words, right, target):
    """Make a Function whose backward adds to another's what a message says, as it stands."""

    class Mended(Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return right(x, weight)

        @staticmethod
        def backward(ctx, grad_output):
            named = dict(zip(("x", "weight"), ctx.saved_tensors, strict=True))
            with torch.enable_grad():
                leaves = [one.detach().requires_grad_() for one in ctx.saved_tensors]
                output = target.apply(*leaves)
            ours = torch.autograd.grad(output, leaves, grad_output)
            return ours[0] + added_by(words, named, grad_output, ours[0], output), ours[1]

    return Mended


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_to_be_added_makes_the_check_pass_as_it_stands(dtype, eps, seed):
    draw = torch.Generator().manual_seed(seed)

    def drawn():
        sizes = ((3, 5), (5,))
        return [
            torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
            for size in sizes
        ]

    right, target = rms_norm(eps)
    words = only_finding(target, *drawn()).message
    if "it is right once" not in words:
        # In float64 it shows that eps takes a little away from the mean square of xhat.
        assert "differs from the numeric one" in words
        assert eps == 1e-2 or dtype is torch.float64
        return
    here = mended(words, right, target)
    assert not check_gradients(here, drawn(), order=1, variations=()).findings


def test_what_makes_up_for_it_at_the_given_point_alone_is_not_told():
    """Where every entry is 1 or -1, ``x`` is ``x ** 3``."""

    class Cubed(Function):
        @staticmethod
        def forward(ctx, x):
            return x + x**4 / 4

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    signs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]], dtype=torch.float64)
    message = only_finding(Cubed, signs.requires_grad_()).message
    assert "it is right once" not in message


def test_a_transposition_of_another_shape_is_told_as_it_is_written(randn):
    def spoil(gradient):
        return gradient.t().contiguous().reshape(gradient.shape)

    message = only_finding(times(spoil), randn(2, 3)).message
    assert "is transposed: reshape(3, 2).transpose(0, 1) of it is right" in message


def test_nothing_is_said_of_a_mistake_without_a_pattern(randn):
    noise = randn(5, 5, requires_grad=False)
    finding = only_finding(times(lambda g: g * noise), randn(5, 5))
    assert finding.evidence["kind"] == "other"
    assert "differs from the numeric one by" in finding.message


class RunningSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.cumsum(1)


class Inverse(Function):
    @staticmethod
    def forward(ctx, x):
        inverse = x.inverse()
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad_output):
        (inverse,) = ctx.saved_tensors
        return -inverse @ grad_output @ inverse


def test_a_backward_that_runs_the_wrong_way_is_told(randn):
    finding = only_finding(RunningSum, randn(3, 6))
    assert finding.evidence["kind"] == "flipped"
    assert (
        "runs the wrong way: flip(1) of what it gives for grad_output.flip(1) is right"
        in finding.message
    )
    matrix = (randn(4, 4) + 3.0 * torch.eye(4)).detach().requires_grad_()
    finding = only_finding(Inverse, matrix)
    assert finding.evidence["kind"] == "transposed"
    assert "lacks a transposition: transpose(0, 1) of what it gives for" in finding.message


def test_a_gradient_read_as_another_shape_is_transposed(randn):
    function = times(lambda g: g.t().reshape(g.shape))
    finding = only_finding(function, randn(3, 4))
    assert "is transposed" in finding.message


def test_only_in_float32(randn):
    function = times(lambda g: g * 1.5 if g.dtype == torch.float32 else g)
    finding = only_finding(function, randn(6, dtype=torch.float32))
    assert finding.evidence["only"] == ["dtype"]
    assert "; only in float32: in float64 it is right" in finding.message


def test_only_in_this_layout(randn):
    class Reads(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 2 * grad_output * (x if x.is_contiguous() else 1.5 * x)

    x = randn(4, 3).detach().t().requires_grad_()
    finding = only_finding(Reads, x)
    assert finding.evidence["only"] == ["layout"]
    assert "for contiguous inputs it is right" in finding.message


def test_only_for_one_of_two_outputs(randn):
    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, grad_sin, grad_cos):
            (x,) = ctx.saved_tensors
            return grad_sin * x.cos() + grad_cos * x.sin()

    finding = only_finding(Both, randn(4))
    assert finding.evidence["output"] == "output[1]"
    assert finding.evidence["only"] == ["output"]
    assert "only for this output: that of `output[0]` is right" in finding.message


def test_a_slice_that_stands_for_a_sum(randn):
    class Gain(Function):
        @staticmethod
        def forward(ctx, x, gain):
            ctx.save_for_backward(x, gain)
            return x * gain

        @staticmethod
        def backward(ctx, grad_output):
            x, gain = ctx.saved_tensors
            return grad_output * gain, (grad_output * x)[-1]

    finding = only_finding(Gain, randn(3, 4), randn(4))
    assert finding.evidence["input"] == "gain"
    assert "lacks a sum over dimension 0 of `output`: only its slice 2" in finding.message


def test_a_tail_beyond_whole_blocks_is_named(randn):
    def spoil(grad):
        grad = grad.clone()
        grad[1024:] = 0
        return grad

    finding = only_finding(times(spoil), randn(1030))
    assert "is wrong only within `x[1024:]`" in finding.message
    assert finding.evidence["entry"]["wrong"] <= 6


def test_entries_that_a_mask_selects(randn):
    class Masked(Function):
        @staticmethod
        def forward(ctx, x, mask):
            ctx.save_for_backward(x, mask)
            return torch.where(mask, x.exp(), x)

        @staticmethod
        def backward(ctx, grad_output):
            x, mask = ctx.saved_tensors
            return grad_output * torch.where(mask, x.exp(), 2.0), None

    mask = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    finding = only_finding(Masked, randn(4, 9), mask)
    assert "is wrong where `mask` is False and right elsewhere" in finding.message


def test_a_gradient_that_ignores_the_inputs(randn):
    function = times(lambda g: g, forward=torch.sin, slope=torch.ones_like)
    finding = only_finding(function, randn(6))
    assert finding.evidence["kind"] == "stale"


def test_a_large_tensor_costs_few_evaluations(randn):
    report = check_gradients(times(lambda g: g.roll(1, 0)), randn(300, 400), order=1, variations=())
    (finding,) = report.findings
    assert "roll(-1, 0) of it is right" in finding.message
    assert report.summary["evaluations"] < 700
