"""What ``full=True`` says of wrong entries, also of those that no probe can see."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from gradcheck_suite.verification import check_gradients

D = torch.float64


class Linear(Function):
    """A @ x whose backward uses another matrix."""

    @staticmethod
    def forward(ctx, x, matrix, wrong):
        ctx.save_for_backward(wrong)
        return matrix @ x

    @staticmethod
    def backward(ctx, g):
        (wrong,) = ctx.saved_tensors
        return wrong.t() @ g, None, None


def matrix():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 6, generator=generator, dtype=D) + 3 * torch.eye(6, dtype=D)


def changed(*place):
    wrong = matrix()
    wrong[place] += 1.0
    return wrong


@pytest.mark.parametrize(
    ("wrong", "pattern"),
    [
        (matrix().t(), "transposed"),
        (2 * matrix(), "every entry"),
        (changed(4, 2), "one entry"),
        (changed(4, slice(None)), "all at entry 4 of the output"),
        (changed(slice(None), 1), "all at entry 1 of the input"),
        (changed(slice(2, 4), slice(None)), "all at entries 2 to 3 of the output"),
        (changed(torch.tensor([0, 2, 5]), torch.tensor([0, 3, 5])), "scattered"),
    ],
)
def test_wrong_entries_are_described_by_what_they_have_in_common(randn, wrong, pattern):
    report = check_gradients(Linear, (randn(6), matrix(), wrong), full=True, variations=(), order=1)
    (verdict,) = report.verdicts
    assert verdict.status == "fail"
    assert verdict.evidence["jacobian"]["pattern"] == pattern


class Tiny(Function):
    """Scales entries, one by next to nothing; backward forgets that one's factor."""

    @staticmethod
    def forward(ctx, x, scale, factor):
        ctx.save_for_backward(scale, factor)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        scale, factor = ctx.saved_tensors
        return g * scale * factor, None, None


def test_an_entry_too_small_for_probes_is_found_by_the_whole_jacobian(randn):
    scale = torch.ones(8, dtype=D)
    scale[5] = 2e-9
    factor = torch.ones(8, dtype=D)
    factor[5] = 3.0
    x = randn(8)
    options = {"variations": (), "order": 1}
    assert check_gradients(Tiny, (x, scale, factor), **options).findings == ()
    report = check_gradients(Tiny, (x, scale, factor), full=True, **options)
    (finding,) = report.findings
    assert finding.code == "GCS601"
    assert "1 of 64 entries of the Jacobian are wrong, worst d `output[5]` / d `x[5]`" in (
        finding.message
    )
    assert "made by Tiny.backward" in finding.message
    assert finding.location.path == __file__
    (verdict,) = report.verdicts
    assert (verdict.status, verdict.reason) == ("fail", "1 of 64 entries of the Jacobian differ")
