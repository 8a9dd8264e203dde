"""What other roundings of the same computation show, and what they leave as it is."""

from __future__ import annotations

import torch

from gradcheck_suite import check_gradients
from gradcheck_suite.verification.numerics.monte_carlo_arithmetic import random_rounding


def drawn(function, draws=6):
    results = []
    for draw in range(draws):
        with random_rounding(draw):
            results.append(function())
    return results


def test_results_of_arithmetic_move_by_their_last_bit_and_both_ways():
    x = torch.tensor([1.5, -3.0, 1e-30], dtype=torch.float64)
    moved = torch.stack(drawn(lambda: x * 3.0))
    known = x * 3.0
    assert bool((moved != known).all())
    assert bool((moved > known).any(0).all())
    assert bool((moved < known).any(0).all())
    torch.testing.assert_close(moved, known.expand_as(moved), rtol=3e-16, atol=0.0)


def test_what_is_computed_twice_or_selected_comes_out_the_same():
    x = torch.tensor([2.0, 5.0, 5.0, 0.0])
    with random_rounding(0):
        doubled, again = x * 2.0, x * 2.0
        largest = doubled.amax()
        same = (doubled == again).all(), (doubled == largest).sum(), doubled[3], x.clone() == x
    assert bool(same[0])
    assert int(same[1]) == 2
    assert float(same[2]) == 0.0
    assert bool(same[3].all())


def test_complex_numbers_move_too_and_other_types_do_not():
    z = torch.tensor([1.0 + 2.0j])
    assert any(bool((one != z * z).any()) for one in drawn(lambda: z * z))
    assert all(int(one) == 6 for one in drawn(lambda: torch.tensor(2) * torch.tensor(3)))
    half = torch.tensor(1.5, dtype=torch.bfloat16)
    assert all(float(one) == 3.0 for one in drawn(lambda: half + half))


def test_nothing_of_the_callers_is_written_to_and_nothing_stays():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with random_rounding(0):
        (x * x).sum().backward()
    assert x.tolist() == [1.0, 2.0]
    assert (x * 3.0).tolist() == [3.0, 6.0]


def test_a_second_derivative_that_is_zero_but_for_rounding_passes():
    x = 5.0 * torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    x[0] = 1e4
    report = check_gradients(
        lambda x: torch.logcumsumexp(x, 0), x.requires_grad_(), order=2, variations=()
    )
    assert report.ok
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


class FaintlyWrong(torch.autograd.Function):
    """Adds a billionth of a sine, with the sign of its gradient flipped."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x + 1e-9 * y.sin()

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad, -1e-9 * grad * y.cos()


def test_a_faint_gradient_that_is_wrong_is_not_taken_for_rounding():
    x, y = (torch.randn(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    report = check_gradients(FaintlyWrong, (x, y), order=1, variations=())
    assert [finding.evidence["input"] for finding in report.findings] == ["y"]
