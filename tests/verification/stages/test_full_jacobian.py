from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite import check_gradients
from gradcheck_suite.verification.numerics.evaluation_point import given_point
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline
from gradcheck_suite.verification.stages.full_jacobian.compare import compare_jacobians
from gradcheck_suite.verification.target.build import build_function


def compare(function, *inputs, max_memory=2**30, deadline=None):
    subject = build_function(function, inputs, None, CheckOptions())
    precision = precision_of([variable.value.dtype for variable in subject.variables])
    point = given_point(subject, subject.first_call(), eps=precision.eps)
    return compare_jacobians(
        subject,
        point,
        precision=precision,
        max_memory=max_memory,
        deadline=deadline or Deadline(),
    )


def right(comparisons):
    return all(c.complete and not c.wrong and not c.undecided for c in comparisons.values())


class Rolled(torch.autograd.Function):
    """Elementwise, and its backward gives each row of the batch the gradient of the next."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (2 * x * grad_output).roll(1, 0)


class OnePosition(torch.autograd.Function):
    """x @ w, wrong where one row of x meets one row of w."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad = x.t() @ grad_output
        grad[2] += grad_output[1]
        return grad_output @ weight.t(), grad


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (4, 6)),
    "relu": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (4, 6)),
    "norm": (lambda: nn.LayerNorm(8), (5, 8)),
    "batch norm": (lambda: nn.BatchNorm1d(5), (6, 5)),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.4)), (4, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(12, 2)),
        (2, 2, 4, 4),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True),
        (2, 3, 8),
    ),
    "recurrent": (lambda: nn.GRU(3, 4), (5, 2, 3)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_modules_are_right_in_every_entry(name, dtype):
    torch.manual_seed(1)
    build, shape = MODULES[name]
    found = compare(build().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True))
    assert sum(c.wrong for c in found.values()) == 0
    assert all(c.complete for c in found.values())
    if dtype == torch.float64:
        assert right(found)
        assert max(c.relative_bound for c in found.values()) < 1e-4


def test_both_jacobians_are_those_of_torch(randn):
    x, weight = randn(3, 4), randn(4, 5)

    def function(x, weight):
        return (x @ weight).tanh()

    truth = torch.autograd.functional.jacobian(function, (x, weight))
    found = compare(function, x, weight)
    for variable, expected in enumerate(truth):
        comparison = found[0, variable]
        assert comparison.analytic.reshape(expected.shape).equal(expected)
        assert (comparison.numeric.reshape(expected.shape) - expected).abs().max() < 1e-8


@pytest.mark.parametrize("max_memory", [2**30, 20_000, 3_000, 1])
def test_little_memory_changes_no_result(randn, max_memory):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    found = compare(model, randn(4, 6), max_memory=max_memory)
    assert right(found)
    assert len(found) == 5
    x, weight = randn(5, 4), randn(4, 6)
    assert compare(OnePosition.apply, x, weight, max_memory=max_memory)[0, 1].wrong == 6


def test_an_error_between_blocks_that_look_independent_is_seen(randn):
    """Grouped columns, told by the wrong Jacobian, must not hide what it is wrong about."""
    comparison = compare(Rolled.apply, randn(6, 5))[0, 0]
    assert comparison.wrong == 60  # the entries that are there, and those that ought to be
    assert bool(comparison.wrong_inputs.all())


def test_only_the_wrong_entries_are_counted(randn):
    found = compare(OnePosition.apply, randn(5, 4), randn(4, 6))
    assert right({(0, 0): found[0, 0]})
    comparison = found[0, 1]

    assert comparison.wrong == 6
    assert comparison.worst.input_index[0] == 2
    assert comparison.worst.output_index[0] == 1
    assert comparison.wrong_inputs.reshape(4, 6).any(dim=1).tolist() == [False, False, True, False]
    assert comparison.wrong_outputs.reshape(5, 6).any(dim=1).tolist() == [0, 1, 0, 0, 0]


def test_the_loop_takes_over_where_vmap_refuses(randn):
    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            assert not torch._C._functorch.is_batchedtensor(x)
            return x.exp()

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * (float(x.exp().sum()) * 0.0 + x.exp())

    def branching(x):
        return torch.cat([Plain.apply(x), x if x.sum() > 0 else -x])

    assert right(compare(branching, randn(7)))
    assert right(compare(branching, randn(3, 4).t().detach().requires_grad_()))


def test_one_backward_for_each_forward_will_do(randn):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = [x.detach()]
            return x.exp()

        @staticmethod
        def backward(ctx, grad_output):
            if not ctx.kept:
                raise RuntimeError("backward a second time")
            return grad_output * ctx.kept.pop().exp()

    assert right(compare(Once.apply, randn(4)))


def test_a_kink_at_the_point_is_not_called_wrong():
    x = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    comparison = compare(torch.relu, x)[0, 0]
    assert comparison.wrong == 0
    assert comparison.undecided == 1


def test_values_that_are_not_finite_are_left_out():
    x = torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    comparison = compare(lambda x: x.log(), x)[0, 0]
    assert comparison.wrong == 0


def test_several_outputs_and_a_detached_one(randn):
    found = compare(lambda x: (x.sin(), x.detach().cos(), x.sum()), randn(4))
    assert right({0: found[0, 0], 2: found[2, 0]})
    assert found[1, 0].wrong == 4


def test_the_time_may_run_out(randn):
    found = compare(torch.sin, randn(3), deadline=Deadline(0.0))
    assert not found[0, 0].complete


def test_full_adds_every_entry_to_the_verdict(randn):
    report = check_gradients(OnePosition, (randn(5, 4), randn(4, 6)), full=True, variations=())
    by_input = {verdict.input: verdict for verdict in report.verdicts}

    assert by_input["x"].status == "pass"
    assert by_input["x"].evidence["jacobian"]["wrong"] == 0
    assert by_input["weight"].status == "fail"
    assert by_input["weight"].reason == "6 of 720 entries of the Jacobian differ"
    assert by_input["weight"].evidence["jacobian"]["pattern"].startswith("all at entries 6 to 11")
    assert len(report.verdicts) == 2
    assert any("whole Jacobians: 1,320 entries" in line for line in report.summary["covered"])


def test_full_reports_what_ran_out_of_time(randn):
    report = check_gradients(torch.sin, randn(3), full=True, variations=(), time_limit=1e-9)
    assert any("whole Jacobian" in line for line in report.not_covered)


def test_a_transposed_jacobian_is_recognised(randn):
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, matrix):
            ctx.save_for_backward(matrix)
            return matrix @ x

        @staticmethod
        def backward(ctx, grad_output):
            (matrix,) = ctx.saved_tensors
            return matrix @ grad_output, None

    matrix = randn(6, 6, requires_grad=False)
    report = check_gradients(lambda x: Turned.apply(x, matrix), randn(6), full=True, variations=())
    (verdict,) = report.verdicts
    assert verdict.evidence["jacobian"]["pattern"] == "transposed"
