"""Call a module with other tensors in the place of its own, which stay there for its backward.

The backward of an adjoint method, of a fixed point or of a checkpoint calls the module again. It
has to find the tensors that forward found: with the module's own it would compute the gradient at
another point, and for leaves that nobody asked about.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from gradcheck_suite._torch_compat import standing_in, transform_is_active

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ParameterSwap"]

_REFUSED = (torch.jit.ScriptModule, nn.DataParallel)
"""What ``functional_call`` says why it does not take."""


class ParameterSwap:
    """A module whose parameters and buffers are those of the last call, until it is restored.

    Wrappers of ``torch.func`` die with their transform, and what is compiled is traced: such calls
    give the module its own tensors back as soon as they return.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._swapped = contextlib.ExitStack()
        self._tensors: dict[str, torch.Tensor] | None = None

    def call(
        self, tensors: dict[str, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> object:
        """Call the module with these parameters and buffers by name."""
        module = self._module
        if torch.compiler.is_compiling() or isinstance(module, _REFUSED):
            return functional_call(module, tensors, args, dict(kwargs))
        self.restore()
        if transform_is_active() or not self._put(tensors):
            return functional_call(module, tensors, args, dict(kwargs))
        try:
            return module(*args, **kwargs)
        except BaseException:
            self.restore()
            raise

    def as_now(self) -> Callable[[], None]:
        """Return what puts the tensors of the last call in their place again."""
        tensors = self._tensors

        def put_again() -> None:
            if tensors is not None and tensors is not self._tensors:
                self.restore()
                self._put(tensors)

        return put_again

    def restore(self) -> None:
        """Give the module its own tensors back."""
        self._tensors = None
        self._swapped.close()

    def _put(self, tensors: dict[str, torch.Tensor]) -> bool:
        """Put these in place; False if that can't be done but for a single call."""
        context = standing_in(self._module, tensors)
        if context is None:
            return False
        self._swapped.enter_context(context)
        self._tensors = tensors
        return True
