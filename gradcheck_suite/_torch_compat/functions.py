"""Calls of custom autograd.Functions, however their ``apply`` was reached."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import functools
import inspect
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction

from gradcheck_suite._torch_compat.nodes import custom_function_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["around_custom_functions", "checkpoint_entry_points", "without_reentrant_checkpoints"]


_forward_mode_is_on: Callable[[], bool] = getattr(torch._C, "_is_fwd_grad_enabled", lambda: True)
_forward_mode: Callable[[bool], AbstractContextManager[Any]] = getattr(
    forward_ad, "_set_fwd_grad_enabled", lambda _on: nullcontext()
)
"""Torch's switch of forward mode (2.6 to 2.15); without one it is left as it is."""


@contextmanager
def around_custom_functions(
    around: Callable[[type, tuple[Any, ...], Callable[..., Any]], Any],
) -> Iterator[None]:
    """Hand each call of a custom Function to ``around`` in place of its forward.

    Every ``apply``, also one that was bound to another name before, makes a context object of the
    class and then looks ``forward`` up on it (torch 2.6 to 2.15, in C++). The first replaces what
    the second finds; ``apply`` itself can't be replaced where it is not Python's (2.14 and later).

    Args:
        around: is given the class, what ``apply`` was given, and a function of nothing that runs
            the forward. It runs in the grad modes in which ``apply`` was called. Classes of torch
            itself are not handed over.
    """
    replaced: dict[type, Any] = {}
    # The context is made in the caller's grad modes, and forward is looked up next.
    outer = [(True, True)]

    def forward_of(cls: type) -> Callable[..., Any]:
        found: Callable[..., Any] = cls.forward  # type: ignore[attr-defined]  # a Function has it
        # What it inherits, or what lies under another such context, may be replaced as well.
        original: Callable[..., Any] = getattr(found, _ORIGINAL, found)

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            inputs = args[1:] if args and isinstance(args[0], torch._C._FunctionBase) else args
            inner = torch.is_grad_enabled(), _forward_mode_is_on()
            grad, forward_grad = outer[0]

            def proceed() -> Any:
                with torch.set_grad_enabled(inner[0]), _forward_mode(inner[1]):
                    return original(*args, **kwargs)

            with torch.set_grad_enabled(grad), _forward_mode(forward_grad):
                return around(cls, inputs, proceed)

        setattr(forward, _ORIGINAL, original)
        return forward

    def init(context: Any) -> None:
        cls = custom_function_class(context)
        if cls is None or cls.__module__.split(".")[0] == "torch":
            return
        outer[0] = torch.is_grad_enabled(), _forward_mode_is_on()
        if cls not in replaced:
            replaced[cls] = cls.__dict__.get("forward", replaced)
            cls.forward = staticmethod(forward_of(cls))  # type: ignore[attr-defined]

    before = BackwardCFunction.__dict__.get("__init__")
    BackwardCFunction.__init__ = init  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if before is None:
            del BackwardCFunction.__init__
        else:
            BackwardCFunction.__init__ = before  # type: ignore[method-assign]
        for cls, own in replaced.items():
            if own is replaced:
                del cls.forward  # type: ignore[attr-defined]
            else:
                cls.forward = own  # type: ignore[attr-defined]


_ORIGINAL = "_gradcheck_suite_original"


@contextmanager
def without_reentrant_checkpoints(keep: Callable[[], bool]) -> Iterator[None]:
    """Run what reentrant checkpointing wraps as if it were not wrapped (torch 2.6 to 2.15).

    Args:
        keep: tells, at each call, whether it is to be checkpointed after all.
    """
    own = CheckpointFunction.__dict__.get("apply")
    original: Any = CheckpointFunction.apply

    def apply(block: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return original(block, preserve, *args) if keep() else block(*args)

    CheckpointFunction.apply = staticmethod(apply)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = own  # type: ignore[method-assign]


def checkpoint_entry_points() -> tuple[tuple[Any, str] | None, tuple[Any, str] | None]:
    """Return owner and name of what ``checkpoint`` runs a function by (torch 2.6 to 2.15).

    Returns:
        For a reentrant checkpoint a function of ``(function, preserve, *inputs)``, which runs it
        now and, in backward, again; for another a generator function that is given the function
        to run again and yields while the caller runs it. None where this torch has it not.
    """
    own = sys.modules[CheckpointFunction.__module__]
    # Torch 2.15 has taken both apart.
    runs = (getattr(own, each, None) for each in ("checkpoint", "_checkpoint_impl"))
    codes = (getattr(inspect.unwrap(each), "__code__", None) for each in runs if each is not None)
    called = {name for code in codes if code is not None for name in code.co_names}
    names = (f"_checkpoint_without_reentrant_generator{end}" for end in ("_impl", ""))
    generator = next((name for name in names if name in called and hasattr(own, name)), None)
    return (CheckpointFunction, "apply"), None if generator is None else (own, generator)
