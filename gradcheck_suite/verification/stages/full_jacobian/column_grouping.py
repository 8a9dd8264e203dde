"""Measure columns together that reach different outputs.

Rows of a batch, channels, or the entries of an elementwise function do not mix: the Jacobian falls
into blocks, and one evaluation serves a column of each (Curtis, Powell and Reid, "On the
estimation of sparse Jacobian matrices", 1974). The blocks are read off the analytic Jacobian,
which may be wrong; every column so moves by a random amount of its own, and whatever reaches
another block than it should shows as a deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs

__all__ = ["Grouping", "group_columns"]

_MOST_CELLS = 2**24
"""Up to so many entries a Jacobian's pattern is read off: 64 MiB as float32. A bound on memory."""
_DENSE = 0.5
"""The share of entries that are not zero from which on grouping gains nothing: at more than half,
no two blocks of one size can be apart."""
_STREAM = 7020
"""Seed of the marks of outputs; any number does that no other stream uses."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Columns that are measured together.

    Attributes:
        columns: ``[groups, blocks]``, the column of each block in each group, or -1 for none.
        weights: by how many steps each moves.
        block_of_output: for each output the block that reaches it, or -1.
    """

    columns: torch.Tensor
    weights: torch.Tensor
    block_of_output: torch.Tensor


def group_columns(dense: torch.Tensor) -> Grouping | None:
    """Group columns that share no output.

    Args:
        dense: the transposed analytic Jacobian, ``[columns, outputs]``.

    Returns:
        The grouping, or None if there is nothing to gain.
    """
    count, outputs = dense.shape
    if not 0 < dense.numel() <= _MOST_CELLS or count < 2:  # noqa: PLR2004 - one needs no group
        return None
    used = dense.t() != 0
    # Columns of one block reach the same outputs: sum up a random number for each that is reached.
    generator = generator_for(_STREAM, count, outputs)
    marks = torch.stack([torch.rand(outputs, generator=generator), torch.ones(outputs)], dim=1)
    sums = marks.to(dense.device).t() @ used.to(marks.dtype)
    if float(sums[1].sum()) > _DENSE * dense.numel():
        return None
    names, block = torch.unique(sums[0], return_inverse=True)
    if len(names) < 2 or len(names) > outputs + 1:  # noqa: PLR2004 - one block is no gain
        return None
    first = torch.full((len(names),), count, device=dense.device).scatter_reduce(
        0, block, torch.arange(count, device=dense.device), reduce="amin"
    )
    reached, owners = torch.nonzero(used[:, first], as_tuple=True)
    block_of_output = torch.full((outputs,), -1, device=dense.device)
    block_of_output[reached] = owners
    if int((block_of_output >= 0).sum()) != len(reached):
        return None
    order = torch.argsort(block, stable=True)
    sizes = torch.bincount(block)
    starts = torch.cumsum(sizes, 0) - sizes
    rank = torch.empty_like(block)
    rank[order] = torch.arange(count) - starts[block[order]]
    columns = torch.full((int(sizes.max()), len(names)), -1)
    columns[rank, block] = torch.arange(count)
    weights = random_signs(torch.empty(columns.shape, dtype=torch.float64), generator)
    return Grouping(columns, weights, block_of_output)
