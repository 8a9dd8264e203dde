"""Wrong backwards are found, under the right code, at the right line, in the right words."""

from __future__ import annotations

import inspect

import pytest
import torch

from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients

SHAPE = (4, 5)
BANK = [
    # name, shapes, code, words of the message
    ("SignFlipped", [SHAPE], "GCS601", "has the wrong sign"),
    ("FactorTwo", [SHAPE], "GCS601", "is 0.5 times the numeric one"),
    ("MissingTerm", [SHAPE], "GCS601", "lacks a term: it is right once"),
    ("Transposed", [(4, 4), (4, 4)], "GCS601", "differs from the numeric one by"),
    ("MeanForSum", [SHAPE], "GCS601", "is 0.05 times the numeric one"),
    ("OneElement", [(100, 100)], "GCS601", "wrong at `x[33, 33]` of shape (100, 100)"),
    ("WrongForNegative", [SHAPE], "GCS601", "entries are wrong, worst `x["),
    ("Zero", [SHAPE], "GCS508", "is zero"),
    ("Nothing", [SHAPE, (5,)], "GCS508", "is None"),
    ("Percent", [SHAPE], "GCS601", "is 1.01 times the numeric one"),
    ("HalfPerMille", [SHAPE], "GCS601", "is 1.0005 times the numeric one"),
    ("Clamped", [SHAPE], "GCS610", "is not linear in the incoming gradient"),
    ("IgnoresGradient", [SHAPE], "GCS610", "is not linear in the incoming gradient"),
    ("WritesIntoGradient", [SHAPE], "GCS506", "writes into the incoming gradient"),
    ("Sticky", [SHAPE], "GCS603", "differs between two identical backwards"),
    ("NotANumber", [SHAPE], "GCS604", "holds NaN or Inf where the numeric derivative is finite"),
]
FOUND_IN_FLOAT32 = [row for row in BANK if row[0] not in {"OneElement", "HalfPerMille"}]
TWINS = [("RightSwish", [SHAPE]), ("RightProduct", [(4, 4), (4, 4)])]


@pytest.mark.parametrize(("name", "shapes", "code", "words"), BANK)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_wrong_function_is_one_finding(wrong, randn, *, name, shapes, code, words, seed):
    function = getattr(wrong, name)
    report = check_gradients(function, [randn(*shape) for shape in shapes], seed=seed)

    assert [finding.code for finding in report.findings] == [code]
    (finding,) = report.findings
    assert words in finding.message
    assert finding.severity is Severity.ERROR
    assert finding.detector == "verify"
    assert not report.ok


@pytest.mark.parametrize(("name", "shapes", "code"), [row[:3] for row in FOUND_IN_FLOAT32])
def test_float32_as_given_finds_them_too(wrong, randn, name, shapes, code):
    inputs = [randn(*shape, dtype=torch.float32) for shape in shapes]
    report = check_gradients(getattr(wrong, name), inputs)
    assert [finding.code for finding in report.findings] == [code]


@pytest.mark.parametrize(("name", "shapes"), TWINS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_correct_twins_pass(wrong, randn, name, shapes, dtype):
    inputs = [randn(*shape, dtype=dtype) for shape in shapes]
    report = check_gradients(getattr(wrong, name), inputs)
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_the_place_is_the_line_that_makes_the_gradient(wrong, randn):
    (finding,) = check_gradients(wrong.FactorTwo, randn(3)).findings
    lines, start = inspect.getsourcelines(wrong.FactorTwo.backward)
    place = finding.location

    assert place.path == wrong.__file__
    assert lines[place.line - start].strip().startswith("return ")
    assert place.function == "FactorTwo.backward"


@pytest.mark.slow
def test_a_function_inside_a_module_is_named(wrong, randn):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before = torch.nn.Linear(5, 5, dtype=torch.float64)
            self.after = torch.nn.Linear(5, 2, dtype=torch.float64)

        def forward(self, x):
            return self.after(wrong.MissingTerm.apply(self.before(x)))

    report = check_gradients(Net(), randn(3, 5))
    assert len(report.findings) == 3
    failed = {verdict.input for verdict in report.verdicts if verdict.status == "fail"}

    assert failed == {"x", "before.weight", "before.bias"}
    assert {finding.location.function for finding in report.findings} == {"MissingTerm.backward"}


def test_of_two_functions_on_the_path_the_wrong_one_is_blamed(wrong, randn):
    def both(x):
        return wrong.FactorTwo.apply(wrong.RightSwish.apply(x))

    (finding,) = check_gradients(both, randn(4)).findings
    assert finding.location.function == "FactorTwo.backward"
    assert finding.evidence["functions"] == ["FactorTwo"]


def test_two_wrong_functions_are_both_named(wrong, randn):
    def both(x):
        return wrong.FactorTwo.apply(wrong.MissingTerm.apply(wrong.RightSwish.apply(x)))

    (finding,) = check_gradients(both, randn(4)).findings
    (other,) = finding.related
    assert other.message == "wrong as well"
    places = {finding.location.function, other.location.function}
    assert places == {"FactorTwo.backward", "MissingTerm.backward"}
    assert finding.evidence["functions"] == ["FactorTwo", "MissingTerm"]


def test_the_worst_entry_comes_with_its_derivatives(wrong):
    x = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).requires_grad_()
    (finding,) = check_gradients(wrong.MeanForSum, x).findings
    entry = finding.evidence["entry"]

    assert entry["wrong"] == entry["total"] == 9
    assert entry["analytic"] == pytest.approx(1 / 9)
    assert entry["numeric"] == pytest.approx(1.0)
    assert finding.hint == "1/9: is a mean taken where forward takes a sum?"


