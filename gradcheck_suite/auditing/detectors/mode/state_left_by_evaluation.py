"""What a pass in evaluation mode changes of a model, and training goes on with.

Between ``eval()`` and the end of the first call after it, a rate that is an attribute of a module
was set to another; or this call has written into a buffer on lines on which training writes as
well. The first call in training mode after that finds the rate as it was left, or the buffer with
nothing else written to it, and its class reads it there. What the loop sets itself between the
passes, as a schedule does, what is reset or loaded, a cache and what only evaluation reads differ.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import inside_backward, version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import ModeChanged, SessionEnded
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.auditing.source_analysis.module_attributes import line_that_sets, uses_of
from gradcheck_suite.findings import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.write_log import Write

__all__ = ["StateLeftByEvaluationDetector"]

_MOST_PASSES = 8
"""Evaluations of a module that are looked at. A bound on cost: what an evaluation leaves behind,
each of them does; the first may come before the state has settled."""

_SETS = frozenset({"__setitem__", "copy_", "fill_", "zero_"})
"""In-place functions by which nothing of what was there before need be left."""

_MOST_MODULES = 16
"""Modules whose evaluations are looked at. A bound on cost."""


@dataclass(frozen=True, slots=True)
class _State:
    """An attribute or a buffer of a module, as it was."""

    module: weakref.ref[nn.Module]
    name: str
    value: float = 0.0
    buffer: int = 0
    version: int = 0

    def now(self) -> _State | None:
        """Return the same now; None where it is no more."""
        module = self.module()
        if module is None:
            return None
        buffer = vars(module).get("_buffers", {}).get(self.name)
        if isinstance(buffer, Tensor):
            return _buffer_state(self.module, self.name, buffer)
        value = vars(module).get(self.name)
        return _State(self.module, self.name, value) if type(value) is float else None


@dataclass(frozen=True, slots=True)
class _Change:
    """What the first call in evaluation mode changed.

    Attributes:
        before: what it was like before.
        after: what it was like after that call.
        lines: those that wrote it.
        operation: by which in-place function the last of them did.
        last: what it was like when ``train()`` was called.
    """

    before: _State
    after: _State
    lines: tuple[CallSite, ...]
    operation: str
    last: _State | None = None


@dataclass(slots=True)
class _Model:
    """A model that an optimizer trains.

    Attributes:
        module: the model.
        name: what the user calls it.
        site: where ``eval()`` was called last.
        passes: how often.
        states: what it was like then.
        sequence: when; later, when the first call had ended.
        changes: what that call changed.
        trained_at: when ``train()`` was called; -1 until then.
        stop: ends listening to its calls.
    """

    module: weakref.ref[nn.Module]
    name: str
    site: CallSite | None = None
    passes: int = 0
    states: list[_State] = field(default_factory=list)
    sequence: int = 0
    changes: list[_Change] = field(default_factory=list)
    trained_at: int = -1
    stop: Callable[[], None] | None = field(default=None, repr=False)

    def end(self) -> None:
        """Listen to its calls no more."""
        if self.stop is not None:
            self.stop()
            self.stop = None


class StateLeftByEvaluationDetector:
    """Reports state-left-by-evaluation (GCS706)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._models: dict[int, _Model] = {}
        self._found: dict[tuple[Location | None, str], Finding] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at each model before and after its evaluation."""
        return {ModeChanged: self._change, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line and each attribute or buffer."""
        return list(self._found.values())

    def _end(self, _event: SessionEnded) -> None:
        for model in self._models.values():
            model.end()

    def _change(self, event: ModeChanged) -> None:
        model = self._models.get(id(event.module))
        if model is not None and model.module() is not event.module:
            model.end()
            model = None
        if event.training:
            if model is not None:
                self._await_training(event.module, model)
        elif event.before is not False:
            self._await_evaluation(event, model)

    def _await_evaluation(self, event: ModeChanged, model: _Model | None) -> None:
        module = event.module
        if model is None:
            mine = set(map(id, module.parameters()))
            is_trained = any(not each.ids.isdisjoint(mine) for each in self._windows.all())
            if not is_trained or len(self._models) >= _MOST_MODULES:
                return
            name = variable_of(module) or type(module).__name__
            model = self._models[id(module)] = _Model(weakref.ref(module), name)
        model.end()
        model.changes = []
        model.trained_at = -1
        model.passes += 1
        if model.passes <= _MOST_PASSES:
            model.site = event.site
            model.states = list(_states_of(module))
            model.sequence = self._recorder.state.clock.tick()
            self._listen(module, model, self._evaluated)

    def _await_training(self, module: nn.Module, model: _Model) -> None:
        model.end()
        model.states = []
        model.changes = [replace(each, last=each.after.now()) for each in model.changes]
        if model.changes:
            model.trained_at = self._recorder.state.clock.tick()
            self._listen(module, model, self._trained)

    def _listen(
        self, module: nn.Module, model: _Model, look: Callable[[_Model, nn.Module], None]
    ) -> None:
        def after_call(called: nn.Module, _output: Any) -> None:
            if self._recorder.state.running and not inside_backward():
                look(model, called)

        model.stop = self._recorder.module_calls.listen(module, after_call)

    def _evaluated(self, model: _Model, module: nn.Module) -> None:
        """Take note of what the first call in evaluation mode has changed."""
        model.end()
        if module.training:
            return
        for before in model.states:
            after = before.now()
            if after is None or after == before:
                continue
            writes = self._writes_since(model.sequence, after)
            # A buffer that is another tensor now was made by the call; no line wrote into it.
            if not after.buffer or writes or after.buffer != before.buffer:
                operation = writes[-1].operation if writes else ""
                model.changes.append(_Change(before, after, _lines_of(writes), operation))
        model.states = []
        model.sequence = self._recorder.state.clock.tick()

    def _trained(self, model: _Model, module: nn.Module) -> None:
        """Look at what the first call in training mode has found."""
        if not torch.is_grad_enabled():
            return
        model.end()
        changes, model.changes = model.changes, []
        for change in changes if module.training else ():
            now, part = change.after.now(), change.after.module()
            if now is None or part is None:
                continue
            finding = (
                self._moved(model, change, now, part)
                if now.buffer
                else _left(model, change, now, part)
            )
            if finding is not None:
                self._found.setdefault((finding.location, now.name), finding)

    def _writes_since(self, sequence: int, state: _State) -> list[Write]:
        module = state.module()
        buffer = None if module is None else vars(module).get("_buffers", {}).get(state.name)
        return [] if buffer is None else self._recorder.write_log.since(sequence, buffer)

    def _moved(
        self, model: _Model, change: _Change, now: _State, part: nn.Module
    ) -> Finding | None:
        """Return the finding of a statistic that training and evaluation both write."""
        uses = uses_of(type(part), now.name)
        if uses is None or not uses.is_read:
            return None
        if change.after.buffer == change.before.buffer == now.buffer:
            # Another line has reset or restored it; without one of training, it is a calibration.
            since = _lines_of(self._writes_since(model.sequence, now))
            trained = self._writes_since(model.trained_at, now)
            if not trained or not set(since) <= set(change.lines):
                return None
            place = location_of(change.lines[-1])
            is_set = change.operation in _SETS
            if place is None or (is_set and not uses.are_before(place)):
                return None  # a cache, which a call fills before it reads it
        else:
            # A moving average that is bound anew, each time by the one line that binds it.
            is_moved = change.last is not None and change.last.buffer != now.buffer
            written = now.version or (change.last is not None and change.last.version)
            if not is_moved or written or not uses.is_carried or len(uses.assigned) != 1:
                return None
            (place,) = uses.assigned
        return Finding.of(
            catalogue.STATE_LEFT_BY_EVALUATION,
            f"`{type(part).__name__}.{now.name}` is moved here by calls of `{model.name}` in "
            "evaluation mode as by those in training mode, which read it: training goes on with a "
            "statistic of the evaluation's data; expected it to be left alone in evaluation mode",
            detector="audit",
            location=place,
            related=related(
                (location_of(model.site), "put into evaluation mode here"), apart_from=place
            ),
            hint="write it under `if self.training:`, or switch it off for the evaluation",
            evidence={"module": type(part).__name__, "buffer": now.name},
        )


