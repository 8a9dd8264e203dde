from __future__ import annotations

import pytest
import torch

from gradcheck_suite import check_gradients
from gradcheck_suite.verification.diagnosis.wrong_entry import find_wrong_entry
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.target.build import build_function


class Scaled(torch.autograd.Function):
    """exp(x), some entries of whose gradient are multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, wrong, factor):
        ctx.save_for_backward(x, wrong)
        ctx.factor = factor
        return 0.3 * x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        x, wrong = ctx.saved_tensors
        grad = 0.3 * grad_output * x.exp()
        grad.view(-1)[wrong] *= ctx.factor
        return grad, None, None


class OneWeight(torch.autograd.Function):
    """x @ w with a gradient of w that is wrong where w[2, 1] meets out[3, 1]."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad = x.t() @ grad_output
        grad[2, 1] += 5.0 * grad_output[3, 1]
        return grad_output @ weight.t(), grad


@pytest.fixture
def context_of():
    def build(function, *inputs):
        subject = build_function(function, inputs, None, CheckOptions())
        outputs = subject.first_call()
        precision = precision_of([variable.value.dtype for variable in subject.variables])
        return ProbeContext(subject, outputs, precision=precision, seed=0)

    return build


def draw(count, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(), torch.randperm(count, generator=generator)


@pytest.mark.parametrize("seed", range(6))
def test_one_wrong_element_of_100000_is_found_by_index(context_of, seed):
    x, order = draw(100_000, seed)
    known = context_of(lambda x: Scaled.apply(x, order[:1], 1.5), x)
    before = known.subject.evaluations
    entry = find_wrong_entry(known, 0, 0, 2.0**-10)

    assert entry.input_index == entry.output_index == (int(order[0]),)
    assert (entry.count, entry.total, entry.exact) == (1, 100_000, True)
    truth = 0.3 * x.detach()[order[0]].exp().item()
    assert abs(entry.numeric - truth) <= entry.bound < 1e-6 * truth
    assert entry.analytic == pytest.approx(1.5 * truth)
    assert known.subject.evaluations - before <= 250


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("wrong", "low", "high"), [(2, 2, 2), (10, 3, 40), (300, 60, 1000), (4000, 4000, 4000)]
)
def test_the_number_of_wrong_entries_is_estimated(context_of, wrong, low, high, dtype):
    x, order = draw(4000, wrong, dtype)
    known = context_of(lambda x: Scaled.apply(x, order[:wrong], -1.0), x)
    before = known.subject.evaluations
    entry = find_wrong_entry(known, 0, 0, 2.0**-6)

    assert entry.input_index[0] in order[:wrong].tolist()
    assert low <= entry.count <= high
    assert not entry.exact
    assert known.subject.evaluations - before <= 250


def test_few_entries_are_counted(context_of):
    x, order = draw(17, 3)
    entry = find_wrong_entry(
        context_of(lambda x: Scaled.apply(x, order[:5], 3.0), x), 0, 0, 2.0**-10
    )
    assert (entry.count, entry.total, entry.exact) == (5, 17, True)
    # The outputs have weights from 1/2 to 3/2, so the worst may be one that is nearly as bad.
    errors = x.detach().exp()
    assert 3.0 * errors[entry.input_index] >= max(errors[order[:5]])


def test_the_entry_of_the_output_is_found_besides(context_of):
    x, weight = torch.randn(40, 6).double(), torch.randn(6, 30).double()
    known = context_of(OneWeight.apply, x.requires_grad_(), weight.requires_grad_())
    entry = find_wrong_entry(known, 0, 1, 2.0**-10)
    assert entry.input_index == (2, 1)
    assert entry.output_index == (3, 1)
    assert entry.analytic - entry.numeric == pytest.approx(5.0)


def test_an_entry_of_a_scalar_output(context_of):
    x, order = draw(50, 1)
    known = context_of(lambda x: Scaled.apply(x, order[:1], 0.0).sum(), x)
    entry = find_wrong_entry(known, 0, 0, 2.0**-10)
    assert entry.input_index == (int(order[0]),)
    assert entry.output_index == ()
    assert entry.analytic == 0.0


def test_a_right_gradient_has_no_wrong_entry(context_of):
    x, _ = draw(100, 1)
    known = context_of(torch.sin, x)
    assert find_wrong_entry(known, 0, 0, 2.0**-10) is None


@pytest.mark.parametrize(("count", "error"), [(200, 1e-9), (100_000, 1e-8)])
def test_an_error_spread_too_thin_to_see_names_no_entry(context_of, count, error):
    """Each entry is off by less than counts as wrong; no entry may be blamed for it."""
    x, order = draw(count, 1)
    known = context_of(lambda x: Scaled.apply(x, order, 1.0 + error), x)
    before = known.subject.evaluations
    assert find_wrong_entry(known, 0, 0, 2.0**-10) is None
    assert known.subject.evaluations - before <= 210


def test_a_function_that_fails_at_the_points_around_names_no_entry(context_of):
    x, order = draw(100, 1)
    given = x.detach().clone()

    def only_here(x):
        if not torch.equal(x.detach(), given):
            raise ValueError("only the given point is allowed")
        return Scaled.apply(x, order, 2.0)

    assert find_wrong_entry(context_of(only_here, x), 0, 0, 2.0**-10) is None


def test_a_function_that_is_not_finite_around_names_no_entry(context_of):
    x, order = draw(100, 1)
    given = x.detach().clone()

    def only_here(x):
        factor = 1.0 if torch.equal(x.detach(), given) else torch.nan
        return factor * Scaled.apply(x, order, 2.0)

    assert find_wrong_entry(context_of(only_here, x), 0, 0, 2.0**-10) is None


def test_the_report_tells_the_entry(randn):
    _, order = draw(3000, 5)
    x = randn(3000)
    report = check_gradients(lambda x: Scaled.apply(x, order[:1], 2.0), x, order=1, variations=())
    (finding,) = report.findings
    assert report.summary["evaluations"] <= 250
    assert finding.evidence["kind"] == "region"
    index = int(order[0])
    assert finding.evidence["entry"]["input_index"] == [index]
    assert finding.evidence["entry"]["output_index"] == [index]
    assert f"`x[{index}]`" in finding.message