def test_a_detached_output_is_named_with_what_it_depends_on(wrong, randn, statuses):
    report = check_gradients(wrong.one_of_two_detached, randn(4))
    (finding,) = report.findings

    assert finding.code == "GCS608"
    assert finding.severity is Severity.WARNING  # it may be a metric
    assert finding.message.startswith("`output[1]` does not require grad, yet it depends on `x`")
    assert statuses(report) == {("output[0]", "x"): "pass", ("output[1]", "x"): "not covered"}


def test_a_detached_output_without_any_other_is_an_error(randn):
    (finding,) = check_gradients(lambda x: x.detach().exp(), randn(4)).findings
    assert finding.code == "GCS608"
    assert finding.severity is Severity.ERROR


def test_a_detached_output_can_be_left_out(wrong, randn, statuses):
    report = check_gradients(wrong.one_of_two_detached, randn(4), skip_outputs=["output[1]"])
    assert report.findings == ()
    assert statuses(report)["output[1]", "x"] == "not covered"
    assert report.not_covered == ("output `output[1]` was left out by skip_outputs",)


def test_a_detached_constant_output_passes(randn, statuses):
    report = check_gradients(lambda x: (x.sin(), torch.ones(3)), randn(4))
    assert report.findings == ()
    assert statuses(report) == {("output[0]", "x"): "pass", ("output[1]", "x"): "pass"}


def test_a_cut_graph_says_so(randn):
    def cut(x, y):
        return x.detach().exp() * y

    (finding,) = check_gradients(cut, (randn(3), randn(3))).findings
    assert finding.code == "GCS601"
    assert "with respect to `x` is missing: no path in the graph leads to it" in finding.message
    assert "look for detach()" in finding.hint


def test_a_factor_lost_by_detach_is_found(wrong, randn):
    (finding,) = check_gradients(wrong.cut_in_the_middle, randn(6)).findings
    assert finding.code == "GCS601"
    assert finding.location.function == "cut_in_the_middle"
    assert "`detach()` takes a part of it out of the graph there" in finding.message


def test_a_small_gradient_beside_large_ones_is_still_checked(randn):
    class Third(torch.autograd.Function):
        @staticmethod
        def forward(ctx, small, large):
            ctx.save_for_backward(small)
            return 1e-7 * small**3 + large

        @staticmethod
        def backward(ctx, grad_output):
            (small,) = ctx.saved_tensors
            return grad_output * 1e-7 * small**2, grad_output

    report = check_gradients(Third, (randn(6), randn(6)))
    assert [finding.evidence["input"] for finding in report.findings] == ["small"]


def test_an_error_in_one_of_many_parameters_is_found(wrong, randn):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(6, 6, dtype=torch.float64) for _ in range(8)
            )
            self.gain = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x * wrong.Percent.apply(self.gain)

    report = check_gradients(Net(), randn(4, 6))
    failed = [verdict.input for verdict in report.verdicts if verdict.status == "fail"]
    assert failed == ["gain"]


def test_everything_upstream_of_one_wrong_backward_is_one_finding(wrong, randn):
    torch.manual_seed(0)

    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lower = torch.nn.ModuleList(
                torch.nn.Linear(5, 5, dtype=torch.float64) for _ in range(6)
            )
            self.upper = torch.nn.Linear(5, 2, dtype=torch.float64)

        def forward(self, x):
            for layer in self.lower:
                x = torch.tanh(layer(x))
            return self.upper(wrong.MissingTerm.apply(x))

    report = check_gradients(Deep(), randn(4, 5))
    (finding,) = report.findings
    failed = {verdict.input for verdict in report.verdicts if verdict.status == "fail"}
    named = {finding.evidence["input"], *finding.evidence["also_wrong"]}
    assert failed == named
    assert len(failed) == 13
    assert "12 more gradients are wrong with it" in finding.message
    assert report.summary["evaluations"] < 800


@pytest.mark.parametrize("zeros", [slice(None), slice(1, 2)], ids=["all", "one_row"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_nan_in_the_gradient_at_a_kink(zeros, dtype):
    x = torch.randn(4, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x[zeros] = 0.0
    x.requires_grad_()

    def lengths_by_hand(x):
        return (x * x.conj()).real.sum(1).sqrt()

    def lengths(x):
        return torch.linalg.vector_norm(x, dim=1)

    (finding,) = check_gradients(lengths_by_hand, x).findings
    assert finding.code == "GCS604"
    assert "where the function has a kink, with a finite slope on either side" in finding.message
    assert check_gradients(lengths, x).findings == ()
