"""GCS305: the advice and the fix see what else is in the window."""

from __future__ import annotations

import textwrap

import pytest

from gradcheck_lint.fixes import fix_source


def _train(*window, head="", end=("scaler.step(optimizer)", "scaler.update()")):
    body = textwrap.indent("\n".join([*window, *end]), " " * 8)
    return (
        f"import torch\n{head}\n"
        "def train(model, loader, optimizer, scaler, limit, optimizer_of_head=None):\n"
        "    for number, x in enumerate(loader):\n"
        "        optimizer.zero_grad()\n"
        "        scaler.scale(model(x).sum()).backward()\n"
        f"{body}\n"
    )


_UNSCALE = "scaler.unscale_(optimizer)"
_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
_OTHER = "torch.nn.utils.clip_grad_value_(model.head.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((_CLIP, _UNSCALE), (_UNSCALE, _CLIP)),
        ((_CLIP, _OTHER), (_UNSCALE, _CLIP, _OTHER)),
        ((_CLIP, _UNSCALE, _OTHER), (_UNSCALE, _CLIP, _OTHER)),
        (("if limit:", f"    {_CLIP}"), ("if limit:", f"    {_UNSCALE}", f"    {_CLIP}")),
        (("if number % 2:", "    continue", _CLIP),
         ("if number % 2:", "    continue", _UNSCALE, _CLIP)),
    ],
)  # fmt: skip
def test_window_is_unscaled_once_before_its_first_clip(before, after):
    fixed = fix_source(_train(*before).encode(), "x.py")
    assert fixed.source.decode() == _train(*after)
    assert fixed.left == ()


_HELPER = "def unscale(s, o):\n    s.unscale_(o)\n"


@pytest.mark.parametrize(
    ("window", "head"),
    [
        ((_CLIP, "unscale(scaler, optimizer)"), _HELPER),
        ((_CLIP, "if limit:", f"    {_UNSCALE}"), ""),
        (("if limit:", f"    {_CLIP}", _OTHER), ""),
        ((_CLIP, "optimizer = limit"), ""),
        ((_CLIP, f"{_UNSCALE}  # of all"), ""),
        ((_CLIP, "scaler.step(optimizer_of_head)"), ""),
    ],
)
def test_no_safe_fix_where_a_second_unscale_could_be_made(window, head):
    source = _train(*window, head=head)
    fixed = fix_source(source.encode(), "x.py")
    assert "GCS305" in {finding.code for finding in fixed.left}
    assert fixed.source.decode() == source


def test_advice_is_to_move_the_call_that_is_there(lint):
    (finding,) = lint(_train(_CLIP, "unscale(scaler, optimizer)", head=_HELPER))
    assert finding.hint == "move the `unscale_()` that follows to before the first clipping"
    assert [(related.location.line, related.message) for related in finding.related] == [
        (8, "scaled here"),
        (3, "unscaled only here"),
    ]
    (finding,) = lint(_train(_CLIP))
    assert finding.hint == (
        "call `scaler.unscale_(optimizer)` once, after the last backward() and before clipping"
    )
