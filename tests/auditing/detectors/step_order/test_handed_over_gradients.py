"""Whose gradients a step uses is known also where the optimizer was made before the audit."""

from __future__ import annotations

import copy

import torch
from torch import nn

import gradcheck_suite as gs


def test_an_optimizer_from_before_the_audit_owns_its_parameters():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gs.audit(report=False) as session:
        for _ in range(3):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    (finding,) = session.findings
    assert finding.code == "GCS301"
    assert "no optimizer owns" not in finding.message


def test_a_worker_beside_such_an_optimizer_is_still_told():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    worker = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gs.audit(report=False) as session:
        for _ in range(4):
            optimizer.zero_grad()
            worker(torch.randn(8, 4)).pow(2).mean().backward()
            for own, theirs in zip(model.parameters(), worker.parameters(), strict=True):
                own.grad = theirs.grad.clone()
            optimizer.step()
            worker.load_state_dict(model.state_dict())
    assert [f.code for f in session.findings if "no optimizer owns" in f.message] == ["GCS301"]
