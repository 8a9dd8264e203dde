"""Stand-ins for in-place functions that stay between audits."""

from __future__ import annotations

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import in_place_functions
from gradcheck_suite.auditing.writers import stand_ins_kept


def functions():
    return [getattr(owner, name) for owner, name in in_place_functions()]


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
    with stand_ins_kept():
        assert [code_and_line() for _ in range(3)] == [alone] * 3
    assert code_and_line() == alone


def test_they_stay_from_audit_to_audit_and_go_at_the_end():
    before = functions()
    with stand_ins_kept():
        kept = functions()
        assert all(one is not other for one, other in zip(before, kept, strict=True))
        with gs.audit():
            assert functions() == kept
        with stand_ins_kept():
            pass
        assert all(one is other for one, other in zip(functions(), kept, strict=True))
    assert all(one is other for one, other in zip(functions(), before, strict=True))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_between_audits_they_do_what_torch_does():
    with stand_ins_kept():
        x = torch.zeros(2)
        assert x.add_(1) is x
        assert torch.jit.script(one_more)(x).tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="leaf"):
            torch.ones(2, requires_grad=True).mul_(2)


def one_more(x):
    return x.add_(1)
