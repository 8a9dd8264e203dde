"""Wrong for other layouts of the inputs."""

from __future__ import annotations

import torch

from tests.verification.stages.varied.making import (
    add,
    data,
    draw,
    from_storage,
    make,
    memory,
    unary,
)

# layouts of the inputs
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
