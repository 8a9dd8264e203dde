"""Read tensors out of sight of the user's torch-function modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradcheck_suite._torch_compat import (
    dispatch_mode_is_active,
    function_mode_is_active,
    jit_is_tracing,
    without_torch_function,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["graph_is_captured", "ops_are_recorded", "without_user_modes"]

_T = TypeVar("_T")


def without_user_modes(read: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Return ``read(*arguments, **options)``; no mode of the user's is told what that asks."""
    if function_mode_is_active():
        with without_torch_function():
            return read(*arguments, **options)
    return read(*arguments, **options)


def ops_are_recorded() -> bool:
    """Return whether an operator of ours would be taken down now.

    A dispatch mode of the user's would be told of it; ``torch.jit.trace`` and a CUDA graph would
    make it a part of what they record.
    """
    return bool(dispatch_mode_is_active()) or jit_is_tracing() or graph_is_captured()


def graph_is_captured() -> bool:
    """Return whether a CUDA graph takes down what runs now; never without a device."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types for it
    return started and torch.cuda.is_current_stream_capturing()
