"""Wrong for values of the other sign, of other magnitudes, or off special values."""

# ruff: noqa: ARG005 - forward and backward have to take what they do not use
from __future__ import annotations

import torch

from tests.verification.stages.varied.making import (
    add,
    constant,
    draw,
    identity,
    make,
    negative,
    positive,
    unary,
)

# values of the other sign
add(
    "leaky",
    unary(
        lambda x: torch.where(x > 0, x, 0.1 * x),
        lambda g, x: g * torch.where(x > 0, 1.0, 0.1),
        lambda g, x: g.clone(),
        "Leaky",
    ),
    [positive(4, 5)],
    "GCS601",
    "only for negative values",
)
add(
    "abs",
    unary(torch.abs, lambda g, x: g * x.sign(), lambda g, x: g.clone(), "Abs"),
    [positive(7)],
    "GCS601",
    "only for negative values",
)
add(
    "abs_negative",
    unary(torch.abs, lambda g, x: g * x.sign(), lambda g, x: -g, "AbsNegative"),
    [negative(7)],
    "GCS601",
    "only for positive values",
)
add(
    "square_by_abs",
    unary(torch.square, lambda g, x: 2 * g * x, lambda g, x: 2 * g * x.abs(), "Square"),
    [positive(3, 3)],
    "GCS601",
    "only for negative values",
)
add(
    "cube_root_domain",
    unary(
        lambda x: x.sign() * x.abs() ** 1.5,
        lambda g, x: g * 1.5 * x.abs().sqrt(),
        lambda g, x: g * 1.5 * x.clamp(min=0).sqrt(),
        "Power",
    ),
    [positive(6)],
    "GCS601",
    "only for negative values",
)
add(
    "scalar_slope",
    (
        make(
            lambda x, a: x * a.abs(),
            lambda ctx, g: (
                g * ctx.saved_tensors[1].abs(),
                (g * ctx.saved_tensors[0]).sum(),
            ),
            "SlopeWrong",
        ),
        make(
            lambda x, a: x * a.abs(),
            lambda ctx, g: (
                g * ctx.saved_tensors[1].abs(),
                (g * ctx.saved_tensors[0]).sum() * ctx.saved_tensors[1].sign(),
            ),
            "SlopeRight",
        ),
    ),
    [draw(5), constant(0.25)],
    "GCS601",
    "only for negative values",
)
# magnitudes
add(
    "softplus_tail",
    unary(
        lambda x: torch.nn.functional.softplus(x, threshold=100.0),
        lambda g, x: g * x.sigmoid(),
        lambda g, x: g * torch.where(x > 6, 0.5, x.sigmoid()),
        "Softplus",
    ),
    [draw(4, 5, kind=torch.randn)],
    "GCS601",
    "only for large values",
)
add(
    "saturating",
    unary(
        lambda x: x * x,
        lambda g, x: 2 * g * x,
        lambda g, x: 2 * g * x.clamp(-5, 5),
        "Clamped",
    ),
    [draw(20)],
    "GCS601",
    "only for large values",
)
add(
    "small_flushed",
    unary(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda g, x: g * torch.where(x.abs() < 0.125, 0.0, x.cos()),
        "Small",
    ),
    [positive(12)],
    "GCS601",
    "only for small values",
)
add(
    "huber_switch",
    unary(
        lambda x: torch.where(x.abs() < 4, 0.5 * x * x, 4 * (x.abs() - 2)),
        lambda g, x: g * x.clamp(-4, 4),
        lambda g, x: g * x,
        "Huber",
    ),
    [positive(9)],
    "GCS601",
    "only for large",
)
# special values
add(
    "ones_weight",
    (
        make(
            lambda x, w: x * w,
            lambda ctx, g: (g.clone(), g * ctx.saved_tensors[0]),
            "GainWrong",
        ),
        make(
            lambda x, w: x * w,
            lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
            "GainRight",
        ),
    ),
    [draw(4, 4), constant(1.0, 4, 4)],
    "GCS601",
    "only where `inputs[1]` is not ones",
)
add(
    "zero_bias",
    (
        make(
            lambda x, b: (x + b).square(),
            lambda ctx, g: (2 * g * ctx.saved_tensors[0],) * 2,
            "ShiftWrong",
        ),
        make(
            lambda x, b: (x + b).square(),
            lambda ctx, g: (2 * g * (ctx.saved_tensors[0] + ctx.saved_tensors[1]),) * 2,
            "ShiftRight",
        ),
    ),
    [draw(6), constant(0.0, 6)],
    "GCS601",
    "only where `inputs[1]` is not zeros",
)
add(
    "identity_matrix",
    (
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (g.clone(), ctx.saved_tensors[0].t() @ g),
            "TurnWrong",
        ),
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (g @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ g),
            "TurnRight",
        ),
    ),
    [draw(3, 4), identity(4)],
    "GCS601",
    "is not an identity matrix",
)
add(
    "symmetric_at_identity",
    (
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (g @ ctx.saved_tensors[1], ctx.saved_tensors[0].t() @ g),
            "SymmetricWrong",
        ),
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (g @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ g),
            "SymmetricRight",
        ),
    ),
    [draw(3, 4), identity(4)],
    "GCS601",
    "is not an identity matrix",
)


