"""Which hooks are registered now, to tell a store that a hook fills from one that a loop fills."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from gradcheck_suite.findings import Location

__all__ = ["hook_around"]

_OF_MODULES = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}


def hook_around(place: Location) -> str | None:
    """Return the kind and owner of the hook that a line belongs to, or None.

    >>> from gradcheck_suite.findings import Location
    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(lambda *_: None)
    >>> hook_around(Location("nowhere.py", 1)) is None
    True
    """
    for kind, hook in _registered():
        code = _code_of(hook)
        if code is not None and code.co_filename == place.path:
            lines = [line for _, _, line in code.co_lines() if line is not None]
            if lines and min(lines) <= place.line <= max(lines):
                return kind
    return None


def _registered() -> Iterator[tuple[str, Any]]:
    for thing in gc.get_objects():
        if issubclass(type(thing), nn.Module):
            for name, kind in _OF_MODULES.items():
                for hook in list(vars(thing).get(name, {}).values()):
                    yield f"{kind} of {type(thing).__name__}", hook
        elif issubclass(type(thing), torch.Tensor):
            for hook in list((getattr(thing, "_backward_hooks", None) or {}).values()):
                yield "tensor hook", hook


def _code_of(hook: Any) -> CodeType | None:
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    if not hasattr(hook, "__code__") and callable(hook):
        hook = type(hook).__call__
    code: CodeType | None = getattr(hook, "__code__", None)
    return code
