"""Operators of torch's own test bank: no false alarm, with the same options for all."""

from __future__ import annotations

import pytest
import torch

from benchmarks.op_db import operators, tally

# A few of each kind: elementwise, reduction, indexing, linear algebra, with kinks, with layouts,
# with several outputs, and those that needed thought (rounding in the forward, jumps, ties).
CHOSEN = {
    "__rmod__",
    "as_strided",
    "bmm",
    "cumprod",
    "fmod",
    "gather",
    "linalg.eigh",
    "linalg.solve",
    "logsumexp",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.max_pool1d",
    "sort",
    "special.ndtr",
    "std",
    "topk",
}


@pytest.fixture(scope="module")
def bank():
    pytest.importorskip("expecttest")
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    return operators


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sample_of_operators_has_no_false_failure(bank, dtype):
    chosen = [operator for operator in bank(dtype, 1) if operator.name in CHOSEN]
    total = tally(
        chosen, dtype=dtype, options={"variations": ()}, most=3, beside_torch=False, seed=1
    )
    assert total.failed == {}
    assert total.verdicts["pass"] > total.samples / 2
    assert total.refused == 0


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_operators_has_no_false_failure_at_order_2(bank):
    chosen = [operator for operator in bank(torch.float64, 2) if operator.name in CHOSEN]
    total = tally(
        chosen,
        dtype=torch.float64,
        options={"variations": (), "order": 2},
        most=1,
        beside_torch=False,
        seed=1,
    )
    assert total.failed == {}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dtype", "order"), [(torch.float64, 1), (torch.float32, 1), (torch.float64, 2)]
)
def test_no_operator_of_torch_fails(bank, dtype, order):
    options = {"variations": (), "order": order}
    total = tally(bank(dtype, order), dtype=dtype, options=options, beside_torch=False)
    assert total.failed == {}
    if dtype == torch.float64 and order == 1:
        assert total.inconclusive_share < 0.01
        assert total.samples > 13000
