"""Optimizers, made, cleared and stepped, and the schedulers of their learning rates."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradcheck_suite._torch_compat import left_out_of_compiled_code
from gradcheck_suite.auditing.call_sites import exact_call_site
from gradcheck_suite.auditing.events import (
    GradientsCleared,
    NonLeafRefused,
    OptimizerConstructed,
    OptimizerStateLoaded,
    ParameterGroupAdded,
    SchedulerStateLoaded,
    SchedulerStepped,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling
from gradcheck_suite.auditing.object_names.optimizers import innermost_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["OptimizerSource", "SchedulerSource"]


class OptimizerSource(EventSource):
    """Registers torch's global step hooks and replaces the other methods of ``Optimizer``."""

    kinds = (
        StepStarted,
        StepFinished,
        OptimizerConstructed,
        OptimizerStateLoaded,
        ParameterGroupAdded,
        NonLeafRefused,
        GradientsCleared,
    )
    always = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.under_construction: set[int] = set()
        self.site: CallSite | None = None
        self._stepping = 0
        self._handles: list[RemovableHandle] = []

    def install(self, patches: Patches) -> None:
        """Register the hooks and replace the methods."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        patches.replace(Optimizer, "__init__", self._constructing(Optimizer.__init__))
        patches.replace(
            Optimizer, "add_param_group", self._adding_a_group(Optimizer.add_param_group)
        )
        patches.replace(Optimizer, "load_state_dict", self._loading(Optimizer.load_state_dict))
        patches.replace(Optimizer, "zero_grad", self._clearing(Optimizer.zero_grad))
        patches.replace(nn.Module, "zero_grad", self._clearing(nn.Module.zero_grad))

    def uninstall(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    @left_out_of_compiled_code
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping += 1
        if self._stepping > 1 and _is_in_its_step(optimizer):
            return
        source: OptimizerSource = self.acting
        recorder = source.recorder
        if not recorder.state.running:
            return
        recorder.write_log.listening = False
        source.site = exact_call_site()
        if recorder.optimizers.note(optimizer):
            has_closure = args[1:] != () or kwargs != {}
            started = StepStarted(recorder.state.step, optimizer, source.site, has_closure)
            recorder.bus.emit(started)

    @left_out_of_compiled_code
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        # What comes after a step is no part of what is compiled, where it is all hooks.
        if not self._stepping:
            return
        self._stepping -= 1
        if self._stepping and _is_in_its_step(optimizer):
            return
        source: OptimizerSource = self.acting
        recorder = source.recorder
        if not recorder.state.running and (
            not recorder.state.paused_for or recorder.skips_step(optimizer)
        ):
            return
        recorder.write_log.listening = True
        # Both hooks run under one call, unless a closure has stepped another optimizer inside it.
        site = exact_call_site() if source.site is None else source.site
        source.site = None
        recorder.after_optimizer_step(optimizer, site)
        if recorder.optimizers.note(optimizer):
            recorder.bus.emit(StepFinished(recorder.state.step, optimizer, site))
        recorder.end_step(optimizer)

    def _constructing(self, original: Callable[..., None]) -> Callable[..., None]:
        placed = self

        @functools.wraps(original)
        def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            source: OptimizerSource = placed.acting
            recorder, under_construction = source.recorder, source.under_construction
            under_construction.add(id(self))
            try:
                original(self, *args, **kwargs)
            except ValueError as error:
                _tell_of_refusal(recorder, self, error)
                raise
            finally:
                under_construction.discard(id(self))
            if recorder.resume() and recorder.optimizers.note(self):
                recorder.bus.emit(OptimizerConstructed(self, _asked_for_at(recorder, type(self))))

        return __init__

    def _adding_a_group(self, original: Callable[..., None]) -> Callable[..., None]:
        placed = self

        @functools.wraps(original)
        def add_param_group(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            source: OptimizerSource = placed.acting
            recorder, under_construction = source.recorder, source.under_construction
            try:
                original(self, *args, **kwargs)
            except ValueError as error:
                if id(self) not in under_construction:
                    _tell_of_refusal(recorder, self, error)
                raise
            new = recorder.resume() and id(self) not in under_construction
            if new and recorder.optimizers.note(self):
                recorder.bus.emit(ParameterGroupAdded(self, exact_call_site()))

        return add_param_group

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        placed = self

        @functools.wraps(original)
        def load_state_dict(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            recorder: Recorder = placed.acting.recorder
            if recorder.resume() and not is_compiling():
                loaded = recorder.optimizers.noted(self)
                if loaded is not None:
                    recorder.bus.emit(OptimizerStateLoaded(loaded, exact_call_site()))
            return result

        return load_state_dict

    def _clearing(self, original: Callable[..., None]) -> Callable[..., None]:
        placed = self

        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            recorder: Recorder = placed.acting.recorder
            if not recorder.state.running or is_compiling():
                return
            owner = recorder.optimizers.noted(self) if isinstance(self, Optimizer) else self
            if owner is None:
                return
            set_to_none = bool(args[0] if args else kwargs.get("set_to_none", True))
            recorder.bus.emit(GradientsCleared(owner, set_to_none, exact_call_site()))

        return zero_grad


def _is_in_its_step(optimizer: Optimizer) -> bool:
    """Return whether the step whose hook asks is called by a step of the same optimizer.

    A step may call that of the class which it derives from. One that has raised calls nothing.
    """
    own = sys._getframe(2)  # noqa: SLF001 - the function of torch's that calls hooks
    outer = own.f_back
    while outer is not None:
        if outer.f_code is own.f_code and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False


def _asked_for_at(recorder: Recorder, kind: type) -> CallSite | None:
    """Return the user's line that makes an optimizer, or has set up the library that does."""
    # Not the line of a class of the program's own that calls the constructor it inherits.
    own = [getattr(vars(each).get("__init__"), "__code__", None) for each in kind.__mro__]
    site = exact_call_site([code for code in own if code is not None]) or exact_call_site()
    of_library = site[2:] if site is not None else ()
    if recorder.configured_at is None or not of_library:
        return site
    return cast("CallSite", (*recorder.configured_at[:2], *of_library))


