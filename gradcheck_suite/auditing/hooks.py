"""Which hooks are registered now, to tell a store that a hook fills from one that a loop fills."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._torch_compat import gradient_hooks
from gradcheck_suite.auditing.heap import SearchEndedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

    from gradcheck_suite.auditing.heap import Heap
    from gradcheck_suite.findings import Location

__all__ = ["hook_around"]

_OF_MODULES = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}


def hook_around(place: Location, heap: Heap) -> str | None:
    """Return the kind and owner of the hook that a line belongs to, or None.

    None, too, where there is no time left for searches.

    >>> from gradcheck_suite.auditing.heap import Heap
    >>> from gradcheck_suite.findings import Location
    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(lambda *_: None)
    >>> hook_around(Location("nowhere.py", 1), Heap()) is None
    True
    """
    try:
        things = heap.instances(nn.Module, torch.Tensor)
    except SearchEndedError:
        return None
    for kind, hook in _registered(things):
        code = _code_of(hook)
        if code is not None and code.co_filename == place.path:
            lines = [line for _, _, line in code.co_lines() if line is not None]
            if lines and min(lines) <= place.line <= max(lines):
                return kind
    return None


def _registered(things: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for thing in things:
        if issubclass(type(thing), nn.Module):
            for name, kind in _OF_MODULES.items():
                for hook in list(vars(thing).get(name, {}).values()):
                    yield f"{kind} of {type(thing).__name__}", hook
        else:
            for hook in gradient_hooks(thing):
                yield "tensor hook", hook


def _code_of(hook: Any) -> CodeType | None:
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    if not hasattr(hook, "__code__") and callable(hook):
        hook = type(hook).__call__
    code: CodeType | None = getattr(hook, "__code__", None)
    return code
