"""What a backward owes its callers is probed, of outputs and of each custom Function by itself."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients


def load():
    path = Path(__file__).with_name("contract_functions.py")
    spec = importlib.util.spec_from_file_location("contract_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BANK = load()
ROWS = {row[0]: row[1:] for row in BANK.BROKEN}
DTYPES = [torch.float64, torch.float32]


def draw(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_breach_is_one_finding_at_its_line(name, dtype):
    function, _, shape, code, words = ROWS[name]
    report = check_gradients(function, draw(shape, dtype))

    assert [finding.code for finding in report.findings] == [code]
    (finding,) = report.findings
    assert words in finding.message
    assert finding.severity is (Severity.WARNING if code == "GCS505" else Severity.ERROR)
    assert finding.location.path == BANK.__file__
    lines = Path(BANK.__file__).read_text(encoding="utf-8").splitlines()
    assert not lines[finding.location.line - 1].strip().startswith("def ")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_correct_twins_are_silent(name, dtype):
    _, twin, shape, _, _ = ROWS[name]
    assert check_gradients(twin, draw(shape, dtype)).findings == ()


def test_a_function_deep_in_a_module_is_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.two(BANK.Transposes.apply(BANK.Sine.apply(self.one(x))).relu())

    torch.manual_seed(0)
    report = check_gradients(Net(), torch.randn(5, 6), dtype="float64")
    (finding,) = report.findings
    assert finding.code == "GCS609"
    assert finding.message.startswith("Transposes.backward gives another gradient for a transposed")
    assert finding.location.function == "memory"
    assert [related.location.function for related in finding.related] == ["Transposes.backward"]
    assert "contiguous()" in finding.hint


@pytest.mark.parametrize(
    ("returned", "code", "words"),
    [
        (lambda g: (g,), "GCS501", "returns 1 gradient, forward takes 2"),
        (lambda g: (g, g, g), "GCS501", "returns 3 gradients, forward takes 2"),
        (lambda g: (g, g[:1]), "GCS601", "returns what torch refuses"),
    ],
)
def test_what_torch_refuses_is_a_finding(returned, code, words):
    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):  # noqa: ARG004
            return x + y

        @staticmethod
        def backward(ctx, g):  # noqa: ARG004
            return returned(g)

    report = check_gradients(Add, (draw((4,), torch.float64), draw((4,), torch.float64)))
    (finding,) = report.findings
    assert finding.code == code
    assert words in finding.message
    _, start = inspect.getsourcelines(Add.backward)
    # What is returned is shown where that is known, else the function.
    assert finding.location.line == start + (2 if code == "GCS501" else 1)
    assert {verdict.status for verdict in report.verdicts} == {"fail"}


def test_a_leaf_written_without_mark_dirty_is_a_finding():
    report = check_gradients(BANK.DoublesSilently, draw((3,), torch.float64))
    (finding,) = report.findings
    assert finding.code == "GCS503"
    assert "DoublesSilently.forward writes into its input 0" in finding.message
    assert finding.location.function == "DoublesSilently.forward"
    assert "watch" not in BANK.DoublesSilently.forward.__qualname__


def test_exceptions_of_the_backward_itself_arrive_unchanged():
    class Raises(BANK.Sine):
        @staticmethod
        def backward(ctx, grad_output):  # noqa: ARG004
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        check_gradients(Raises, draw((3,), torch.float64))


def test_a_backward_that_runs_once_is_not_accused():
    class Once(BANK.Sine):
        @staticmethod
        def backward(ctx, grad_output):
            if hasattr(ctx, "done"):
                raise RuntimeError("once only")
            ctx.done = True
            return BANK.Sine.backward(ctx, grad_output)

    report = check_gradients(Once, draw((3,), torch.float64))
    assert report.findings == ()
    assert any("can't be run" in line for line in report.not_covered)


def test_what_was_looked_at_is_told():
    report = check_gradients(torch.sin, draw((3, 4), torch.float64))
    backward, inputs = report.summary["covered"]
    assert backward.startswith("backward: linear, undefined gradients, strided, transposed, expand")
    assert inputs == "inputs: strided, transposed, offset, expanded, magnitudes, sizes"
    report = check_gradients(torch.sin, draw((3, 4), torch.float64), variations=())
    assert report.summary["covered"] == ("backward: linear, undefined gradients",)


def test_running_statistics_may_be_written():
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, mean):
            mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x, None

    report = check_gradients(Norm, (draw((3, 4), torch.float64), torch.zeros(4)))
    assert report.findings == ()


def test_a_bias_before_batch_norm_has_no_gradient_to_compare():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert check_gradients(net, torch.randn(6, 8)).findings == ()
