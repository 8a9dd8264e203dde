"""Questions about gradients that are asked on suspicion only, as some wait for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite._runtime.memory import is_readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

__all__ = ["RESCALING", "is_nonzero", "is_zero", "none_left", "sample_of"]

RESCALING = frozenset(
    {
        "__iadd__",
        "__imul__",
        "__itruediv__",
        "_foreach_add_",
        "_foreach_clamp_max_",
        "_foreach_clamp_min_",
        "_foreach_div_",
        "_foreach_mul_",
        "add_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "clip_",
        "div_",
        "mul_",
        "nan_to_num_",
    }
)
"""Writes that leave the sum a sum: clipping, averaging, weight decay. After any other (``copy_``,
``zero_``) nobody can say that the old gradient is still in it."""


def is_nonzero(gradient: Tensor | None) -> bool:
    """Return whether it is known that there is a gradient with an element that is not zero."""
    return _has_any(gradient) is True


def is_zero(gradient: Tensor | None) -> bool:
    """Return whether it is known that there is no gradient, or that all of it is zero."""
    return _has_any(gradient) is False


def _has_any(gradient: Tensor | None) -> bool | None:
    """Return whether an element is not zero; None where the gradient can't be read."""
    if gradient is None:
        return False
    if not is_readable(gradient):
        return None
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return bool(gradient.any()) if gradient.numel() else False


def none_left(parameters: Iterable[Tensor]) -> bool:
    """Return whether no parameter is known or suspected to have a gradient other than zeros."""
    return all(is_zero(parameter.grad) for parameter in parameters)


def sample_of(tensor: Tensor, most: int) -> Tensor | None:
    """Copy some elements from all over a tensor; None where it has none or lies otherwise."""
    usual = tensor.layout is torch.strided and tensor.is_contiguous()
    count = tensor.numel()
    if not usual or not count or not is_readable(tensor):
        return None
    if count <= most:
        return tensor.detach().reshape(-1).clone()
    # Each op counts: several backwards of many short tests come here for each leaf.
    return tensor.detach().as_strided((most,), (count // most,)).clone()
