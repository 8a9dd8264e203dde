"""Functions that are wrong only under one variation of the inputs, each beside its correct twin.

``WRONG`` lists them: (name, function, twin, inputs, code, words of the message). Inputs are made
by a function of a seeded generator; they are as kind as a careless test's.
"""

# ruff: noqa: ARG005 - forward and backward have to take what they do not use
from __future__ import annotations

import torch
from torch.autograd import Function


def make(forward, backward, name):
    """Make a Function of ``forward(*inputs)`` and ``backward(ctx, *grads)``."""

    def run(ctx, *inputs):
        ctx.save_for_backward(*[i for i in inputs if isinstance(i, torch.Tensor)])
        ctx.rest = [i for i in inputs if not isinstance(i, torch.Tensor)]
        return forward(*inputs)

    return type(
        name, (Function,), {"forward": staticmethod(run), "backward": staticmethod(backward)}
    )


def unary(forward, right, wrong, name):
    """Return a wrong elementwise Function and its twin; derivatives are functions of (g, x)."""

    def backward_with(derivative):
        def backward(ctx, g):
            return derivative(g, ctx.saved_tensors[0])

        return backward

    return (
        make(forward, backward_with(wrong), f"{name}Wrong"),
        make(forward, backward_with(right), f"{name}Right"),
    )


