"""See every module's forward begin and end."""

from __future__ import annotations

import threading
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from gradcheck_suite._torch_compat import inside_backward, without_torch_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OutermostForwards", "floating_tensors", "hook_every_forward"]

_MEMBERS = 1_000
"""So many members of a container are looked at: a list of a million numbers holds no tensor."""
_WARNING_ON_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


class OutermostForwards:
    """Tells of what a module returned that no other called, on one thread.

    Args:
        at_end: is given the floating-point tensors in it, if one of them has a graph.
    """

    def __init__(self, at_end: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._at_end = at_end
        self._open: list[torch.nn.Module] = []
        self._thread = 0
        self._unhook: Callable[[], None] | None = None

    def start(self) -> None:
        """Install the hooks."""
        self._thread = threading.get_ident()
        self._unhook = hook_every_forward(self._before, self._after)

    def stop(self) -> None:
        """Remove the hooks."""
        if self._unhook is not None:
            self._unhook()
            self._unhook = None
        self._open.clear()

    def _before(self, module: torch.nn.Module, _args: Any) -> None:
        if not self._is_foreign():
            self._open.append(module)

    def _after(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._is_foreign():
            return
        while self._open:
            # An exception may have passed calls by whose end nobody told.
            if self._open.pop() is module:
                break
        if self._open:
            return
        with without_torch_function():
            tensors = floating_tensors(output)
            if any(tensor.requires_grad for tensor in tensors):
                self._at_end(tensors)

    def _is_foreign(self) -> bool:
        is_here = threading.get_ident() == self._thread
        return torch.compiler.is_compiling() or not is_here or inside_backward()


def hook_every_forward(
    before: Callable[[torch.nn.Module, Any], None],
    after: Callable[[torch.nn.Module, Any, Any], None],
) -> Callable[[], None]:
    """Put hooks round the forward of every module; return what removes them."""
    # torch warns of any global hook, whatever it does; these leave compiled modules alone.
    filters = list(warnings.filters)
    warnings.filterwarnings("ignore", message=_WARNING_ON_HOOKS)
    ours = next((entry for entry in warnings.filters if entry not in filters), None)
    handles = (
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    )

    def unhook() -> None:
        for handle in handles:
            handle.remove()
        if ours is not None and ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]  # a list in fact

    return unhook


def floating_tensors(value: Any) -> list[torch.Tensor]:
    """Find the tensors that may need a gradient in what a module was given or returned."""
    if type(value) is tuple and len(value) == 1:
        (value,) = value
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() or value.is_complex() else []
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() or value.is_complex():
                found.append(value)
        elif isinstance(value, (tuple, list, dict)) and id(value) not in seen:
            seen.add(id(value))
            members = value.values() if isinstance(value, dict) else value
            pending.extend(reversed(tuple(islice(members, _MEMBERS))))
    return found
