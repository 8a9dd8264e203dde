"""Read tensors out of sight of the user's torch-function modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gradcheck_suite._torch_compat import function_mode_is_active, without_torch_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["without_user_modes"]

_T = TypeVar("_T")


def without_user_modes(read: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Return ``read(*arguments, **options)``; no mode of the user's is told what that asks."""
    if function_mode_is_active():
        with without_torch_function():
            return read(*arguments, **options)
    return read(*arguments, **options)
