"""Listening to the calls of single modules, without leaving anything on them.

A hook would be kept by whatever copies or saves the module: ``torch.save(model)`` in the middle of
an audit would write the hook into the file, or fail on it. While somebody listens, and only then,
``Module.__call__`` is replaced.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Listener", "ModuleCalls"]

Listener: TypeAlias = "Callable[[nn.Module, Any], None]"
"""What is called with a module and what its call has returned."""


class ModuleCalls:
    """Knows who listens to which module.

    Args:
        note_failure: told of what a listener raises, which must not reach the user's program.
    """

    def __init__(self, note_failure: Callable[[str, Exception], None]) -> None:
        self._note_failure = note_failure
        self._listeners: dict[int, tuple[weakref.ref[nn.Module], list[Listener]]] = {}
        self._replaced: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def listen(self, module: nn.Module, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` after each call of ``module``; return what ends this."""
        key = id(module)
        known = self._listeners.get(key)
        if known is None or known[0]() is not module:
            known = self._listeners[key] = (weakref.ref(module), [])
        listening = known[1]
        listening.append(listener)
        if self._replaced is None:
            self._replace()

        def stop() -> None:
            if listener in listening:
                listening.remove(listener)
            current = self._listeners.get(key)
            if not listening and current is not None and current[1] is listening:
                del self._listeners[key]
            if not self._listeners:
                self._put_back()

        return stop

    def close(self) -> None:
        """End all listening."""
        self._listeners.clear()
        self._put_back()

    def _replace(self) -> None:
        original = nn.Module.__call__
        listeners = self._listeners
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original(module, *args, **kwargs)
            if id(module) in listeners and not is_compiling():
                self._tell(module, result)
            return result

        self._replaced = (call, original)
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _put_back(self) -> None:
        # What somebody else has replaced since stays theirs; this one then only passes calls on.
        if self._replaced is not None and nn.Module.__call__ is self._replaced[0]:
            nn.Module.__call__ = self._replaced[1]  # type: ignore[method-assign]
            self._replaced = None

    def _tell(self, module: nn.Module, result: Any) -> None:
        known = self._listeners.get(id(module))
        if known is not None and known[0]() is module:
            for listener in tuple(known[1]):
                try:
                    listener(module, result)
                except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                    self._note_failure("module call", error)
