"""GCS305 at run time: the advice holds where unscale_() comes after clipping."""

from __future__ import annotations

import pytest
import torch

import gradcheck_suite as gs


@pytest.mark.parametrize("unscales_late", [False, True])
def test_advice_is_to_unscale_once_and_to_move_a_late_call(unscales_late):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gs.audit(model, optimizer) as session:
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(2, 3)).mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if unscales_late:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    (finding,) = [finding for finding in session.findings if finding.code == "GCS305"]
    assert finding.hint == (
        "call scaler.unscale_(optimizer) once, after the last backward() and before clipping; "
        "if it comes after clipping now, move it"
    )
