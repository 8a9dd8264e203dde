"""Inputs in containers, and what inputs, parameters and outputs are called."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients


def names(report):
    return [verdict.input for verdict in report.verdicts]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    scale: float


def test_inputs_are_named_by_the_signature(randn):
    def loss(prediction, target, *rest, weight=None):
        return ((prediction - target + sum(rest)) ** 2 * weight).sum()

    inputs = (randn(3), randn(3), randn(3), randn(3))
    report = check_gradients(loss, inputs, kwargs={"weight": randn(3)})
    assert names(report) == ["prediction", "target", "rest[0]", "rest[1]", "weight"]
    assert report.ok


def test_inputs_without_a_signature_are_numbered(randn):
    assert names(check_gradients(torch.mul, (randn(3), randn(3)))) == ["inputs[0]", "inputs[1]"]


def test_a_dict_of_inputs_holds_keyword_arguments(randn):
    def f(a, b):
        return a * b.exp()

    report = check_gradients(f, {"b": randn(3), "a": randn(3)})
    assert sorted(names(report)) == ["a", "b"]
    assert report.ok


def test_nested_containers_keep_their_types(randn):
    seen = []

    def f(tree):
        seen.append(tree)
        named, (batch, ordered) = tree
        return named.first * named.second + batch.x * batch.scale + ordered["bias"][0]

    tree = [
        Pair(randn(3), randn(3)),
        (Batch(randn(3), 2.0), OrderedDict(bias=[randn(3)], name="text")),
    ]
    report = check_gradients(f, (tree,))
    assert names(report) == [
        "tree[0].first",
        "tree[0].second",
        "tree[1][0].x",
        "tree[1][1]['bias'][0]",
    ]
    assert report.ok
    (named, (batch, ordered)) = seen[-1]
    assert (type(named), type(batch), type(ordered)) == (Pair, Batch, OrderedDict)
    assert (batch.scale, ordered["name"]) == (2.0, "text")


def test_outputs_in_containers_are_named_and_the_rest_is_ignored(randn):
    def f(x):
        return {"loss": x.sum(), "extra": [None, x * 2, "text", 3.0], "index": x.argmax()}

    report = check_gradients(f, randn(3))
    assert {verdict.output: verdict.status for verdict in report.verdicts} == {
        "output['loss']": "pass",
        "output['extra'][1]": "pass",
        "output['index']": "not covered",
    }


def test_parameters_are_named_as_the_module_names_them(randn):
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    report = check_gradients(net, randn(4, 3))
    assert names(report) == ["input", "0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_parameter_with_the_name_of_an_input_is_told_apart(randn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, scale):
            return scale * self.scale

    assert names(check_gradients(Net(), randn(3))) == ["scale", "self.scale"]


def test_parameters_can_be_held_constant(randn):
    report = check_gradients(nn.Linear(3, 2).double(), randn(4, 3), parameters=False)
    assert names(report) == ["input"]
    assert report.not_covered == ("the module's parameters were held constant (parameters=False)",)


def test_what_does_not_require_grad_is_constant_and_said(randn):
    net = nn.Linear(3, 2).double()
    net.bias.requires_grad_(False)
    report = check_gradients(net, randn(4, 3, requires_grad=False))
    assert names(report) == ["weight"]
    assert report.not_covered == (
        "input `input` does not require grad and was held constant",
        "parameter `bias` does not require grad and was held constant",
    )


def test_shared_parameters_are_one(randn):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(3, 3, bias=False, dtype=torch.float64)
            self.decode = nn.Linear(3, 3, bias=False, dtype=torch.float64)
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(torch.tanh(self.encode(x)))

    report = check_gradients(Tied(), randn(4, 3))
    assert names(report) == ["x", "encode.weight"]
    assert report.ok


def test_a_method_of_a_module_is_checked_with_its_parameters(randn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2).double()

        def loss(self, x):
            return (self.linear(x) ** 2).mean()

    report = check_gradients(Net().loss, randn(4, 3))
    assert names(report) == ["x", "linear.weight", "linear.bias"]
    assert report.summary["target"] == "Net.loss"
    assert report.ok


@pytest.mark.parametrize("form", ["class", "apply"])
def test_an_autograd_function_is_named_by_its_forward(wrong, randn, form):
    function = wrong.RightProduct if form == "class" else wrong.RightProduct.apply
    report = check_gradients(function, (randn(2, 3), randn(3, 2)), order=1)
    assert names(report) == ["x", "weight"]
    assert report.summary["target"] == "RightProduct"


def test_a_function_with_setup_context_has_no_ctx_to_skip(randn):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(base):
            return base**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, grad_output):
            return 3 * grad_output * ctx.saved_tensors[0] ** 2

    report = check_gradients(Cube, randn(4), order=1)
    assert names(report) == ["base"]
    assert report.ok


def test_partials_and_callable_objects_are_callables(randn):
    class Power:
        def __call__(self, x):
            return x**2

    assert check_gradients(partial(torch.mul, other=2.0), randn(3)).ok
    assert names(check_gradients(Power(), randn(3))) == ["x"]


@pytest.mark.parametrize("dtype", ["float64", torch.float64])
def test_a_cast_reaches_inputs_parameters_and_buffers(dtype):
    seen = set()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x, scale):
            seen.update({x.dtype, scale.dtype, self.norm.weight.dtype})
            seen.add(self.norm.running_mean.dtype)
            return self.norm(x) * scale

    x, scale = torch.randn(6, 3, requires_grad=True), torch.ones(3)
    report = check_gradients(Net(), (x, scale), dtype=dtype)
    assert seen == {torch.float64}
    assert report.ok
    assert report.summary["dtype"] == "float64"


def test_half_precision_is_checked_natively_or_cast():
    x = torch.randn(5, requires_grad=True).to(torch.bfloat16).detach().requires_grad_()
    y = torch.randn(5, requires_grad=True)
    report = check_gradients(torch.mul, (x, y))
    assert names(report) == ["inputs[0]", "inputs[1]"]
    assert report.summary["dtype"] == "native (bfloat16, float32)"
    assert names(check_gradients(torch.mul, (x, y), dtype="float64")) == ["inputs[0]", "inputs[1]"]


def test_inputs_that_share_storage_are_checked_apart_and_said(randn):
    x = randn(4)
    report = check_gradients(torch.mul, (x, x))
    assert report.ok
    (line,) = report.not_covered
    assert line.startswith("`inputs[0]` and `inputs[1]` are the same tensor; they were checked as")
    whole = randn(8).detach()
    ahead, behind = whole[:5].requires_grad_(), whole[3:].requires_grad_()
    (line,) = check_gradients(lambda a, b: a.sum() * b, (ahead, behind)).not_covered
    assert line.startswith("`a` and `b` share memory; they were checked as two independent")


def test_chunks_of_one_storage_do_not_share_memory(randn):
    columns = randn(4, 6).detach().chunk(2, dim=1)
    report = check_gradients(torch.mul, tuple(chunk.requires_grad_() for chunk in columns))
    assert report.not_covered == ()


def test_empty_tensors_are_not_passed(randn, statuses):
    report = check_gradients(lambda x, y: (x.sum() + y, x * 2), (randn(0), randn(3)))
    assert statuses(report) == {
        ("output[0]", "x"): "not covered",
        ("output[0]", "y"): "pass",
        ("output[1]", "x"): "not covered",
        ("output[1]", "y"): "not covered",
    }


def test_expanded_and_strided_inputs_are_read_right(randn):
    expanded = randn(1, 3).detach().expand(4, 3).requires_grad_()
    strided = randn(4, 6).detach()[:, ::2].requires_grad_()
    report = check_gradients(torch.mul, (expanded, strided))
    assert report.ok
    assert set(names(report)) == {"inputs[0]", "inputs[1]"}


def test_the_summary_has_the_figures_of_the_run(randn):
    report = check_gradients(torch.sin, randn(4), seed=3, probes=5, variations=())
    assert report.tool == "gradcheck-suite verify"
    assert report.summary["seed"] == 3
    assert report.summary["probes"] == 5
    assert report.summary["dtype"] == "native (float64)"
    assert 20 < report.summary["evaluations"] < 60


def test_a_function_that_takes_gradients_itself_is_checked(randn):
    """A gradient penalty can't be computed while gradients are not recorded."""

    def penalty(x):
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return slope.square().sum()

    assert check_gradients(penalty, randn(4)).summary["verdicts"] == {"pass": 1}


