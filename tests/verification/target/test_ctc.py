"""The backward of ctc_loss, by design not the derivative with respect to log-probabilities."""

from __future__ import annotations

import torch
from torch import nn

from gradcheck_suite import check_gradients

TARGETS = torch.tensor([[1, 2, 2, 3], [4, 1, 3, 2]])
LENGTHS = torch.full((2,), 10), torch.full((2,), 4)


def scores():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 2, 5, dtype=torch.float64, generator=generator).requires_grad_()


def test_log_probabilities_by_themselves_are_inconclusive_and_it_is_said_why():
    given = scores().log_softmax(-1).detach().requires_grad_()
    report = check_gradients(nn.CTCLoss(), (given, TARGETS, *LENGTHS))
    assert report.findings == ()
    (verdict,) = report.verdicts
    assert verdict.status == "inconclusive"
    assert "by design not the derivative" in verdict.reason
    assert not any("magnitudes" in line for line in report.summary["covered"])


def test_through_log_softmax_it_passes():
    report = check_gradients(
        lambda x: nn.functional.ctc_loss(x.log_softmax(-1), TARGETS, *LENGTHS), scores()
    )
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


def test_a_forgotten_log_softmax_is_wrong_and_the_hint_names_it():
    report = check_gradients(
        lambda x: nn.functional.ctc_loss(x, TARGETS, *LENGTHS), scores(), variations=()
    )
    (finding,) = report.findings
    assert finding.code == "GCS601"
    assert finding.hint.endswith("put log_softmax before it")