def _lines_of(writes: list[Write]) -> tuple[CallSite, ...]:
    return tuple(dict.fromkeys(each.site for each in writes if each.site is not None))


def _left(model: _Model, change: _Change, now: _State, part: nn.Module) -> Finding | None:
    """Return the finding of a rate that the evaluation has set and left."""
    before, value, name = change.before.value, change.after.value, now.name
    if now.value != value:
        return None
    kind = type(part)
    uses = uses_of(kind, name)
    if uses is None:
        # What a layer of torch has as a number, its forward reads.
        if not kind.__module__.startswith("torch.nn.") or value not in (0.0, 1.0):
            return None
    elif not uses.is_read or (value not in (0.0, 1.0) and value not in uses.values):
        return None  # a figure that was measured
    site = location_of(model.site)
    assigned = () if uses is None else uses.assigned
    place = assigned[0] if len(assigned) == 1 else line_that_sets(name) or site
    return Finding.of(
        catalogue.STATE_LEFT_BY_EVALUATION,
        f"`{kind.__name__}.{name}` went from {before:g} to {value:g} when `{model.name}` was "
        f"called in evaluation mode, and was still {value:g} in the training that followed; "
        "expected evaluation to leave it as it was",
        detector="audit",
        location=place,
        related=related((site, "put into evaluation mode here"), apart_from=place),
        hint="use a local variable, or set it back after the evaluation",
        evidence={
            "module": kind.__name__,
            "attribute": name,
            "before": before,
            "after": value,
        },
    )


def _states_of(model: nn.Module) -> Iterator[_State]:
    """Yield the rates, and what may be statistics, in a model."""
    for module in model.modules():
        reference = weakref.ref(module)
        for name, value in vars(module).items():
            if type(value) is float and math.isfinite(value):
                yield _State(reference, name, value)
        for name, buffer in vars(module).get("_buffers", {}).items():
            if isinstance(buffer, Tensor) and buffer.is_floating_point():
                yield _buffer_state(reference, name, buffer)


def _buffer_state(module: weakref.ref[nn.Module], name: str, buffer: Tensor) -> _State:
    version = 0 if buffer.is_inference() else version_of(buffer)
    return _State(module, name, buffer=id(buffer), version=version)
