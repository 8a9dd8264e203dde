"""Forward mode is held to finite differences before a jvp is accused."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import Function

from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients

AGREES = "forward mode: agrees with reverse mode"


class Sine(Function):
    """Correct in every mode."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x.cos()


class Doubled(Sine):
    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 2 * t * x.cos()


class Raises(Sine):
    @staticmethod
    def jvp(ctx, t):
        raise IndexError("tuple index out of range")


class OtherShape(Sine):
    @staticmethod
    def jvp(ctx, t):
        return t[:2]


class BackwardSign(Sine):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * x.cos()


class NotANumber(Sine):
    @staticmethod
    def jvp(ctx, t):
        return t * torch.nan


class Product(Function):
    """Takes no None, though it asks for it."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (None, None) if g is None else (g * y, g * x)

    @staticmethod
    def jvp(ctx, t, s):
        x, y = ctx.saved_tensors
        return t * y + s * x


class WrongProduct(Product):
    @staticmethod
    def jvp(ctx, t, s):
        x, y = ctx.saved_tensors
        return t * y + 2 * s * x


class Round(Function):
    """Hands its gradient through, and says so; its jvp is the derivative."""

    straight_through = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return torch.zeros_like(t)


class RoundAlike(Round):
    @staticmethod
    def jvp(ctx, t):
        return t.clone()


class RoundOtherwise(Round):
    @staticmethod
    def jvp(ctx, t):
        return 3 * t


class Kink(Sine):
    """At zero its backward takes the slope on the right, and its jvp that on the left."""

    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x >= 0)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * (x > 0)


@pytest.fixture
def x():
    return torch.linspace(-1.4, 2.0, 8, dtype=torch.float64).requires_grad_()


def checked(function, *inputs, **options):
    return check_gradients(function, inputs, forward_mode=True, variations=(), **options)


def lines_of(report):
    """Return what the report covers and does not cover of forward mode."""
    listed = (report.summary.get("covered", ()), report.not_covered)
    return tuple([line for line in lines if line.startswith("forward mode")] for lines in listed)


def product_of(x):
    """Multiply by groups, of which torch drops the tangent."""
    index = torch.tensor([0, 0, 1, 2, 3, 4, 5, 5])
    return x.exp().scatter_reduce(0, index, x, "prod")


def chunked_loss(x):
    """Compute a loss by an operation that drops the tangent of the weight."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weight = torch.randn(5, 4, dtype=x.dtype)
    target = torch.tensor([1, 3])
    return nn.functional.cross_entropy(x.view(2, 4) @ weight.T, target)


@pytest.mark.parametrize(
    "function",
    [
        torch.sin,
        Sine,
        nn.Dropout(),
        nn.BatchNorm1d(4, dtype=torch.float64),
        lambda x: (x * 2, x > 0, x.exp().sum()),
        lambda x: (x - x).sum(),
        torch.log,
        chunked_loss,
    ],
)
def test_what_is_right_agrees(x, function):
    report = checked(function, x.view(2, 4))
    assert report.findings == ()
    assert lines_of(report) == ([AGREES], [])


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(torch.exp, torch.float32), (Sine, torch.float32), (torch.exp, torch.complex128)],
)
def test_other_types_agree(x, function, dtype):
    report = checked(function, x.detach().to(dtype).requires_grad_())
    assert report.findings == ()
    assert lines_of(report) == ([AGREES], [])


def test_a_tangent_of_none_ends_nothing_and_the_wrong_input_is_named(x):
    y = (x.detach() + 2).requires_grad_()
    assert lines_of(checked(Product, x, y)) == ([AGREES], [])
    (finding,) = checked(WrongProduct, x, y).findings
    assert (finding.code, finding.severity) == ("GCS605", Severity.ERROR)
    assert finding.evidence["input"] == "y"
    assert "so forward mode is wrong; WrongProduct defines jvp" in finding.message
    assert finding.location.function == "WrongProduct.jvp"


@pytest.mark.parametrize("function", [Round, lambda x: Round.apply(3 * x).sin()])
def test_the_derivative_beside_a_straight_through_backward_is_right(x, function):
    report = checked(function, x)
    assert report.findings == ()
    covered, missing = lines_of(report)
    assert missing == []
    assert covered[0].startswith("forward mode: agrees with finite differences on `output` along")


def test_a_straight_through_jvp_agrees_with_its_backward(x):
    report = checked(RoundAlike, x)
    assert report.findings == ()
    assert lines_of(report) == ([AGREES], [])


