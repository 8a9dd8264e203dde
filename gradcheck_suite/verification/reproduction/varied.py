"""Give inputs the property under which alone a gradient was found to be wrong."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.verification.options import LAYOUTS
from gradcheck_suite.verification.stages.input_variations.memory_layouts import lay_out
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["varied"]

_SIZES = (1, 2, 3, 5, 7, 17, 67, 257)
"""What the first dimension is made, smallest first."""
_SCALES = (1.0, -1.0, 4.0, 20.0, 1e-2, 1e-4, 1e-8)
"""What drawn values are multiplied by, plainest first: those of the variation "magnitudes"."""


def varied(tree: Any, kind: str) -> Iterator[Any]:
    """Yield arguments that may show plainly what a variation of the inputs has shown.

    Args:
        tree: arguments for which the gradient is right.
        kind: the name of the variation, as the evidence has it.
    """
    if kind in LAYOUTS:
        yield _changed(tree, lambda leaf: lay_out(leaf, kind), every=True)
        return
    if kind == "alone":
        tensors = [one for _, one in leaves_with_paths(tree, "") if isinstance(one, torch.Tensor)]
        for chosen in [one for one in tensors if one.requires_grad]:
            yield replace_leaves(
                tree,
                lambda leaf, chosen=chosen: (  # type: ignore[misc]
                    leaf.detach() if isinstance(leaf, torch.Tensor) and leaf is not chosen else leaf
                ),
            )
        return
    if kind == "sizes":
        firsts = [
            one.shape[0]
            for _, one in leaves_with_paths(tree, "")
            if isinstance(one, torch.Tensor) and one.dim()
        ]
        for first in dict.fromkeys(firsts):
            for size in (*_SIZES, first + 1, first - 1):
                yield _changed(
                    tree,
                    functools.partial(_resized, first=first, size=size),
                    every=True,
                )
        return
    if kind == "indices":
        yield _changed(
            tree, lambda leaf: leaf if leaf.is_floating_point() else leaf.clamp(max=0), every=True
        )
        return
    generator = torch.Generator().manual_seed(1)
    for scale in _SCALES:
        yield _changed(tree, functools.partial(_drawn, generator=generator, scale=scale))


def _changed(
    tree: Any, change: Callable[[torch.Tensor], torch.Tensor], *, every: bool = False
) -> Any:
    """Change the tensors that need a gradient, or every one, and keep who needs one."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (every or leaf.requires_grad):
            return leaf
        made = change(leaf.detach()).detach()
        return made.requires_grad_() if leaf.requires_grad else made

    return replace_leaves(tree, fill)


def _resized(leaf: torch.Tensor, first: int, size: int) -> torch.Tensor:
    for dim, known in enumerate(leaf.shape):
        if known == first and size > 0:
            leaf = leaf.index_select(dim, torch.arange(size) % known)
            break
    return leaf


def _drawn(leaf: torch.Tensor, generator: torch.Generator, scale: float) -> torch.Tensor:
    return torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) * scale
