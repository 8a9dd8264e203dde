"""What audits replace in torch, left in place from audit to audit."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import in_place_functions
from gradcheck_suite.auditing.session import kept_ready

METHODS = [
    (nn.Dropout, "__call__"),
    (nn.Module, "train"),
    (nn.Module, "zero_grad"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.utils, "clip_grads_with_norm_"),
    (saved_tensors_hooks, "__enter__"),
]


def functions():
    return [getattr(owner, name) for owner, name in (*in_place_functions(), *METHODS)]


def overwrite():
    x = torch.randn(3, requires_grad=True)
    y = x.sigmoid()
    y.add_(1)  # <- here
    y.sum().backward()


def code_and_line():
    with gs.audit() as session, pytest.raises(RuntimeError, match="modified by an inplace"):
        overwrite()
    (finding,) = session.findings
    return finding.code, finding.location.line


def test_each_audit_sees_what_it_would_see_alone(line_of):
    alone = code_and_line()
    assert alone == ("GCS108", line_of(overwrite))
    with kept_ready():
        assert [code_and_line() for _ in range(3)] == [alone] * 3
    assert code_and_line() == alone


def test_they_stay_from_audit_to_audit_and_go_at_the_end():
    before = functions()
    with kept_ready():
        with gs.audit():
            pass
        kept = functions()
        assert all(one is not other for one, other in zip(before, kept, strict=True))
        with gs.audit():
            assert functions() == kept
        with kept_ready():
            pass
        assert all(one is other for one, other in zip(functions(), kept, strict=True))
    assert all(one is other for one, other in zip(functions(), before, strict=True))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_between_audits_they_do_what_torch_does():
    with kept_ready():
        x = torch.zeros(2)
        assert x.add_(1) is x
        assert torch.jit.script(one_more)(x).tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="leaf"):
            torch.ones(2, requires_grad=True).mul_(2)


def one_more(x):
    return x.add_(1)


def forgets_zero_grad(steps=3):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(3, 2)).pow(2).mean().backward()
        optimizer.step()


def codes_and_summary():
    with gs.audit() as session:
        forgets_zero_grad()
        with torch.no_grad(), saved_tensors_hooks(lambda x: x, lambda x: x):
            nn.Linear(2, 2).eval()(torch.ones(1, 2))
    report = session.report
    return [f.code for f in report.findings], dict(report.summary), report.not_covered


def test_every_source_acts_for_the_audit_that_runs_and_for_no_other():
    alone = codes_and_summary()
    assert alone[0] == ["GCS301"]
    with kept_ready():
        with gs.audit() as empty:
            pass
        told = empty.report
        for _ in range(3):
            forgets_zero_grad()
            assert codes_and_summary() == alone
        assert empty.report == told


def test_an_audit_inside_another_and_inside_a_call():
    class Audits(nn.Linear):
        def forward(self, x):
            with gs.audit() as self.session:
                forgets_zero_grad()
            return super().forward(x)

    model = Audits(2, 1)
    with kept_ready():
        with gs.audit() as outer:
            model(torch.ones(3, 2))
            forgets_zero_grad(steps=4)
        assert [f.code for f in model.session.findings] == ["GCS301"]
        assert model.session.report.summary["steps"] == 3
        assert [f.code for f in outer.findings] == ["GCS301"]
        assert outer.report.summary["steps"] == 4
        assert codes_and_summary()[0] == ["GCS301"]


def test_nothing_of_an_audit_that_is_over_is_held():
    with kept_ready():
        with gs.audit() as session:
            forgets_zero_grad()
        ended = weakref.ref(session)
        del session
        gc.collect()
        assert ended() is None