_NON_LEAF = "can't optimize a non-leaf Tensor"


def _tell_of_refusal(recorder: Recorder, optimizer: Optimizer, error: ValueError) -> None:
    if recorder.state.running and str(error) == _NON_LEAF:
        recorder.bus.emit(NonLeafRefused(type(optimizer).__name__, exact_call_site()))


class SchedulerSource(EventSource):
    """Replaces three methods of every scheduler class of torch that has its own.

    A scheduler of the program's own is seen as far as its ``step`` calls the one it inherits.
    """

    kinds = (SchedulerStepped, SchedulerStateLoaded)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # A chained scheduler steps those that it is made of, and gives them their states.
        self.inside = 0
        self.constructing = 0

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        for thing in list(vars(lr_scheduler).values()):
            if inspect.isclass(thing) and issubclass(thing, lr_scheduler.LRScheduler):
                for name, replaced in (
                    ("__init__", self._constructing),
                    ("step", self._stepping),
                    ("load_state_dict", self._loading),
                ):
                    own = vars(thing).get(name)
                    if inspect.isfunction(own):
                        patches.replace(thing, name, replaced(own))

    def _constructing(self, original: Callable[..., None]) -> Callable[..., None]:
        placed = self

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            source: SchedulerSource = placed.acting
            source.constructing += 1
            try:
                original(self, *args, **kwargs)
            finally:
                source.constructing -= 1
            optimizer = getattr(self, "optimizer", None)
            if source.constructing or not isinstance(optimizer, Optimizer):
                return
            if _steps_as_torch_does(type(self)):
                parts = getattr(self, "_schedulers", ())
                source.recorder.schedules.made(self, parts, exact_call_site())

        return __init__

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        placed = self

        @functools.wraps(original)
        def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            source: SchedulerSource = placed.acting
            source.inside += 1
            before = getattr(self, "_last_lr", ())
            try:
                result = original(self, *args, **kwargs)
            finally:
                source.inside -= 1
            optimizer = getattr(self, "optimizer", None)
            if not source.inside and isinstance(optimizer, Optimizer) and source.recorder.resume():
                known = innermost_optimizer(optimizer)
                loaded = SchedulerStateLoaded(self, known, tuple(before), exact_call_site())
                source.recorder.bus.emit(loaded)
            return result

        return load_state_dict

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            source: SchedulerSource = self.acting
            source.inside += 1
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                source.inside -= 1
            caller = sys._getframe(1)  # noqa: SLF001 - the constructor steps once itself
            if not source.inside and caller.f_code.co_name not in _OF_THE_CONSTRUCTOR:
                optimizer = getattr(scheduler, "optimizer", None)
                known = innermost_optimizer(optimizer) if isinstance(optimizer, Optimizer) else None
                source.recorder.schedules.stepped(scheduler)
                source.recorder.bus.emit(SchedulerStepped(scheduler, known, exact_call_site()))
            return result

        return step


def _steps_as_torch_does(kind: type) -> bool:
    """Return whether a scheduler takes its ``step`` from a class of torch, where it is seen."""
    owner = next((each for each in kind.__mro__ if "step" in vars(each)), None)
    return owner is not None and owner.__module__ == lr_scheduler.__name__


_OF_THE_CONSTRUCTOR = frozenset({"_initial_step", "__init__"})
