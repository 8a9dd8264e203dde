"""Correct functions and modules pass, in float64 and float32, at kinks and domain edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.verification import check_gradients

DTYPES = [torch.float64, torch.float32]


def drawn(*shape, low=-2.0, high=2.0, dtype):
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return (low + (high - low) * uniform).to(dtype).requires_grad_()


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.second(x))
        return self.head(nn.functional.max_pool2d(x, 2).mean((2, 3)))


class Classify(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, words, classes):
        return nn.functional.cross_entropy(self.head(self.table(words)).mean(1), classes)


MODULES = {
    "linear": (lambda: nn.Linear(16, 8), (5, 16)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)),
    "layer norm": (lambda: nn.LayerNorm(16), (5, 16)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (6, 8)),
    "batch norm eval": (lambda: nn.BatchNorm1d(8).eval(), (6, 8)),
    "gelu mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)), (5, 8)),
    "relu mlp": (lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), (9, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
    "encoder layer eval": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(),
        (2, 5, 16),
    ),
    "lstm": (lambda: nn.LSTM(4, 6, num_layers=2, dropout=0.3), (5, 2, 4)),
    "attention": (Attend, (2, 5, 16)),
    "residual": (Residual, (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sampled(every=4)
def test_modules_pass(name, dtype):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    report = check_gradients(make().to(dtype), drawn(*shape, dtype=dtype))
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_integer_inputs_are_constants(statuses):
    torch.manual_seed(0)
    words = torch.tensor([[1, 4, 4], [0, 10, 2]])
    report = check_gradients(Classify().double(), (words, torch.tensor([3, 0])))
    assert set(statuses(report).values()) == {"pass"}
    assert {verdict.input for verdict in report.verdicts} == {
        "table.weight",
        "head.weight",
        "head.bias",
    }


FUNCTIONS = {
    "sqrt near zero": (torch.sqrt, (1e-6, 1.0), (40,)),
    "log near zero": (torch.log, (1e-5, 1e-3), (40,)),
    "reciprocal": (torch.reciprocal, (0.01, 1.0), (40,)),
    "norm": (torch.linalg.vector_norm, (-2.0, 2.0), (30,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (-2.0, 2.0), (40,)),
    "cumsum": (lambda x: x.cumsum(0), (-2.0, 2.0), (40,)),
    "sort": (lambda x: x.sort().values, (-2.0, 2.0), (12,)),
    "repeated gather": (
        lambda x: x.gather(0, torch.tensor([0, 0, 3, 5, 5, 5])),
        (-2.0, 2.0),
        (8,),
    ),
    "tiny output": (lambda x: 1e-6 * x.sin(), (-2.0, 2.0), (20,)),
    "large output": (lambda x: 1e6 * x, (-2.0, 2.0), (20,)),
    "offset output": (lambda x: 1e3 + x.sin(), (-2.0, 2.0), (20,)),
    "constant": (lambda x: 0.0 * x + 1.0, (-2.0, 2.0), (20,)),
    "ignored": (lambda x: (x * 0).sum() + torch.ones(3).sum(), (-2.0, 2.0), (20,)),
    "zero-dimensional": (lambda x: x**3, (0.3, 0.4), ()),
    "one element": (lambda x: x**3, (0.3, 0.4), (1,)),
    "log-sum-exp": (lambda x: x.logsumexp(0), (-30.0, 30.0), (20,)),
    "variance": (lambda x: x.var(), (10.0, 12.0), (20,)),
    "masked logits": (
        lambda x: x.masked_fill(torch.arange(8) > 5, -torch.inf),
        (-2.0, 2.0),
        (3, 8),
    ),
    "floor": (torch.floor, (-2.0, 2.0), (6,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_pass(name, dtype):
    function, (low, high), shape = FUNCTIONS[name]
    report = check_gradients(function, drawn(*shape, low=low, high=high, dtype=dtype))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_inputs_pass(dtype):
    base, exponent = drawn(7, low=0.5, high=2.0, dtype=dtype), drawn(7, dtype=dtype)
    assert check_gradients(torch.pow, (base, exponent)).findings == ()
    assert check_gradients(torch.cdist, (drawn(5, 3, dtype=dtype), drawn(4, 3, dtype=dtype))).ok


AT_THE_KINK = {
    "relu": (torch.relu, [0.0, 0.0, 0.0]),
    "abs": (torch.abs, [0.0, 1.0, -1.0]),
    "clamp": (lambda x: x.clamp(0.0, 1.0), [0.0, 1.0, 0.5]),
    "max with ties": (lambda x: x.max(), [2.0, 2.0, 1.0]),
    "max-pool with ties": (lambda x: nn.functional.max_pool1d(x.view(1, 1, -1), 2), [1.0] * 6),
    "sorted ties": (lambda x: x.sort().values, [1.0, 1.0, 0.0]),
    "norm of zeros": (torch.linalg.vector_norm, [0.0, 0.0]),
}


@pytest.mark.parametrize("name", AT_THE_KINK)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kink_at_the_very_point_is_checked_beside_it(name, dtype):
    function, values = AT_THE_KINK[name]
    report = check_gradients(function, torch.tensor(values, dtype=dtype, requires_grad=True))
    (verdict,) = report.verdicts
    assert report.findings == ()
    assert verdict.status == "pass"
    assert verdict.evidence["measured_at"].startswith("a point close by")


DRAWS = {
    "relu mlp": 40,
    "gelu mlp": 40,
    "batch norm": 40,
    "lstm": 30,
    "layer norm": 30,
    "encoder layer": 10,
    "residual": 10,
}


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in range(1, 5))]
)
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.slow
def test_float32_has_no_false_alarm_in_two_hundred_draws(name, part):
    make, shape = MODULES[name]
    false_alarms = []
    for seed in range(part, DRAWS[name], 5):
        torch.manual_seed(seed)
        module, x = make(), torch.randn(*shape, requires_grad=True)
        false_alarms += check_gradients(module, x, seed=seed).findings
    assert false_alarms == []


def test_a_function_that_computes_in_float32_inside_is_no_false_alarm():
    def inside(x):
        return (x.float().tanh() * 3).double()

    report = check_gradients(inside, drawn(50, dtype=torch.float64))
    assert report.findings == ()


def test_a_function_with_other_values_under_no_grad_is_checked_as_it_trains():
    def two_faces(x):
        return x**2 if torch.is_grad_enabled() else x * 5

    report = check_gradients(two_faces, drawn(6, dtype=torch.float64))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.forgotten = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: torch.ones(3, dtype=x.dtype), "`x`"),
        (lambda x: x * 0, "`x`"),
        (Unused(), "`forgotten.weight`, `forgotten.bias`"),
        (torch.round, None),  # changes in steps
        (lambda x: torch.relu(x - 4), None),  # dead here, alive elsewhere
        (torch.sin, None),
    ],
)
def test_what_an_output_does_not_depend_on_is_said(function, names):
    report = check_gradients(function, drawn(3, dtype=torch.float32))
    assert report.ok
    said = [line for line in report.summary["covered"] if "does not depend" in line]
    told = f"`output` does not depend on {names}: the gradient is zero, as it should be"
    assert said == ([told] if names else [])
