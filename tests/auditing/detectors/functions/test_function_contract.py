"""Custom Functions that break their contract while a loop runs, and those that keep it."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def train(function, *extra, steps=4):
    def loop():
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            out = net(torch.randn(3, 4))
            (out * 2 + function.apply(out, *extra)).mul(1.5).sum().backward()
            optimizer.step()

    return loop


class WritesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_output[x < 0] = 0  # <- here
        return grad_output


class GivesOneOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor  # <- here


class KeepsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x  # <- here
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.x.exp()


class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.mask = x > 0
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        gradient = grad_output.clone()
        gradient[~ctx.mask] += 0
        return gradient * ctx.factor, None


def test_a_write_into_the_given_gradient_is_told_with_its_line(audited, only, line_of):
    finding = only(audited(train(WritesGradient)), "GCS506")
    assert finding.location.line == line_of(WritesGradient)


def test_too_few_gradients_are_told_at_the_return(audited, only, line_of):
    def loop():
        with pytest.raises(RuntimeError, match="incorrect number of gradients"):
            train(GivesOneOfTwo, 2.0)()

    finding = only(audited(loop), "GCS501")
    assert finding.location.line == line_of(GivesOneOfTwo)
    assert "returned 1 gradients, expected 2" in finding.message


def test_a_tensor_kept_as_an_attribute_is_told_where_it_is_set(audited, only, line_of):
    finding = only(audited(train(KeepsInput)), "GCS205")
    assert finding.location.line == line_of(KeepsInput)


def test_nothing_is_said_of_a_function_that_keeps_its_contract(audited):
    assert audited(train(Good, 2.0)).findings == ()


class WritesLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, runs, last):
        ctx.runs, ctx.last = runs, last
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        ctx.runs.append(len(ctx.runs))
        if len(ctx.runs) == ctx.last:
            grad_output.mul_(1)
        return grad_output, None, None


@pytest.mark.parametrize(("last", "codes"), [(20, ["GCS506"]), (200, [])])
def test_a_node_that_is_gone_through_again_and_again_is_left_alone_in_the_end(audited, last, codes):
    runs: list[int] = []

    def loop():
        weight = torch.ones(3, requires_grad=True)
        out = (WritesLate.apply(weight * 2, runs, last) * torch.ones(3)).sum()
        for _ in range(200):
            torch.autograd.grad(out, weight, retain_graph=True)

    session = audited(loop)
    assert len(runs) == 200
    assert [finding.code for finding in session.findings] == codes


class ReshapesAView(GivesOneOfTwo):
    """Changes the shape of a view in place, which moves the version that both share."""

    @staticmethod
    def backward(ctx, grad_output):
        view = grad_output.unsqueeze(-1)
        view.unsqueeze_(-1)
        return view[..., 0, 0] * ctx.factor, None


class WritesByOut(GivesOneOfTwo):
    @staticmethod
    def backward(ctx, grad_output):
        return torch.mul(grad_output, ctx.factor, out=grad_output), None


def test_another_shape_of_a_view_is_no_write(audited):
    assert audited(train(ReshapesAView, 2.0)).findings == ()


def test_other_contents_by_whatever_means_are_one(audited, only):
    assert only(audited(train(WritesByOut, 2.0)), "GCS506").severity.value == "error"


class OldStyle(torch.autograd.Function):
    def forward(self, x):  # <- here
        return x.clamp(min=0)

    def backward(self, grad_output):
        return grad_output


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_an_old_function_is_told_with_its_forward(audited, only, line_of):
    def loop():
        with pytest.raises(RuntimeError, match="Legacy autograd function"):
            OldStyle()(torch.randn(3, requires_grad=True))

    finding = only(audited(loop), "GCS502")
    assert finding.location.line == line_of(OldStyle)
    assert finding.hint.endswith("call OldStyle.apply(...)")
    assert [place.message for place in finding.related] == ["called here"]


class ReturnsItsSlopeAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        return x.exp() * factor

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004 - that is the mistake
        (x,) = ctx.saved_tensors
        return x.exp(), None  # <- here


class ReturnsItsSlopeOfAny(ReturnsItsSlopeAlone):
    @staticmethod
    def backward(ctx, *_gradients):
        return torch.ones_like(ctx.saved_tensors[0]), None


class StopsTheGradient(ReturnsItsSlopeAlone):
    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004 - zeros are linear
        return torch.zeros_like(ctx.saved_tensors[0]), None


class HandsItToAnother(ReturnsItsSlopeAlone):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors

        def scaled(by):
            return by * grad_output

        return scaled(x.exp()), None


class LossWithAGradientOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004 - that is the mistake
        return 2 * ctx.saved_tensors[0]


def test_a_backward_that_never_reads_what_it_is_given_is_told(audited, only, line_of):
    finding = only(audited(train(ReturnsItsSlopeAlone, 2.0)), "GCS610")
    assert finding.location.line == line_of(ReturnsItsSlopeAlone)
    assert finding.severity.value == "warning"
    assert "never reads the gradient that it is given, which was not 1" in finding.message


def test_so_is_one_that_takes_any_number_of_them(audited, only):
    only(audited(train(ReturnsItsSlopeOfAny, 2.0)), "GCS610")


@pytest.mark.parametrize("function", [StopsTheGradient, HandsItToAnother])
def test_a_backward_that_reads_it_somehow_or_gives_zeros_is_not(audited, function):
    assert "GCS610" not in {each.code for each in audited(train(function, 2.0)).findings}


@pytest.mark.parametrize(("weight", "codes"), [(1.0, set()), (0.5, {"GCS610"})])
def test_a_loss_that_is_differentiated_as_it_stands_may_ignore_it(audited, weight, codes):
    def loop():
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            loss = LossWithAGradientOfItsOwn.apply(net(torch.randn(3, 4)))
            (loss if weight == 1.0 else loss * weight).backward()
            optimizer.step()

    assert {each.code for each in audited(loop).findings} & {"GCS610"} == codes
