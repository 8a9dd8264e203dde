"""Modes and transforms that see what runs: torch-function, dispatch, torch.func, tracing."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.utils._python_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


__all__ = [
    "Operator",
    "changing_results",
    "dispatch_mode_is_active",
    "function_mode_is_active",
    "jit_is_tracing",
    "noting_operators",
    "transform_is_active",
    "without_dispatch_modes",
    "without_torch_function",
    "without_transforms",
    "writes_in_place",
]


Operator: TypeAlias = "torch._ops.OpOverload"
"""An operator as dispatch modes see it; for annotations."""


def writes_in_place(operator: Operator) -> bool:
    """Return whether an operator writes to one of its arguments.

    By its schema (torch 2.13); without the name, by the underscore at the end of its own.
    """
    schema = getattr(operator, "_schema", None)
    known = getattr(schema, "is_mutable", None)
    return operator.overloadpacket.__name__.endswith("_") if known is None else bool(known)


def without_torch_function() -> AbstractContextManager[None]:
    """Return a context in which the user's torch-function modes and subclasses see nothing."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


function_mode_is_active: Callable[[], int] = getattr(
    torch._C, "_len_torch_function_stack", functools.partial(int, 1)
)
"""Return how many torch-function modes of the user's would see each call (torch 2.13).

1 where torch can't tell, so that they are always kept from seeing ours.
"""


dispatch_mode_is_active: Callable[[], int] = getattr(
    torch._C, "_len_torch_dispatch_stack", functools.partial(int, 0)
)
"""Return how many TorchDispatchModes of the user's would see each operator (torch 2.13).

0 where torch can't tell. Not a function of Python's own, because it is called for each saved
tensor.
"""


def without_dispatch_modes() -> AbstractContextManager[None]:
    """Return a context whose operators no TorchDispatchMode of the user's sees (torch 2.13)."""
    disable: Callable[[], AbstractContextManager[None]] | None = getattr(
        torch.utils._python_dispatch, "_disable_current_modes", None
    )
    return contextlib.nullcontext() if disable is None else disable()


def without_transforms() -> AbstractContextManager[None]:
    """Return a context in which plain tensors stay so under a transform of ``torch.func``.

    By a private guard (torch 2.13); without the name nothing is changed.
    """
    disable: Callable[[], AbstractContextManager[None]] | None = getattr(
        torch._C, "_DisableFuncTorch", None
    )
    return contextlib.nullcontext() if disable is None else disable()


def changing_results(
    change: Callable[[Operator, torch.Tensor], torch.Tensor],
) -> AbstractContextManager[None]:
    """Return a context in which operators give what ``change(operator, result)`` makes of it.

    Those of backward too. Only results that are one tensor are handed to ``change``. By a
    TorchDispatchMode (torch 2.13); without the name nothing is changed.
    """

    def changed(operator: Operator, _: object, result: object) -> object:
        return change(operator, result) if type(result) is torch.Tensor else result

    return _through(changed)


def noting_operators(
    note: Callable[[Operator, Sequence[Any], object], None],
) -> AbstractContextManager[None]:
    """Return a context in which ``note`` is told each operator's call: it, arguments and result.

    Those within custom Functions too. By a TorchDispatchMode (torch 2.13); without the name nothing
    is told.
    """

    def noted(operator: Operator, given: Sequence[Any], result: object) -> object:
        note(operator, given, result)
        return result

    return _through(noted)


def _through(
    handle: Callable[[Operator, Sequence[Any], object], object],
) -> AbstractContextManager[None]:
    """Return a context in which operators give what ``handle`` makes of call and result."""
    base: type[Any] | None = getattr(torch.utils._python_dispatch, "TorchDispatchMode", None)
    if base is None:
        return contextlib.nullcontext()

    class Through(base):  # type: ignore[misc, valid-type]  # looked up: no static type
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Read by torch 2.13, which else loads the whole of torch._dynamo, two seconds long, on
            # the first operator, to keep itself from compiling what follows.
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            return handle(func, args, func(*args, **(kwargs or {})))

    mode: AbstractContextManager[None] = Through()
    return mode


jit_is_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", lambda: False)
"""Return whether ``torch.jit.trace`` records what runs now (torch 2.13); without the name, never.

The public ``torch.jit.is_tracing`` does the same, untyped and not exported. Not a function of
Python's own, here and below, because each saved tensor and each backward asks.
"""

transform_is_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)
"""Return whether a transform of ``torch.func`` runs here (torch 2.13); without the name, never."""
