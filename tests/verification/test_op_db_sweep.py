"""Operators and modules of torch's own test banks: no false alarm, with the same options for all.

What runs by default is drawn from the whole banks by a seed. All of it is behind the marker, and
``python -m benchmarks.op_db`` and ``module_db`` do the same in parts.
"""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.module_db import modules
from benchmarks.op_db import operators
from benchmarks.sweeping import Entry, Outcome, Sample, sweep

# These needed thought (rounding in the forward, jumps, ties, overwritten entries) and are always
# among what is run.
HARD = {
    "__rmod__",
    "as_strided",
    "fmod",
    "index_copy",
    "linalg.eigh",
    "nn.functional.max_pool1d",
    "special.ndtr",
}
# As slow as all the others together.
SLOW = {"grid_sampler_3d"}
VARIED = {}
PLAIN = {"variations": ()}
FORWARD = {**PLAIN, "forward_mode": True}
# Their tangents torch drops, and does not say so.
DROPPING = {"nn.functional.linear_cross_entropy chunked_none", "scatter_reduce prod"}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def bank():
    pytest.importorskip("expecttest")
    pytest.importorskip("torch.testing._internal.common_methods_invocations")


def some(entries, count, *, seed, always=frozenset()):
    known = [entry for entry in entries if entry.name in always]
    rest = [entry for entry in entries if entry.name not in always | SLOW]
    return known + random.Random(seed).sample(rest, count)


def total_of(entries, options, **chosen):
    total = Outcome("")
    for outcome in sweep(entries, options=options, **chosen):
        total.add(outcome)
    return total


@pytest.mark.parametrize(
    ("dtype", "order", "options", "count", "most"),
    [
        (torch.float64, 1, PLAIN, 80, 2),
        (torch.float64, 1, VARIED, 40, 1),
        (torch.float64, 1, FORWARD, 40, 1),
        (torch.float64, 2, PLAIN, 30, 1),
        (torch.float32, 1, PLAIN, 40, 1),
        (torch.complex128, 1, PLAIN, 20, 1),
    ],
)
@pytest.mark.slow
def test_a_sample_of_operators_has_no_false_failure(dtype, order, options, count, most):
    chosen = some(operators(dtype, order), count, seed=7, always=HARD)
    total = total_of(chosen, {"order": order, **options}, most=most, seed=7)
    assert total.failed == []
    assert total.verdicts["pass"] > 0.7 * total.samples
    assert dtype != torch.float64 or total.inconclusive_share < 0.02


@pytest.mark.slow
def test_operators_that_drop_a_tangent_are_no_mistake_in_forward_mode():
    chosen = [one for one in operators(torch.float64, 1) if one.name in DROPPING]
    total = total_of(chosen, {"order": 1, **FORWARD}, most=4, seed=7)
    has_both = hasattr(torch.nn.functional, "linear_cross_entropy")  # not yet in torch 2.6
    assert len(chosen) == len(DROPPING) - (not has_both)
    assert total.failed == total.told == []
    assert any(kind.startswith("forward mode: derivative of") for kind in total.not_covered)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("order", "count"), [(1, 25), (2, 12)])
def test_a_sample_of_modules_has_no_false_failure(order, count):
    chosen = some(modules(torch.float64, order), count, seed=7)
    total = total_of(chosen, {"order": order, **PLAIN}, most=1, seed=7)
    assert total.failed == []
    assert total.verdicts["inconclusive"] == 0
    assert total.verdicts["pass"] > total.samples


def test_a_sweep_is_taken_up_where_it_stopped(tmp_path):
    def samples():
        x = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
        yield Sample(torch.sin, (x,))
        yield Sample(lambda x: x.detach() * x, (x,))
        yield Sample(torch.sin, (x.int(),))

    def never():
        pytest.fail("ran again")

    out = tmp_path / "outcomes.jsonl"
    first = sweep([Entry("sin", samples)], options=PLAIN, beside_torch=True, out=out)
    assert first[0].verdicts == {"pass": 1, "fail": 1}
    assert len(first[0].failed) == 1
    assert first[0].refused == first[0].torch_failed - 1 == 1
    assert sweep([Entry("sin", never)], options=PLAIN, out=out) == first


def test_a_check_that_crashes_counts_as_a_failure(capsys):
    def raises(x):
        raise RuntimeError

    x = torch.ones(2, requires_grad=True)
    (outcome,) = sweep([Entry("raises", lambda: [Sample(raises, (x,))])], options={})
    assert outcome.failed == ["#0 crashed: RuntimeError()"]
    assert "RuntimeError" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "order"), [(torch.float64, 1), (torch.float32, 1), (torch.float64, 2)]
)
def test_no_operator_of_torch_fails(dtype, order):
    total = total_of(operators(dtype, order), {"order": order, **PLAIN})
    assert total.failed == []
    if dtype == torch.float64 and order == 1:
        assert total.inconclusive_share < 0.01
        assert total.samples > 13000


@pytest.mark.sweep
@pytest.mark.parametrize("order", [1, 2])
def test_no_module_of_torch_fails(order):
    total = total_of(modules(torch.float64, order), {"order": order, **PLAIN})
    assert total.failed == []
    assert total.samples > 1000