def test_both_kinds_of_straight_through_in_one_function_are_right(x):
    report = checked(lambda x: RoundAlike.apply(x) + Round.apply(2 * x), x)
    assert report.findings == ()
    covered, (line,) = lines_of(report)
    assert covered == []
    assert "finite differences give 0 ±" in line
    assert "straight_through = True" in line


def test_neither_the_derivative_nor_what_backward_gives_is_a_warning(x):
    (finding,) = checked(RoundOtherwise, x).findings
    assert (finding.code, finding.severity) == ("GCS605", Severity.WARNING)
    assert "straight_through = True" in finding.evidence["lowered"][0]


def test_a_tangent_that_torch_drops_is_not_covered(x):
    report = checked(product_of, x)
    assert report.findings == ()
    covered, (line,) = lines_of(report)
    assert covered == []
    assert "is 0 by forward mode" in line
    assert line.endswith("`scatter_reduce` hands no tangent on, or a wrong one, and does not raise")


@pytest.mark.parametrize("function", [Sine, Doubled])
def test_beside_a_tangent_that_torch_drops_a_jvp_answers_for_itself(x, function):
    report = checked(lambda x: product_of(function.apply(x)) + x[0], x)
    named = [finding.location.function for finding in report.findings]
    assert named == ([] if function is Sine else ["Doubled.jvp"])


def test_of_several_functions_the_wrong_one_is_named(x):
    report = checked(lambda x: Sine.apply(Doubled.apply(x)), x)
    (finding,) = report.findings
    assert finding.location.function == "Doubled.jvp"


@pytest.mark.parametrize(
    ("function", "words", "line"),
    [
        (Raises, "jvp of Raises raises, where reverse mode does not: IndexError", 2),
        (OtherShape, "torch refuses what jvp of OtherShape returns", 0),
    ],
)
def test_a_jvp_that_fails_is_found_at_its_line(x, function, words, line):
    (finding,) = checked(lambda x: Sine.apply(function.apply(x)), x).findings
    assert (finding.code, finding.severity) == ("GCS605", Severity.ERROR)
    assert words in finding.message
    assert finding.location.function == f"{function.__name__}.jvp"
    first = function.jvp.__code__.co_firstlineno
    assert finding.location.line == first + max(line, 1)


def unlucky(x):
    if torch.autograd.forward_ad._current_level >= 0:
        raise ValueError("not with dual numbers")
    return Sine.apply(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unlucky, "ValueError: not with dual numbers"),
        (lambda x: unlucky(Sine.apply(x)), "ValueError: not with dual numbers"),
        (
            lambda x: nn.functional.pdist(Sine.apply(x)[:, None]),
            "NotImplementedError: Trying to use forward",
        ),
    ],
)
def test_what_else_raises_is_not_the_jvps_doing(x, function, reason):
    report = checked(function, x)
    assert report.findings == ()
    covered, (line,) = lines_of(report)
    assert covered == []
    assert line.startswith(f"forward mode: {reason}")


def test_nan_is_wrong(x):
    (finding,) = checked(NotANumber, x).findings
    assert (finding.code, finding.severity) == ("GCS605", Severity.ERROR)
    assert "is nan by forward mode" in finding.message


def test_a_wrong_backward_is_told_by_first_order_alone(x):
    report = checked(BackwardSign, x)
    assert [finding.code for finding in report.findings] == ["GCS601"]
    assert lines_of(report)[1] == []


def test_two_slopes_at_a_kink_are_a_note():
    x = torch.tensor([-1.0, 0.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (finding,) = checked(Kink, x).findings
    assert (finding.code, finding.severity) == ("GCS605", Severity.NOTE)
    assert "which does not tell the wrong one" in finding.message
    assert checked(Kink, (x.detach() + 0.5).requires_grad_()).findings == ()


def test_an_output_without_a_gradient_is_no_mismatch(x):
    report = checked(lambda x: (x.sin(), x.detach()), x)
    assert {finding.code for finding in report.findings} == {"GCS608"}
    assert lines_of(report) == ([AGREES], [])


def test_of_many_variables_it_is_said_how_many_were_looked_at(x):
    many = [x.detach().clone().requires_grad_() for _ in range(12)]
    report = checked(lambda *given: Doubled.apply(torch.stack(given)).sum(0), *many)
    assert [finding.code for finding in report.findings] == ["GCS605"]
    assert "forward mode: looked at 8 of 12 variables alone" in report.not_covered


def test_a_function_that_differs_from_call_to_call_is_not_covered(x):
    calls = []

    def counted(x):
        calls.append(x)
        return x * (1 + 1e-3 * len(calls))

    assert lines_of(checked(counted, x)) == ([], ["forward mode: the outputs are random"])
