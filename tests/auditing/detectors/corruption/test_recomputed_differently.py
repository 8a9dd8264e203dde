"""Checkpoints that are computed again in backward with something changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.auditing.loops import checkpoints


def test_what_to_do_is_told_for_each_generator(audited, only):
    session = audited(checkpoints.dropout_without_its_generator)
    finding = only(session, "GCS613")
    assert finding.hint == "leave preserve_rng_state=True"
    assert finding.evidence["generators"] == ["torch's"]
    finding = only(audited(checkpoints.layers_dropped_by_python), "GCS613")
    assert finding.hint.startswith("draw with torch, whose generators checkpoint restores")


def test_a_checkpoint_whose_backward_never_comes_and_one_that_fails_are_no_finding(audited):
    model, drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def failing(_x):
        raise ValueError("no")

    def loop():
        for _ in range(4):
            checkpoint(
                drop, model(torch.randn(2, 4)), use_reentrant=False, preserve_rng_state=False
            )
            for reentrant in (False, True):
                x = torch.randn(2, 4, requires_grad=True)
                with pytest.raises(ValueError, match=r"^no$"):
                    checkpoint(failing, x, use_reentrant=reentrant)

    assert not [each for each in audited(loop).findings if each.code == "GCS613"]


def test_each_backward_through_a_kept_graph_is_looked_at(audited, only):
    model, drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def loop():
        for _ in range(3):
            y = checkpoint(
                drop, model(torch.randn(2, 4)), use_reentrant=False, preserve_rng_state=False
            ).sum()
            y.backward(retain_graph=True)
            y.backward()

    assert only(audited(loop), "GCS613").evidence["count"] >= 3


def test_keywords_and_several_results_pass_as_without_an_audit(audited):
    def split(x, *, times):
        return x * times, x + times

    def loop():
        x = torch.ones(2, requires_grad=True)
        one, other = checkpoint(split, x, times=3.0, use_reentrant=False)
        (one.sum() + other.sum()).backward()
        assert x.grad.tolist() == [4.0, 4.0]

    audited(loop)