def _by_exponent(g, x, p):
    return (g * x**p * x.log()).sum()


add(
    "unit_exponent",
    (
        make(
            lambda x, p: x**p,
            lambda ctx, g: (
                g * ctx.saved_tensors[1],
                _by_exponent(g, *ctx.saved_tensors),
            ),
            "ExponentWrong",
        ),
        make(
            lambda x, p: x**p,
            lambda ctx, g: (
                g * ctx.saved_tensors[1] * ctx.saved_tensors[0] ** (ctx.saved_tensors[1] - 1),
                _by_exponent(g, *ctx.saved_tensors),
            ),
            "ExponentRight",
        ),
    ),
    [positive(6), constant(1.0)],
    "GCS601",
    "only where `inputs[1]` is not 1",
)
add(
    "layer_norm_gain",
    (
        make(
            lambda x, w: (x - x.mean(-1, keepdim=True)) * w,
            lambda ctx, g: (
                (g - g.mean(-1, keepdim=True)),
                (g * (ctx.saved_tensors[0] - ctx.saved_tensors[0].mean(-1, keepdim=True))).sum(0),
            ),
            "CentreWrong",
        ),
        make(
            lambda x, w: (x - x.mean(-1, keepdim=True)) * w,
            lambda ctx, g: (
                (g * ctx.saved_tensors[1]) - (g * ctx.saved_tensors[1]).mean(-1, keepdim=True),
                (g * (ctx.saved_tensors[0] - ctx.saved_tensors[0].mean(-1, keepdim=True))).sum(0),
            ),
            "CentreRight",
        ),
    ),
    [draw(5, 6), constant(1.0, 6)],
    "GCS601",
    "only where `inputs[1]` is not ones",
)


# tiny values
def _sinc_by_series(coefficient):
    """Return the derivative of sin(x) / x, near zero by its series, with this coefficient."""

    def derivative(g, x):
        direct = (x * x.cos() - x.sin()) / x.square()
        return g * torch.where(x.abs() < 1e-3, coefficient * x, direct)

    return derivative


add(
    "series_near_zero",
    unary(
        lambda x: x.sin() / x,
        _sinc_by_series(-1.0 / 3.0),
        _sinc_by_series(1.0 / 3.0),
        "Series",
    ),
    [draw(12)],
    "GCS601",
    "only for tiny values",
)
add(
    "cut_off_near_zero",
    unary(
        torch.tanh,
        lambda g, x: g * (1.0 - x.tanh().square()),
        lambda g, x: g * torch.where(x.abs() < 1e-4, 0.0, 1.0 - x.tanh().square()),
        "CutOff",
    ),
    [draw(12)],
    "GCS601",
    "only for tiny values",
)
