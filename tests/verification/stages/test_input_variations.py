"""Functions that are right at one kind point only are found, and correct ones are not accused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradcheck_suite import Severity
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.options import VARIATIONS
from tests.verification.stages.varied.bank import WRONG

ROWS = {row[0]: row[1:] for row in WRONG}


def draw(inputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [make(generator) for make in inputs]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.sampled(every=4)
def test_each_is_one_finding_under_its_variation(name):
    wrong, _, inputs, code, words = ROWS[name]
    report = check_gradients(wrong, draw(inputs))

    assert [finding.code for finding in report.findings] == [code]
    (finding,) = report.findings
    assert words in finding.message
    # A backward that raises is told by torch, whoever calls it so.
    assert finding.severity is (Severity.WARNING if name == "unset" else Severity.ERROR)
    assert Path(finding.location.path).parent == Path(__file__).with_name("varied")
    assert finding.evidence["variation"] in VARIATIONS


@pytest.mark.parametrize("name", ROWS)
def test_none_is_found_without_variations(name):
    wrong, _, inputs, _, _ = ROWS[name]
    assert check_gradients(wrong, draw(inputs), variations=()).findings == ()


@pytest.mark.parametrize("name", ROWS)
def test_the_correct_twins_are_silent(name):
    _, right, inputs, _, _ = ROWS[name]
    report = check_gradients(right, draw(inputs))
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_the_bank_is_large_enough():
    assert len(ROWS) >= 35


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_other_draws_say_the_same(name, seed):
    wrong, right, inputs, code, _ = ROWS[name]
    found = check_gradients(wrong, draw(inputs, seed), seed=seed)
    assert [finding.code for finding in found.findings] == [code]
    assert check_gradients(right, draw(inputs, seed), seed=seed).findings == ()


def test_variations_are_chosen_by_name():
    function = ROWS["leaky"][0]
    x = draw(ROWS["leaky"][2])
    assert check_gradients(function, x, variations={"layout", "magnitudes"}).findings == ()
    report = check_gradients(function, x, variations=["signs"])
    assert len(report.findings) == 1
    report = check_gradients(torch.sin, x, variations={"values"})
    assert report.summary["covered"][-1] == "inputs: signs, magnitudes"


def test_unknown_variations_are_refused():
    with pytest.raises(UsageError, match="'sign', which is no variation; choose among strided, tr"):
        check_gradients(torch.sin, torch.ones(3, requires_grad=True), variations={"sign"})


def test_warnings_of_inputs_that_nobody_gave_are_not_the_users(recwarn):
    layer = torch.nn.Linear(3, 3).double()
    layer.register_full_backward_hook(lambda *_: None)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    report = check_gradients(layer, x)
    assert "alone" in report.summary["covered"][-1]
    assert report.ok
    assert not list(recwarn)


class Pairs(torch.autograd.Function):
    """All products of pairs of entries: the larger the input, the larger by far the output."""

    largest = 0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        Pairs.largest = max(Pairs.largest, x.numel() ** 2)
        return x[:, None] * x[None, :]

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output + grad_output.T) @ ctx.saved_tensors[0]


class PairsOfBlocks(Pairs):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        gradient = (grad_output + grad_output.T) @ x
        gradient[x.numel() // 32 * 32 :] = 0
        return gradient


@pytest.mark.slow
def test_what_makes_all_pairs_is_tried_at_a_size_that_it_can_afford():
    x = torch.linspace(-1, 1, 64, dtype=torch.float64).requires_grad_()
    Pairs.largest = 0
    report = check_gradients(Pairs, x)
    assert not report.findings
    assert report.summary["covered"][-2].endswith("sizes")
    assert 64**2 < Pairs.largest < 2**23
    (finding,) = check_gradients(PairsOfBlocks, x).findings
    assert finding.message.startswith("only with a first dimension of ")


def positive(*shape):
    torch.manual_seed(0)
    return (torch.rand(*shape, dtype=torch.float64) + 0.5).requires_grad_()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.log, "signs of `inputs[0]`: gives NaN or Inf in `output` for negative values"),
        (torch.sqrt, "signs of `inputs[0]`: gives NaN or Inf in `output` for negative values"),
    ],
)
def test_what_the_domain_does_not_permit_is_not_covered(function, words):
    report = check_gradients(function, positive(4))
    assert report.findings == ()
    assert words in [line.replace("`input`", "`inputs[0]`") for line in report.not_covered]


def test_a_function_that_refuses_negative_values_is_not_accused():
    def picky(x):
        if bool((x < 0).any()):
            raise TypeError("negative")
        return x.square()

    report = check_gradients(picky, positive(5))
    assert report.findings == ()
    (line,) = [line for line in report.not_covered if line.startswith("signs")]
    assert line == "signs of `x`: raises TypeError: negative for negative values"


@pytest.mark.parametrize(
    "function",
    [
        lambda x, index, source: x.scatter(0, index, source),
        lambda x, index, source: x.index_copy(0, index, source),
        lambda x, index, source: x.index_put((index,), source),
    ],
)
def test_entries_that_overwrite_one_another_are_not_covered(function):
    x, source = positive(6), positive(3)
    report = check_gradients(function, (x, torch.tensor([4, 0, 2]), source))
    assert report.findings == ()
    assert any(line.startswith("repeated indices: one entry") for line in report.not_covered)


def test_ops_of_torch_outside_their_domain_are_a_warning():
    report = check_gradients(torch.polar, (positive(4), positive(4).detach()))
    (finding,) = report.findings
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("only for negative values")
    assert report.ok


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        torch.abs,
        lambda x: x.clamp(-1, 1),
        lambda x: x.amax(0),
        torch.nn.functional.softplus,
        torch.nn.functional.gelu,
        lambda x: torch.where(x > 0.7, x, x * x),
        lambda x: x.sort(0)[0] * torch.arange(4.0, dtype=x.dtype),
        lambda x: x.as_strided((2, 2), (1, 2)),
        lambda x: x.norm(),
        lambda x: x.view(-1).cumsum(0),
        torch.Tensor.sum,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_correct_functions_with_kinks_and_steps_are_silent(function, dtype):
    x = positive(4).detach().to(dtype).requires_grad_()
    assert check_gradients(function, x).findings == ()


def test_steps_seen_from_afar_are_no_slope():
    x = torch.tensor([40.0, -31.5, 17.25], dtype=torch.float64).requires_grad_()
    report = check_gradients(lambda x: torch.round(x, decimals=3), x, variations={"magnitudes"})
    assert not any(finding.evidence.get("variation") for finding in report.findings)


def test_a_module_costs_a_small_factor_more():
    torch.manual_seed(0)
    net = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    plain = check_gradients(net, x, variations=()).summary["evaluations"]
    varied = check_gradients(net, x).summary["evaluations"]
    assert varied <= 4 * plain


def test_random_outputs_are_not_varied():
    state = {"calls": 0}

    def counts(x):
        state["calls"] += 1
        return x.sin() + 1e-9 * state["calls"]

    report = check_gradients(counts, positive(3))
    assert (
        "variations of the inputs were not tried, as the outputs are random" in report.not_covered
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_entries_that_repeated_indices_overwrite_are_not_covered(randn, transposed):
    source = randn(6, 4).detach()
    source = (source.t() if transposed else source.reshape(4, 6)).requires_grad_()
    x = randn(4, 9)
    report = check_gradients(
        lambda x, index, source: x.index_copy(1, index, source),
        (x, torch.tensor([8, 0, 3, 1, 7, 2]), source),
    )
    assert report.findings == ()
    assert any("one entry overwrites another" in line for line in report.not_covered)


class LogDeterminant(torch.autograd.Function):
    """Its backward refuses what is singular only where that comes out exactly, as LAPACK does."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a)[1]

    @staticmethod
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        if 0 in a.stride():
            raise RuntimeError("singular")
        return grad * torch.linalg.inv_ex(a)[0].mT


def test_rows_that_repeat_make_no_layout_where_the_function_has_no_value_of_them():
    matrix = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = check_gradients(LogDeterminant, matrix.requires_grad_())
    assert report.findings == ()
    assert any(line.startswith("expanded `a`: ") for line in report.not_covered)
