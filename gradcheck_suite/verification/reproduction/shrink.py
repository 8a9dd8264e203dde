"""Make the inputs of a failing check as small and plain as still fails."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.verification.progress import Deadline

__all__ = ["shrunk"]


def shrunk(tree: Any, fails: Callable[[Any], bool], deadline: Deadline) -> Any:
    """Return the arguments with sizes halved, gradients dropped and values rounded.

    Args:
        tree: arguments, which fail.
        fails: whether other arguments show the same mistake.
        deadline: when to stop.
    """
    for simpler in (_smaller, _fewer, _rounder):
        found = True
        while found and not deadline.passed:
            found = False
            for candidate in simpler(tree):
                if deadline.passed:
                    break
                if fails(candidate):
                    tree, found = candidate, simpler is not _rounder
                    break
    return tree


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves_with_paths(tree, "") if isinstance(leaf, torch.Tensor)]


def _smaller(tree: Any) -> Iterator[Any]:
    """Yield arguments where a size, wherever it occurs, is one, a half, or one less."""
    sizes = sorted({size for tensor in _tensors(tree) for size in tensor.shape if size > 1})
    for size in reversed(sizes):
        for less in dict.fromkeys((1, size // 2, size - 1)):
            yield replace_leaves(tree, functools.partial(_cut, size=size, less=less))
    for number, tensor in enumerate(_tensors(tree)):
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                for less in dict.fromkeys((1, size // 2)):
                    yield _with(tree, number, _narrowed(tensor, dim, less))


def _cut(leaf: Any, size: int, less: int) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    for dim, known in enumerate(leaf.shape):
        if known == size:
            leaf = _narrowed(leaf, dim, less)
    if not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool):
        # Labels and indices may count what became fewer.
        leaf = leaf % less if int(leaf.max() if leaf.numel() else 0) < size else leaf
    return leaf


def _narrowed(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    part = tensor.detach().narrow(dim, 0, size)
    made = torch.empty_like(part)  # keeps the order of dimensions in memory
    return made.copy_(part).requires_grad_(tensor.requires_grad)


def _fewer(tree: Any) -> Iterator[Any]:
    """Yield arguments of which one less needs a gradient."""
    tensors = _tensors(tree)
    needing = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    for number in needing if len(needing) > 1 else ():
        yield _with(tree, number, tensors[number].detach())


def _rounder(tree: Any) -> Iterator[Any]:
    """Yield arguments with rounder values, all of them, then one by one, the roundest first."""
    for digits in (0, 1, 2, 3):
        yield replace_leaves(tree, functools.partial(_rounded, digits=digits))


def _rounded(leaf: Any, digits: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    made = torch.empty_like(leaf.detach()).copy_(leaf.detach())
    parts = torch.view_as_real(made) if made.is_complex() else made
    # Adding zero leaves no minus zero.
    parts.copy_(parts.double().round(decimals=digits) + 0.0)
    return made.requires_grad_(leaf.requires_grad)


def _with(tree: Any, number: int, other: torch.Tensor) -> Any:
    """Replace one tensor, counted in order."""
    count = -1

    def fill(leaf: Any) -> Any:
        nonlocal count
        if isinstance(leaf, torch.Tensor):
            count += 1
            return other if count == number else leaf
        return leaf

    return replace_leaves(tree, fill)
