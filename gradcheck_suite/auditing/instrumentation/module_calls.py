"""Listening to the calls of single modules, without leaving anything on them.

A hook would be kept by whatever copies or saves the module: ``torch.save(model)`` in the middle of
an audit would write the hook into the file, or fail on it. While somebody listens, and only then,
``Module.__call__`` is replaced. Who asks for each call of a model from outside of all models for
the whole audit has it replaced for the model's class alone: others cost nothing more.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from gradcheck_suite._torch_compat import (
    function_mode_is_active,
    jit_is_tracing,
    trace_original_of,
    without_torch_function,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Listener", "ModelListener", "ModuleCalls"]

Listener: TypeAlias = "Callable[[nn.Module, Any], None]"
"""What is called with a module and what its call has returned."""

ModelListener: TypeAlias = "Callable[[nn.Module, Any, tuple[Any, ...]], None]"
"""What is called with a model, what its call has returned, and what it was given."""


class ModuleCalls:
    """Knows who listens to which module.

    Args:
        note_failure: told of what a listener raises, which must not reach the user's program.

    Attributes:
        after_each: called after each call of any module, while somebody listens to one; or None.
    """

    def __init__(self, note_failure: Callable[[str, Exception], None]) -> None:
        self._note_failure = note_failure
        self.after_each: Callable[[], None] | None = None
        self._listeners: dict[int, tuple[weakref.ref[nn.Module], list[Listener]]] = {}
        self._replaced: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._classes: dict[type[nn.Module], tuple[Callable[..., Any], Any]] = {}
        self._model_listeners: dict[type[nn.Module], list[ModelListener]] = {}
        self._inside = 0

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

    def listen_to_models(self, kind: type[nn.Module], listener: ModelListener) -> None:
        """Call ``listener`` after each call of a module of this class, until all listening ends.

        Calls from within other such calls are left out.
        """
        listeners = self._model_listeners.setdefault(kind, [])
        listeners.append(listener)
        if kind not in self._classes:
            own = vars(kind).get("__call__")
            call = self._calling(kind, own, listeners)
            self._classes[kind] = (call, own)
            kind.__call__ = call  # type: ignore[method-assign]

    def close(self) -> None:
        """End all listening."""
        self._listeners.clear()
        self.after_each = None
        self._put_back()
        for kind, (call, own) in self._classes.items():
            # As below, for what somebody else has replaced since.
            if vars(kind).get("__call__") is not call:
                continue
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own  # type: ignore[method-assign]
        self._classes.clear()
        self._model_listeners.clear()

    def _calling(
        self, kind: type[nn.Module], own: Callable[..., Any] | None, listeners: list[ModelListener]
    ) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(kind.__call__)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Looked up each time: torch.fx replaces what this class inherits while it traces.
            inherited = super(kind, module).__call__ if own is None else own.__get__(module)  # type: ignore[misc]  # a Module has one
            # torch.jit.trace names values after the variables of the running functions.
            if self._inside or is_compiling() or jit_is_tracing():
                return inherited(*args, **kwargs)
            self._inside += 1
            try:
                result = inherited(*args, **kwargs)
            finally:
                self._inside -= 1
            given = (*args, *kwargs.values())
            # What is asked of tensors is none of the business of a user's modes.
            if function_mode_is_active():
                with without_torch_function():
                    self._tell_of_model(listeners, module, result, given)
            else:
                self._tell_of_model(listeners, module, result, given)
            return result

        return call

    def _tell_of_model(
        self,
        listeners: list[ModelListener],
        module: nn.Module,
        result: Any,
        given: tuple[Any, ...],
    ) -> None:
        for listener in listeners:
            try:
                listener(module, result, given)
            except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                self._note_failure("module call", error)

    def _replace(self) -> None:
        original = nn.Module.__call__
        listeners = self._listeners
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if jit_is_tracing():  # as above
                return original(module, *args, **kwargs)
            result = original(module, *args, **kwargs)
            if self.after_each is not None and not is_compiling():
                self._tell_of_any()
            if id(module) in listeners and not is_compiling():
                self._tell(module, result)
            return result

        trace_original_of(call)
        self._replaced = (call, original)
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _put_back(self) -> None:
        # What somebody else has replaced since stays theirs; this one then only passes calls on.
        if self._replaced is not None and nn.Module.__call__ is self._replaced[0]:
            nn.Module.__call__ = self._replaced[1]  # type: ignore[method-assign]
            self._replaced = None

    def _tell_of_any(self) -> None:
        try:
            if self.after_each is not None:
                self.after_each()
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self.after_each = None
            self._note_failure("module call", error)

    def _tell(self, module: nn.Module, result: Any) -> None:
        known = self._listeners.get(id(module))
        if known is not None and known[0]() is module:
            for listener in tuple(known[1]):
                try:
                    listener(module, result)
                except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                    self._note_failure("module call", error)
