"""Other places in memory for the same values.

Each arrangement is made of differentiable operations, so that the function under test sees the
layout and the gradient still arrives at the contiguous variable it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gradcheck_suite.verification.calling import Arrangement

__all__ = ["arranged", "expandable", "lay_out", "shared"]


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of the same values that lies in memory as ``layout`` says.

    "strided" is every second element of a buffer of twice the size, one element in, with other
    numbers between; "transposed" has its dimensions in reverse order in memory; "offset" is
    contiguous and begins one element into its buffer; "expanded" has stride 0 in the dimension
    that ``expandable`` names, and takes the values there from its first slice.
    """
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor
    if layout == "strided":
        return torch.stack((_filler(tensor), tensor), dim=-1)[..., 1]
    if layout == "offset":
        flat = tensor.reshape(-1)
        return torch.cat((_filler(flat)[:1], flat))[1:].view(tensor.shape)
    if layout == "transposed":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    dimension = expandable(tensor)
    if dimension is None:
        return tensor
    return tensor.narrow(dimension, 0, 1).expand_as(tensor)


def expandable(tensor: torch.Tensor) -> int | None:
    """Return the first dimension of more than one element, which can be given stride 0."""
    return next((index for index, size in enumerate(tensor.shape) if size > 1), None)


def arranged(layout: str, variables: Collection[int], constants: Collection[int]) -> Arrangement:
    """Return an arrangement that lays out the variables and constants of these indices."""

    def arrange(
        values: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        return (
            [lay_out(v, layout) if i in variables else v for i, v in enumerate(values)],
            [lay_out(c, layout) if i in constants else c for i, c in enumerate(others)],
        )

    return arrange


def shared(variables: Collection[int], constants: Collection[int]) -> Arrangement:
    """Return an arrangement with the values of "expanded", each in a place of its own."""
    expand = arranged("expanded", variables, constants)

    def arrange(
        values: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        first, second = expand(values, others)
        return [_compact(tensor) for tensor in first], [_compact(tensor) for tensor in second]

    return arrange


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if tensor.layout == torch.strided else tensor


def _filler(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies between the elements: for indices within their range, else constants.

    Constants, as the function would else depend on its inputs by what is none of them.
    """
    known = tensor.detach()
    if known.is_floating_point() or known.is_complex():
        count = torch.arange(known.numel(), device=known.device) % 7
        return (count * -0.75 + 1.25).to(known.dtype).view(known.shape)
    return ~known if known.dtype == torch.bool else known.flip(tuple(range(known.dim())))
