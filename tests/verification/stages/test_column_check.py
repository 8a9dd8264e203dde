"""Columns confirmed in company: nothing may hide among them."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from gradcheck_suite.verification.numerics.evaluation_point import given_point
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline
from gradcheck_suite.verification.stages.full_jacobian import column_check
from gradcheck_suite.verification.stages.full_jacobian.compare import compare_jacobians
from gradcheck_suite.verification.target.build import build_function

SIZE = 96


class Product(Function):
    """tanh(matrix @ x), whose backward multiplies by what ``wrong`` makes of the matrix."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, matrix, wrong):  # noqa: ARG004
        return torch.tanh(matrix @ x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[2], output)

    @staticmethod
    def backward(ctx, grad_output):
        wrong, output = ctx.saved_tensors
        return wrong.t() @ (grad_output * (1 - output**2)), None, None


class Looped(Product):
    """The same, where vmap refuses."""

    generate_vmap_rule = False

    @staticmethod
    def forward(ctx, x, matrix, wrong):
        output = torch.tanh(matrix @ x)
        ctx.save_for_backward(wrong, output)
        return output

    setup_context = Function.setup_context


def given(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(40, SIZE, generator=generator, dtype=torch.float64) / SIZE**0.5
    x = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), matrix.to(dtype)


def compare(function, *inputs, deadline=None):
    subject = build_function(function, inputs, None, CheckOptions())
    precision = precision_of([variable.value.dtype for variable in subject.variables])
    point = given_point(subject, subject.first_call(), eps=precision.eps)
    before = subject.evaluations
    (found,) = compare_jacobians(
        subject,
        point,
        precision=precision,
        max_memory=2**30,
        deadline=deadline or Deadline(),
    ).values()
    return found, subject.evaluations - before


@pytest.mark.parametrize("kind", [Product, Looped])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 2e-8), (torch.float32, 2e-2)])
def test_one_slightly_wrong_entry_is_found_in_any_place(kind, dtype, error):
    x, matrix = given(dtype)
    slope = 1 - torch.tanh(matrix @ x.detach()) ** 2
    for row, column in ((0, 0), (17, 15), (39, 16), (3, 50), (20, SIZE - 1)):
        wrong = matrix.clone()
        wrong[row, column] += error / slope[row]
        found, _ = compare(kind.apply, x, matrix, wrong)
        assert found.complete
        assert found.wrong == 1
        assert found.worst.input_index == (column,)
        assert found.worst.output_index == (row,)


def test_errors_of_opposite_sign_in_one_row_do_not_cancel():
    x, matrix = given()
    for count in (2, 4, 16):
        wrong = matrix.clone()
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(count // 2)
        wrong[7, 32 : 32 + count] += 1e-3 * signs
        found, _ = compare(Product.apply, x, matrix, wrong)
        assert found.wrong == count
        assert torch.nonzero(found.wrong_inputs).flatten().tolist() == list(range(32, 32 + count))


@pytest.mark.parametrize("kind", [Product, Looped])
def test_right_columns_take_few_evaluations_and_are_those_of_torch(kind):
    x, matrix = given()
    found, evaluations = compare(kind.apply, x, matrix, matrix)
    truth = torch.autograd.functional.jacobian(lambda x: torch.tanh(matrix @ x), x.detach())
    assert found.complete
    assert found.wrong == found.undecided == 0
    assert (found.numeric - truth).abs().max() < 1e-8
    assert 0.0 < found.largest < 1e-8
    assert found.relative_bound < 1e-6
    # Two of everything that a column would take, for each sixteen columns, and the look at vmap.
    assert evaluations <= 2 * 2 * SIZE / 16 + 5


def test_all_columns_wrong_are_given_up_early():
    x, matrix = given()
    found, evaluations = compare(Looped.apply, x, matrix, 2 * matrix)
    assert found.wrong == 40 * SIZE
    assert evaluations <= 2 * SIZE * 3 + 100


def test_strong_curvature_makes_smaller_groups_and_no_error():
    x = torch.linspace(0.5, 1.5, 64, dtype=torch.float64, requires_grad=True)
    found, _ = compare(lambda x: torch.sin(40 * x.sum()).reshape(1), x)
    assert found.complete
    assert found.wrong == 0


def test_a_function_that_fails_off_the_point_where_many_entries_move_is_measured_alone():
    x, matrix = given()

    def touchy(x):
        # Several entries at a time are more than this stands.
        if ((x.detach() - given()[0].detach()).abs() > 0).sum() > 1:
            raise ValueError("moved too much")
        return torch.tanh(matrix @ x)

    found, _ = compare(touchy, x)
    assert found.complete
    assert found.wrong == 0


def test_values_that_are_not_finite_spoil_no_group():
    x, matrix = given()
    found, evaluations = compare(
        lambda x: torch.cat([torch.tanh(matrix @ x), torch.log(-(x[:1] ** 2))]), x
    )
    assert found.wrong == 0
    assert found.complete
    assert evaluations < 60


def test_time_may_run_out_between_groups():
    x = torch.linspace(0.5, 1.5, 2000, dtype=torch.float64, requires_grad=True)
    matrix = torch.full((4, 2000), 0.002, dtype=torch.float64)
    ticks = iter([False, False, True])

    class Soon(Deadline):
        @property
        def passed(self):
            return next(ticks, True)

    found, _ = compare(Looped.apply, x, matrix, matrix, deadline=Soon())
    assert not found.complete
    assert 0 < found.compared < 4 * 2000


def test_little_to_gain_is_nothing_to_confirm():
    matrix = torch.ones(3, 5, dtype=torch.float64)
    assert (
        column_check.check_columns(
            matrix,
            None,
            None,
            first=0,
            step=1e-5,
            allowed=torch.ones(5),
            late=lambda: False,
            keep=False,
        )
        is None
    )
