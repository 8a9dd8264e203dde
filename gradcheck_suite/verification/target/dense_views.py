"""See every tensor as dense real numbers, which are what differences can move.

Complex numbers become pairs of real ones, and a sparse tensor its specified values. The way back
is made of operations that torch differentiates, so that everything between is real and dense: the
gradient of ``view_as_complex`` is torch's convention for complex gradients (the conjugate Wirtinger
derivative, of which the real part of an inner product is the derivative).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradcheck_suite import _torch_compat

__all__ = [
    "LAYOUTS",
    "PLAIN",
    "Representation",
    "copied",
    "dense",
    "overlaps_itself",
    "represented",
    "seen_as_real",
]

Rebuild = Callable[[torch.Tensor], torch.Tensor]

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
LAYOUTS = (torch.strided, torch.sparse_coo, *_COMPRESSED)
_SPARE_ELEMENTS = 4096
"""A slice is copied together with the storage that it is a part of, up to this many elements beyond
``_SPARE_FACTOR`` times its own. A bound on memory; a larger storage's layout is not kept."""
_SPARE_FACTOR = 4
"""How many times the elements of the slice itself, see ``_SPARE_ELEMENTS``. Chosen."""


@dataclass(frozen=True, slots=True)
class Representation:
    """How a tensor was taken apart into real values, and how it is put together again.

    Attributes:
        is_complex: the last dimension of the values holds real and imaginary parts.
        layout: the layout of the tensor that the function takes or gave.
        dtype: its type.
    """

    is_complex: bool = False
    layout: torch.layout = torch.strided
    dtype: torch.dtype | None = None
    _steps: tuple[Rebuild, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Return whether the values are the tensor itself."""
        return not self._steps

    def rebuild(self, values: torch.Tensor) -> torch.Tensor:
        """Make the tensor of its values; differentiable."""
        for step in self._steps:
            values = step(values)
        return values


PLAIN = Representation()


def represented(tensor: torch.Tensor) -> tuple[torch.Tensor, Representation]:
    """Take an input apart into dense real values and the way back.

    The values are copies and keep strides and storage offset, save those of a tensor that overlaps
    itself (an expanded one): its entries can't be moved one by one. Its layout must be one of
    ``LAYOUTS``.
    """
    tensor = tensor.detach()
    values = tensor
    steps: tuple[Rebuild, ...] = ()
    if tensor.layout is torch.sparse_coo:
        values, steps = _coo(tensor)
    elif tensor.layout in _COMPRESSED:
        values, steps = _compressed(tensor)
    is_complex = values.is_complex()
    if is_complex:
        values = torch.view_as_real(values.resolve_conj())
        steps = (torch.view_as_complex, *steps)
    if not steps:
        return copied(values), PLAIN
    return copied(values), Representation(is_complex, tensor.layout, tensor.dtype, steps)


def seen_as_real(output: torch.Tensor) -> tuple[torch.Tensor, Representation] | None:
    """Make an output dense and real, differentiably; None for a layout that can't be.

    The representation has no way back: nobody needs it.
    """
    if output.layout not in LAYOUTS:
        return None
    is_complex, layout, dtype = output.is_complex(), output.layout, output.dtype
    if layout is not torch.strided:
        output = output.to_dense()
    if is_complex:
        output = torch.view_as_real(output.resolve_conj())
    if layout is torch.strided and not is_complex:
        return output, PLAIN
    return output, Representation(is_complex, layout, dtype, (torch.Tensor.detach,))


def copied(values: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Copy a dense tensor into memory laid out as that of ``like`` (by default its own).

    ``clone`` keeps the order of the strides; this keeps gaps and offsets as well.
    """
    values = values.detach()
    like = values if like is None else like
    if type(like) not in {torch.Tensor, torch.nn.Parameter}:
        return values.clone()
    elements = like.untyped_storage().nbytes() // like.element_size()
    if elements == like.numel() or overlaps_itself(like):
        return values.clone()
    if elements > _SPARE_ELEMENTS + _SPARE_FACTOR * like.numel():
        return values.clone()
    storage = like.detach().as_strided((elements,), (1,), 0).clone()
    copy = storage.as_strided(like.size(), like.stride(), like.storage_offset())
    return copy if values is like else copy.copy_(values)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a strided tensor: a backward may give a sparse one for a dense input."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether several entries of a strided tensor may lie in one place of memory."""
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _coo(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Rebuild, ...]]:
    indices, values = _torch_compat.sparse_coo_parts(tensor)
    size, coalesced = tensor.size(), tensor.is_coalesced()
    indices = indices.clone()

    def rebuild(moved: torch.Tensor) -> torch.Tensor:
        # A tensor that is not coalesced has to be told so by leaving the flag out.
        return torch.sparse_coo_tensor(
            indices.clone(),
            moved,
            size,
            check_invariants=False,
            is_coalesced=True if coalesced else None,
        )

    return values, (rebuild,)


def _compressed(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Rebuild, ...]]:
    by_row = tensor.layout in {torch.sparse_csr, torch.sparse_bsr}
    outer = (tensor.crow_indices() if by_row else tensor.ccol_indices()).clone()
    inner = (tensor.col_indices() if by_row else tensor.row_indices()).clone()
    size, layout = tensor.size(), tensor.layout

    def rebuild(moved: torch.Tensor) -> torch.Tensor:
        return torch.sparse_compressed_tensor(
            outer.clone(), inner.clone(), moved, size, layout=layout, check_invariants=False
        )

    return tensor.values(), (rebuild,)
