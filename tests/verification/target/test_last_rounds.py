"""What the last round of an iteration changes tells whether it has settled."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.verification.target.iteration import last_rounds

X = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)


def newton(rounds, x):
    """Solve y**3 + y = x."""
    y = torch.zeros_like(x)
    for _ in range(rounds):
        y = y - (y**3 + y - x) / (3 * y**2 + 1)
    return y


def in_place(rounds, x):
    y = torch.zeros_like(x)
    for _ in range(rounds):
        y.mul_(0.5).add_(x)
    return y


def into_a_slice(rounds, x):
    y = torch.zeros(2, len(x), dtype=x.dtype)
    for _ in range(rounds):
        y[1] = 0.5 * y[1] + x
    return y.sum(0)


def conjugate_gradients(rounds, b):
    """Solve with a matrix of three eigenvalues, so that three rounds are enough."""
    matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=b.dtype))
    x, r = torch.zeros_like(b), b.clone()
    p, square = r.clone(), r @ r
    for _ in range(rounds):
        moved = matrix @ p
        length = square / (p @ moved)
        x, r = x + length * p, r - length * moved
        last, square = square, r @ r
        p = r + square / last * p
    return x


def only(compute):
    ((change,),) = last_rounds(lambda: [compute()]).values()
    return change


@pytest.mark.parametrize("solver", [newton, in_place, into_a_slice])
def test_a_settled_iteration_changes_nothing(solver):
    assert only(lambda: solver(80, X)) < 1e-15


@pytest.mark.parametrize("solver", [newton, in_place, into_a_slice])
def test_of_one_that_is_not_the_last_step_is_measured(solver):
    four, five = solver(4, 4 * X), solver(5, 4 * X)
    step = float((five - four).norm() / five.norm())
    assert only(lambda: solver(5, 4 * X)) == pytest.approx(step)
    assert step > 1e-4


def test_residuals_that_go_on_shrinking_do_not_count():
    assert only(lambda: conjugate_gradients(4, X)) < 1e-14


def test_an_end_by_tolerance_is_a_settled_one():
    def compute():
        y = torch.ones_like(X)
        for _ in range(1000):
            moved = torch.cos(y)
            if float((moved - y).abs().max()) < 1e-12:
                break
            y = moved
        return y

    assert only(compute) < 1e-12


def test_layers_do_not_settle():
    weights = [torch.full((3, 3), 0.1 * n, dtype=torch.float64) for n in range(1, 9)]

    def compute():
        x = X
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    assert only(compute) > 0.01


def test_of_two_iterations_each_is_told():
    def compute():
        return newton(40, in_place(3, X)) + in_place(5, X)

    changes = {
        sum(count for _, count in key): value
        for key, (value,) in last_rounds(lambda: [compute()]).items()
    }
    assert min(changes.values()) < 1e-15
    assert max(changes.values()) > 1e-3


def test_nothing_repeated_and_what_raises_tell_nothing():
    def raises():
        raise ValueError

    assert last_rounds(lambda: [X.sin().exp()]) == {}
    assert last_rounds(raises) == {}


def test_the_iteration_in_backward_is_seen_in_the_gradient():
    class Settles(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, grad):
            return in_place(3, grad) + in_place(4, grad)

    def compute():
        x = X.clone().requires_grad_()
        y = Settles.apply(x)
        return [y.detach(), *torch.autograd.grad(y.sum(), x)]

    changes = list(last_rounds(compute).values())
    assert all(value[0] == 0.0 for value in changes)
    assert max(value[1] for value in changes) > 1e-3


def test_what_is_detached_again_and_again_is_no_round():
    def compute():
        y = X * 2
        for _ in range(8):
            y = y.detach()
        return [y]

    assert last_rounds(compute) == {}
