"""What a version of torch can't tell is said in a sentence, and a missing name stops nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradcheck_suite._torch_compat import limits as told
from gradcheck_suite._torch_compat.limits import _FALLS_BACK as FALLS_BACK


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STACK_IS_KEPT", True, "pushed before gradcheck_suite was loaded"),
        ("SAVED_TENSORS_TELL", False, "type and bytes of a saved tensor"),
        ("SAVED_TENSORS_UNPACK", False, "the version and the shape that torch's error names"),
        ("next_sequence_number", None, "saved under gs.record()"),
        ("checkpoint_entry_points", lambda: (None, None), "not reentrant"),
    ],
)
def test_each_limit_is_a_sentence(name, value, words, monkeypatch):
    module = sys.modules[told.__module__]
    for known, plain in (
        ("STACK_IS_KEPT", False),
        ("SAVED_TENSORS_TELL", True),
        ("SAVED_TENSORS_UNPACK", True),
        ("next_sequence_number", object()),
        ("checkpoint_entry_points", lambda: (None, object())),
    ):
        monkeypatch.setattr(module, known, plain)
    assert told() == ()
    monkeypatch.setattr(module, name, value)
    (only,) = told()
    assert words in only


@pytest.mark.parametrize("place", range(len(FALLS_BACK)))
def test_a_name_without_which_less_is_told_is_a_limit(place, monkeypatch):
    owner, name, words = FALLS_BACK[place]
    assert words not in told()
    monkeypatch.delattr(owner, name)
    assert words in told()


PROGRAM = """
import torch
from torch.autograd import forward_ad
owner, name = {owner}, {name!r}
assert hasattr(owner, name)
delattr(owner, name)
import gradcheck_suite as gs

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
with gs.audit(report=False) as session:
    for _ in range(3):
        Double.apply(layer(torch.ones(4, 3))).pow(2).mean().backward()
        optimizer.step()
print([finding.code for finding in session.findings])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("torch._C._autograd", "SavedTensor"),
        ("torch._C", "_is_fwd_grad_enabled"),
        ("torch._C._autograd", "_saved_tensors_hooks_is_enabled"),
    ],
)
def test_a_torch_without_a_private_name_is_audited_all_the_same(owner, name):
    program = PROGRAM.format(owner=owner, name=name)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "['GCS301']"
