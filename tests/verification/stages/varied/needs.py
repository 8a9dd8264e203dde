"""Wrong where each input alone requires grad."""

from __future__ import annotations

from tests.verification.stages.varied.making import add, draw, make


# each alone requiring grad
def _product(x, w):
    return x @ w


def _crossed(ctx, g):
    x, w = ctx.saved_tensors
    grad_x = g @ w.t() if ctx.needs_input_grad[1] else None
    grad_w = x.t() @ g if ctx.needs_input_grad[0] else None
    return grad_x, grad_w


def _both_or_none(ctx, g):
    x, w = ctx.saved_tensors
    if all(ctx.needs_input_grad):
        return g @ w.t(), x.t() @ g
    return None, None


def _early_return(ctx, g):
    x, w = ctx.saved_tensors
    if not ctx.needs_input_grad[0]:
        return None, None
    return g @ w.t(), x.t() @ g


def _unset(ctx, g):
    x, w = ctx.saved_tensors
    if ctx.needs_input_grad[0]:
        grad_x = g @ w.t()
        scale = 1.0
    grad_w = x.t() @ g * scale if ctx.needs_input_grad[1] else None
    return (grad_x if ctx.needs_input_grad[0] else None), grad_w


def _first_only(ctx, g):
    x, w = ctx.saved_tensors
    grad = x.t() @ g
    return g @ w.t(), grad if ctx.needs_input_grad[0] else 2 * grad


def _needed(ctx, g):
    x, w = ctx.saved_tensors
    grad_x = g @ w.t() if ctx.needs_input_grad[0] else None
    grad_w = x.t() @ g if ctx.needs_input_grad[1] else None
    return grad_x, grad_w


needed = make(_product, _needed, "NeededRight")
for label, backward, code, words in (
    ("crossed", _crossed, "GCS508", "is None where only"),
    ("both_or_none", _both_or_none, "GCS508", "is None where only"),
    ("early_return", _early_return, "GCS508", "is None where only"),
    ("unset", _unset, "GCS508", "backward raises where only"),
    ("first_only", _first_only, "GCS601", "is another one where only"),
):
    add(
        label,
        (make(_product, backward, f"Needs{label.title()}"), needed),
        [draw(3, 4), draw(4, 2)],
        code,
        words,
    )
