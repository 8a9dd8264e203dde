"""A backward that is not the derivative on purpose fails, and may say that it is meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite import check_gradients, localize


class Round(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x, step):
        return (x / step).round() * step

    @staticmethod
    def backward(_ctx, grad):
        return grad, None


class MeantRound(Round):
    straight_through = True


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class InBFloat16(torch.autograd.Function):
    """Computes in half precision, as under autocast; its gradient is right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.bfloat16() * 2).to(x.dtype)

    @staticmethod
    def backward(_ctx, grad):
        return grad * 2


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def given(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def meant(x):
    return MeantRound.apply(x, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: Round.apply(x, 1.0), "Round"),
        (lambda x: Round.apply(x, 0.05).sin(), "Round"),
        (Sign.apply, "Sign"),
    ],
)
def test_a_straight_through_estimator_fails_and_the_hint_names_it(function, name, dtype):
    report = check_gradients(function, given(30, dtype=dtype))
    (finding,) = report.findings
    assert finding.code == "GCS601"
    assert "is not zero, although the function is made of steps" in finding.message
    assert f"made by {name}.backward" in finding.message
    assert f"write `straight_through = True` in the body of {name}" in finding.hint
    assert finding.evidence["kind"] == "not zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_in_a_network_fails_for_what_lies_before_it_alone(dtype):
    report = check_gradients(Net(Sign.apply).to(dtype), given(4, 6, dtype=dtype))
    statuses = {verdict.input: verdict.status for verdict in report.verdicts}
    assert statuses.pop("last.weight") == statuses.pop("last.bias") == "pass"
    assert set(statuses.values()) == {"fail"}


def test_one_that_says_so_is_no_mistake_and_never_a_pass():
    report = check_gradients(meant, given(20), full=True)
    assert report.ok
    assert [verdict.status for verdict in report.verdicts] == ["inconclusive"]
    assert "by design not its derivative" in report.verdicts[0].reason


def test_behind_one_that_says_so_mistakes_are_still_found():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return 3.0 * x

        @staticmethod
        def backward(_ctx, grad):
            return 2.0 * grad

    report = check_gradients(lambda x, y: meant(x) + Wrong.apply(y), (given(9), given(9)))
    assert [finding.evidence["input"] for finding in report.findings] == ["y"]
    assert localize(Net(meant).double(), given(4, 6)).ok


def test_computing_in_half_precision_is_not_rounding_on_purpose():
    for dtype in (torch.float32, torch.float64):
        assert check_gradients(InBFloat16, given(40, dtype=dtype)).ok


def test_steps_without_a_function_are_not_told_to_have_the_wrong_sign():
    report = check_gradients(lambda x: 3.0 * (x + (x.round() - x).detach()), given(20))
    (finding,) = report.findings
    assert "is not zero" in finding.message
    assert "straight-through estimator" in finding.hint


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, grad):
        return -grad


def test_a_reversed_gradient_is_told_how_to_say_that_it_is_meant():
    (finding,) = check_gradients(lambda x: Reversed.apply(x.sin()), given(9)).findings
    assert "has the wrong sign" in finding.message
    assert "write `straight_through = True` in the body of Reversed" in finding.hint

    class Meant(Reversed):
        straight_through = True

    report = check_gradients(lambda x: Meant.apply(x.sin()), given(9))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["inconclusive"]