def test_a_function_that_returns_the_same_buffer_each_time(randn):
    class Buffered(torch.autograd.Function):
        buffer = torch.empty(4, dtype=torch.float64)

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Buffered.buffer.copy_(x.sin())

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.saved_tensors[0].cos()

    report = check_gradients(Buffered, randn(4), order=1)
    assert report.summary["verdicts"] == {"pass": 1}


def test_a_checkpointed_function_passes(randn):
    def f(x):
        run = torch.utils.checkpoint.checkpoint
        return run(lambda t: (t.sin() * t).sum(), x, use_reentrant=False)

    assert check_gradients(f, randn(5)).summary["verdicts"] == {"pass": 1}


def test_reentrant_checkpointing_is_refused(randn):
    """It needs backward(), which would write to the .grad of whatever the function closes over."""

    def f(x):
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)

    with pytest.raises(UsageError, match="use_reentrant=False"):
        check_gradients(f, randn(5))


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_parametrized_modules_pass(randn, wrap):
    torch.manual_seed(0)
    report = check_gradients(wrap(nn.Linear(4, 3).double()), randn(5, 4))
    assert report.findings == ()
    assert set(report.summary["verdicts"]) == {"pass"}


@pytest.mark.parametrize(
    ("wrap", "weight"),
    [
        (nn.utils.parametrizations.spectral_norm, "parametrizations.weight.original"),
        (nn.utils.spectral_norm, "weight_orig"),
    ],
    ids=["parametrization", "hook"],
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_spectral_norm_that_has_not_settled_is_held_constant(randn, wrap, weight):
    torch.manual_seed(1)
    module = wrap(nn.Linear(16, 8).double())
    report = check_gradients(module, randn(5, 16))
    assert report.findings == ()
    assert {verdict.input for verdict in report.verdicts} == {"input", "bias"}
    assert any(weight in line and "spectral norm" in line for line in report.not_covered)
    for _ in range(1000):
        module(torch.zeros(1, 16).double())
    report = check_gradients(module, randn(5, 16))
    assert report.findings == ()
    assert weight in {verdict.input for verdict in report.verdicts}
    torch.manual_seed(1)
    report = check_gradients(wrap(nn.Linear(16, 8).double()).eval(), randn(5, 16))
    assert report.findings == ()
    assert weight in {verdict.input for verdict in report.verdicts}


def test_a_padding_row_gets_no_gradient_by_design():
    torch.manual_seed(0)
    module = torch.nn.Embedding(5, 3, padding_idx=1).double()
    report = check_gradients(module, torch.tensor([[0, 1], [4, 1]]))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass"]
    assert any("padding_idx" in line and "row 1" in line for line in report.not_covered)


def test_gradients_scaled_by_frequency_are_held_constant():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(5, 3, scale_grad_by_freq=True)
    module = torch.nn.Sequential(embedding, torch.nn.Linear(3, 2)).double()
    report = check_gradients(module, torch.tensor([0, 1, 1]))
    assert report.findings == ()
    assert {verdict.input for verdict in report.verdicts} == {"1.weight", "1.bias"}
    assert any("scale_grad_by_freq" in line for line in report.not_covered)
