"""Modules, and the optimizers that step their parameters."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.utils.stateless
from torch import nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import CodeType

    from torch import Tensor

__all__ = [
    "BATCH_NORMS",
    "DROPOUTS",
    "clipping_internals",
    "has_backward_hooks",
    "hooks_of",
    "is_compiled",
    "module_call_frames",
    "optimizer_was_made",
    "parametrizations_are_cached",
    "power_iterations",
    "standing_in",
]


DROPOUTS: tuple[type[nn.Module], ...]
"""The classes that all dropout layers of torch are of (torch 2.6 to 2.15)."""
BATCH_NORMS: tuple[type[nn.Module], ...]
"""The classes that all layers of torch with running statistics are of (torch 2.6 to 2.15)."""

_dropout = getattr(nn.modules.dropout, "_DropoutNd", None)
_batch_norm = getattr(nn.modules.batchnorm, "_BatchNorm", None)
DROPOUTS = (
    (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    if _dropout is None
    else (_dropout,)
)
BATCH_NORMS = (
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    if _batch_norm is None
    else (_batch_norm,)
)


def module_call_frames() -> tuple[CodeType | None, CodeType | None]:
    """Return what runs in the two frames of torch's own that the call of each module adds.

    The outer and the inner one (torch 2.6 to 2.15); None where there is no such function.
    """
    names = ("_wrapped_call_impl", "_call_impl")
    outer, inner = (getattr(getattr(nn.Module, name, None), "__code__", None) for name in names)
    return outer, inner


def has_backward_hooks(module: torch.nn.Module) -> bool:
    """Return whether anybody registered a backward hook or pre-hook on this module (torch 2.13).

    False where torch can't tell.
    """
    return any(getattr(module, name, None) for name in ("_backward_hooks", "_backward_pre_hooks"))


_HOOKS = {
    "_forward_pre_hooks": "forward pre-",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "backward pre-",
    "_backward_hooks": "backward",
    "_post_accumulate_grad_hooks": "gradient",
}


def hooks_of(thing: torch.nn.Module | torch.Tensor) -> list[tuple[str, Any]]:
    """Return the hooks of a module, or of a leaf's gradient, with the kind of each (torch 2.13).

    None of them where torch can't tell.
    """
    found = []
    for name, kind in _HOOKS.items():
        hooks = getattr(thing, name, None)
        if isinstance(hooks, dict):
            found += [(kind, hook) for hook in hooks.values()]
    return found


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether ``torch.compile`` or ``Module.compile`` made or changed this module (2.13).

    False where torch can't tell.
    """
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or "_orig_mod" in getattr(module, "_modules", ())


def parametrizations_are_cached() -> bool:
    """Return whether ``parametrize.cached()`` keeps what was computed (torch 2.6 to 2.15).

    False where torch can't tell.
    """
    return bool(getattr(parametrize, "_cache_enabled", False))


def power_iterations(module: torch.nn.Module) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return each parameter that spectral norm divides by an estimate of its norm (torch 2.13).

    Only where each forward iterates that estimate, as in training mode. With each parameter come
    its matrix and the left singular vector by now. Empty where torch can't tell.
    """
    found = []
    hook: Any
    for part in module.modules():
        parametrized = getattr(part, "parametrizations", None)
        for parametrization in parametrized.values() if parametrized is not None else ():
            norm = parametrization[0]
            if type(norm).__name__ == "_SpectralNorm" and norm.training and hasattr(norm, "_u"):
                weight = parametrization.original
                found.append((weight, norm._reshape_weight_to_matrix(weight.detach()), norm._u))
        for hook in part._forward_pre_hooks.values() if part.training else ():
            if type(hook).__name__ == "SpectralNorm" and hasattr(part, f"{hook.name}_u"):
                weight = getattr(part, f"{hook.name}_orig")
                vector = getattr(part, f"{hook.name}_u")
                found.append((weight, hook.reshape_weight_to_matrix(weight.detach()), vector))
    return found


def optimizer_was_made() -> bool:
    """Return whether this process has ever made an optimizer; True where that can't be told.

    Torch marks the ``step`` of a class, as ``hooked``, when the first optimizer of it is made
    (torch 2.13, ``Optimizer._patch_step_function``).
    """
    if not hasattr(torch.optim.Optimizer, "_patch_step_function"):
        return True
    waiting: list[type] = [torch.optim.Optimizer]
    while waiting:
        kind = waiting.pop()
        if getattr(getattr(kind, "step", None), "hooked", False):
            return True
        waiting.extend(type.__subclasses__(kind))
    return False


def clipping_internals() -> tuple[str, str | None]:
    """Return names in ``torch.nn.utils.clip_grad`` that its functions look up (torch 2.13).

    Returns:
        The function through which ``clip_grad_norm_`` scales gradients, and the one with which
        ``clip_grad_value_`` sorts them; the public name, and None, where there are no such.
    """
    module = sys.modules["torch.nn.utils.clip_grad"]
    by_norm, grouping = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
    return (
        by_norm if hasattr(module, by_norm) else "clip_grad_norm_",
        grouping if hasattr(module, grouping) else None,
    )


def standing_in(
    module: torch.nn.Module, tensors: dict[str, Tensor]
) -> AbstractContextManager[None] | None:
    """Return a context in which a module has other parameters and buffers (torch 2.13).

    ``torch.func.functional_call`` enters it for one call. None where the name is missing.
    """
    reparametrize = getattr(torch.nn.utils.stateless, "_reparametrize_module", None)
    if reparametrize is None:
        return None
    context: AbstractContextManager[None] = reparametrize(module, tensors, tie_weights=True)
    return context
