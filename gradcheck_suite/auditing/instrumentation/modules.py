"""Modules: which mode they are in, and when the outermost of them is called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._torch_compat import jit_is_tracing
from gradcheck_suite.auditing.call_sites import call_site, sites_up_to_library
from gradcheck_suite.auditing.events import (
    ForwardFinished,
    ForwardHookRegistered,
    LoadStarted,
    ModeChanged,
    ModuleConverted,
    StateLoaded,
    StateSaved,
    StateTaken,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = [
    "FIRST_STEPS",
    "ConversionSource",
    "ForwardHookSource",
    "ForwardSource",
    "ModeSource",
    "StateSource",
]

FIRST_STEPS = 8
"""In so many first steps each forward is told of: those in which each graph is looked through
(``_EVERY_ITERATION_UNTIL`` of ``graph_lifetime``). A bound on cost: a call of a module that is
watched takes a quarter of a microsecond more, and large models make thousands in a step."""


class ModeSource(EventSource):
    """Replaces ``Module.train``, which ``eval`` calls too."""

    kinds = (ModeChanged,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0
        self.evaluates = False
        self.turned_on: tuple[nn.Module, ...] = ()

    def install(self, patches: Patches) -> None:
        """Replace the method."""
        patches.replace(nn.Module, "train", self._training(nn.Module.train))

    def _training(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: ModeSource = self.acting
            was_training = getattr(module, "training", None)
            mode = args[0] if args else kwargs.get("mode", True)
            if not source.inside:
                source.evaluates = not mode
                source.turned_on = ()
            elif mode and source.evaluates:
                source.turned_on += (module,)
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            if not source.inside:
                recorder = source.recorder
                turned_on, source.turned_on = source.turned_on, ()
                if module.training is not was_training:
                    recorder.resume()
                if recorder.state.running:
                    site = call_site()
                    recorder.bus.emit(
                        ModeChanged(module, module.training, site, was_training, turned_on)
                    )
            return result

        return train


class StateSource(EventSource):
    """Replaces ``state_dict``, which calls that of each child, ``load_state_dict`` and ``save``."""

    kinds = (StateTaken, StateSaved, LoadStarted, StateLoaded)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        patches.replace(nn.Module, "state_dict", self._taking(nn.Module.state_dict))
        patches.replace(nn.Module, "load_state_dict", self._loading(nn.Module.load_state_dict))
        save = self._saving(torch.save)
        for place in (torch, torch.serialization):
            patches.replace(place, "save", save)

    def _taking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: StateSource = self.acting
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            if not source.inside and source.state.running and not is_compiling():
                source.recorder.bus.emit(StateTaken(module, result, call_site()))
            return result

        return state_dict

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(obj: object, *args: Any, **kwargs: Any) -> Any:
            result = original(obj, *args, **kwargs)
            source: StateSource = self.acting
            if source.state.running and not is_compiling():
                source.recorder.bus.emit(StateSaved(obj, call_site()))
            return result

        return save

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            source: StateSource = self.acting
            if not source.inside and source.state.running and not is_compiling():
                source.recorder.bus.emit(LoadStarted(module, call_site()))
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            state = args[0] if args else kwargs.get("state_dict")
            if not source.inside and source.state.running and isinstance(state, Mapping):
                missing, unexpected = map(tuple, result)
                source.recorder.bus.emit(
                    StateLoaded(module, len(state), missing, unexpected, call_site())
                )
            return result

        return load_state_dict


class ForwardHookSource(EventSource):
    """Replaces ``Module.register_forward_hook``."""

    kinds = (ForwardHookRegistered,)

    def install(self, patches: Patches) -> None:
        """Replace the method."""
        original = nn.Module.register_forward_hook
        patches.replace(nn.Module, "register_forward_hook", self._registering(original))

    def _registering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register_forward_hook(module: nn.Module, hook: Any, *args: Any, **kwargs: Any) -> Any:
            handle = original(module, hook, *args, **kwargs)
            source: ForwardHookSource = self.acting
            if source.state.running and not is_compiling():
                source.recorder.bus.emit(ForwardHookRegistered(module, hook))
            return handle

        return register_forward_hook


class ConversionSource(EventSource):
    """Replaces the methods of ``Module`` that give its parameters another type."""

    kinds = (ModuleConverted,)

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        for name in ("to", "type", "half", "bfloat16"):
            patches.replace(nn.Module, name, self._converting(getattr(nn.Module, name)))

    def _converting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def convert(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original(module, *args, **kwargs)
            source: ConversionSource = self.acting
            if source.state.running and not is_compiling():
                source.recorder.bus.emit(ModuleConverted(module, call_site()))
            return result

        return convert


class ForwardSource(EventSource):
    """Replaces ``Module.__call__`` in the first steps, and is gone after them.

    Each call begins a birth, by which graphs are told apart that no backward goes through.
    """

    kinds = (ForwardFinished,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.inside = 0

    def install(self, patches: Patches) -> None:
        """Replace the method that a call of a module runs."""
        patches.replace(nn.Module, "__call__", self._calling(nn.Module.__call__))

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # First of all: what a compiler sees being asked becomes a condition of what it made.
            if is_compiling():
                return original(module, *args, **kwargs)
            source: ForwardSource = self.acting
            state = source.state
            if state.step >= FIRST_STEPS:
                if not (self.is_kept or source.inside) and nn.Module.__call__ is call:
                    nn.Module.__call__ = original  # type: ignore[method-assign]
                return original(module, *args, **kwargs)
            # A trace would write down what is read of the module.
            if source.inside or not state.running or jit_is_tracing():
                return original(module, *args, **kwargs)
            source.recorder.generations.begin_call(state.saved)
            source.inside += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                source.inside -= 1
            lines = sites_up_to_library()
            site = lines[0] if lines else call_site()
            state.last_forward = (lines, state.backwards) if lines else None
            source.recorder.bus.emit(
                ForwardFinished(
                    module,
                    result,
                    torch.is_grad_enabled(),
                    torch.is_inference_mode_enabled(),
                    site,
                    (*args, *kwargs.values()),
                )
            )
            return result

        return call