def memory(x):
    """Read a tensor's storage from its first element on, as a kernel does that takes a pointer."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())


def from_storage(x):
    """Read from the beginning of the storage, as one that forgets the offset does."""
    return torch.as_strided(x, x.shape, x.stride(), 0)


def draw(*shape, kind=torch.randn):
    """Return a function that draws one float64 input that requires grad."""

    def inputs(generator):
        return kind(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return inputs


def positive(*shape):
    """Draw inputs between 0.5 and 1.5."""

    def inputs(generator):
        drawn = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5
        return drawn.requires_grad_()

    return inputs


def negative(*shape):
    """Draw inputs between -1.5 and -0.5."""

    def inputs(generator):
        drawn = -torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5
        return drawn.requires_grad_()

    return inputs


def constant(value, *shape):
    """Make a tensor of one value that requires grad."""
    return lambda generator: torch.full(shape, value, dtype=torch.float64).requires_grad_()


def indices(*values):
    """Make an integer tensor."""
    return lambda generator: torch.tensor(values)


def identity(size):
    """Make an identity matrix that requires grad."""
    return lambda generator: torch.eye(size, dtype=torch.float64).requires_grad_()


def data(*shape):
    """Draw one float64 input that does not require grad."""
    return lambda generator: torch.randn(*shape, generator=generator, dtype=torch.float64)


WRONG = []


def add(name, pair, inputs, code, words):
    """Add a wrong function with its twin to the bank."""
    WRONG.append((name, *pair, inputs, code, words))


# --- values of the other sign -------------------------------------------------------------------
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
# --- magnitudes ---------------------------------------------------------------------------------
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
# --- special values -----------------------------------------------------------------------------
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


# --- repeated indices ---------------------------------------------------------------------------
def _gather(x, index):
    return x[index]


def _overwrites(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_put((index,), g), None


def _accumulates(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_put((index,), g, accumulate=True), None


def _assigns(ctx, g):
    x, index = ctx.saved_tensors
    grad = torch.zeros_like(x)
    grad[index] += g
    return grad, None


def _copies(ctx, g):
    x, index = ctx.saved_tensors
    return torch.zeros_like(x).index_copy(0, index, g), None


gather = make(_gather, _accumulates, "GatherRight")
for label, backward in (("put", _overwrites), ("augmented", _assigns), ("copy", _copies)):
    add(
        f"gather_{label}",
        (make(_gather, backward, f"Gather{label.title()}"), gather),
        [draw(8, 3), indices(5, 2, 0, 7, 3)],
        "GCS601",
        "only for repeated indices in `inputs[1]`",
    )


# --- layouts of the inputs ----------------------------------------------------------------------
add(
    "pointer",
    unary(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda g, x: g * memory(x).cos(),
        "Pointer",
    ),
    [draw(4, 5)],
    "GCS609",
    "only for strided inputs",
)
add(
    "pointer_1d",
    unary(torch.exp, lambda g, x: g * x.exp(), lambda g, x: g * memory(x).exp(), "Pointer1d"),
    [draw(9)],
    "GCS609",
    "only for strided inputs",
)
add(
    "transposed_memory",
    unary(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda g, x: g * (x if x.stride(-1) != 1 and x.stride(0) != 1 else memory(x)).cos(),
        "TransposedMemory",
    ),
    [draw(4, 5)],
    "GCS609",
    "only for transposed inputs",
)
add(
    "forgets_offset",
    unary(
        torch.tanh,
        lambda g, x: g * (1 - x.tanh() ** 2),
        lambda g, x: g * (1 - from_storage(x).tanh() ** 2),
        "ForgetsOffset",
    ),
    [draw(10)],
    "GCS609",
    "inputs",
)
add(
    "contiguous_offset",
    unary(
        torch.tanh,
        lambda g, x: g * (1 - x.tanh() ** 2),
        lambda g, x: g * (1 - (from_storage(x) if x.is_contiguous() else x).tanh() ** 2),
        "ContiguousOffset",
    ),
    [draw(10)],
    "GCS609",
    "only for offset inputs",
)
add(
    "reads_strides",
    unary(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda g, x: g * x.cos() * min(1, x.stride(0)),
        "ReadsStrides",
    ),
    [draw(6, 2)],
    "GCS609",
    "only for expanded inputs",
)
add(
    "view_in_backward",
    unary(
        torch.sin,
        lambda g, x: (g.reshape(-1) * x.reshape(-1).cos()).view(x.shape),
        lambda g, x: (g.reshape(-1) * x.view(-1).cos()).view(x.shape),
        "ViewInBackward",
    ),
    [draw(3, 4)],
    "GCS609",
    "backward raises for transposed inputs",
)
add(
    "constant_data",
    (
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (None, memory(ctx.saved_tensors[0]).t() @ g),
            "DataWrong",
        ),
        make(
            lambda x, w: x @ w,
            lambda ctx, g: (None, ctx.saved_tensors[0].t() @ g),
            "DataRight",
        ),
    ),
    [data(3, 4), draw(4, 2)],
    "GCS609",
    "only for strided inputs (`inputs[0]`)",
)


# --- each alone requiring grad --------------------------------------------------------------------
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


# --- sizes ----------------------------------------------------------------------------------------
def _no_tail(block):
    def derivative(g, x):
        grad = (g * x.cos()).reshape(-1).clone()
        grad[grad.numel() // block * block :] = 0
        return grad.view(x.shape)

    return derivative


def _beyond(limit):
    def derivative(g, x):
        grad = (g * x.cos()).reshape(-1).clone()
        grad[limit:] = 0
        return grad.view(x.shape)

    return derivative


for label, derivative, size in (
    ("tail_of_32", _no_tail(32), 64),
    ("tail_of_8", _no_tail(8), 16),
    ("tail_of_1024", _no_tail(1024), 1024),
    ("beyond_1024", _beyond(1024), 100),
    ("beyond_4096", _beyond(4096), 256),
):
    add(
        label,
        unary(torch.sin, lambda g, x: g * x.cos(), derivative, label.title().replace("_", "")),
        [draw(size)],
        "GCS601",
        "only with a first dimension of",
    )


def _even_columns(g, x):
    grad = (g * x.cos()).clone()
    grad[..., x.shape[-1] // 2 * 2 :] = 0
    return grad


add(
    "odd_columns",
    unary(torch.sin, lambda g, x: g * x.cos(), _even_columns, "OddColumns"),
    [draw(3, 8)],
    "GCS601",
    "only with a last dimension of",
)
