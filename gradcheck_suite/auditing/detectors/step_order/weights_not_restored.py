"""Weights that were replaced for an evaluation, and from which training went on.

A moving average is copied into the model, or its weights are binarized or quantized, the model is
evaluated, and nobody puts back what the last step had left. Looked for from the first evaluation
on: a few elements of a parameter after each step, when the model is called in evaluation mode or
without recording, and before the next step. Weights that are clipped, masked or synchronized
between other steps too are what the method does, and so is an earlier state that is loaded again,
as in meta-learning.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_sites
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    ForwardFinished,
    ModeChanged,
    SessionEnded,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.auditing.source_analysis.source import line_that_led_to
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["WeightsNotRestoredDetector"]

_MOST = 8
"""Models that are followed. A bound on cost: each takes a copy of some elements in each step."""
_SAMPLED = 64
"""Elements of a parameter that show whether it was written. A bound on cost."""
_QUIET = 4
"""Evaluations with the weights of the last step after which a model is followed no more. Chosen: a
program that replaces weights does so for most evaluations."""
_USUAL = 8
"""Steps without an evaluation before them that are compared. A bound on cost: a read for each."""
_EARLIER = 8
"""Evaluations whose weights are remembered. A bound on memory and cost."""
_COPIES = frozenset({"copy_", "__setitem__", "_foreach_copy_", "set_"})


class _Replaced(NamedTuple):
    """A call in evaluation mode with other weights than the last step had left.

    Attributes:
        running: the user's lines that ran then, innermost first.
        written: the line of the last write, where that is known.
        operation: by what it wrote.
        judged: whether the weights that the last step had left were evaluated before.
    """

    running: tuple[CallSite, ...]
    written: CallSite | None
    operation: str | None
    judged: bool = False


@dataclass(slots=True, eq=False)
class _Followed:
    """A model that is trained and evaluated.

    Attributes:
        module: the model.
        name: what the user calls it.
        optimizer: the class of what trains it.
        parameter: one of those that it trains.
        sequence: when its last step had ended.
        last: elements of the parameter then; None where that step was not seen.
        evaluated_with: elements of it in the last evaluations.
        replaced: the last call in evaluation mode with other weights than those, since then.
        times: how often training went on from such weights.
        first: what the first of them was.
        quiet: how many evaluations in a row had the weights of the last step.
        usual: how many steps without an evaluation were compared.
        changes: before how many of them the weights had changed as well.
        switched: whether it was put into evaluation mode.
        judged: whether it was evaluated as the last step had left it.
    """

    module: weakref.ref[nn.Module]
    name: str
    optimizer: str
    parameter: weakref.ref[Tensor]
    sequence: int = 0
    last: Tensor | None = None
    evaluated_with: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_EARLIER))
    replaced: _Replaced | None = None
    times: int = 0
    first: _Replaced | None = None
    quiet: int = 0
    usual: int = 0
    changes: int = 0
    evaluated: bool = False
    switched: bool = False
    judged: bool = False
    stop: Callable[[], None] | None = field(default=None, repr=False)

    def is_watched(self) -> bool:
        """Return whether anything can still be learnt of it."""
        return self.quiet < _QUIET and self.parameter() is not None

    def now(self) -> Tensor | None:
        """Return some elements of the parameter; None where they can't be read."""
        parameter = self.parameter()
        if parameter is None or ops_are_recorded():
            return None
        return without_user_modes(sample_of, parameter, _SAMPLED)

    def is_as_left(self, now: Tensor | None) -> bool:
        """Return whether the parameter is what the last step has left, as far as one can tell."""
        return now is None or self.last is None or _are_same(now, self.last)

    def end(self) -> None:
        """Listen to its calls no more."""
        if self.stop is not None:
            self.stop()
            self.stop = None


class WeightsNotRestoredDetector:
    """Reports weights-not-restored (GCS316)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._followed: list[_Followed] = []
        self._classes: set[type[nn.Module]] = set()

    def subscriptions(self) -> Subscriptions:
        """Follow models from one step over an evaluation to the next."""
        return {
            ModeChanged: self._change,
            ForwardFinished: self._meet,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            WatchResumed: self._resume,
            SessionEnded: self._end,
        }

    def _end(self, _event: SessionEnded) -> None:
        for each in self._followed:
            each.end()

    def _resume(self, _event: WatchResumed) -> None:
        for each in self._followed:
            each.last = each.replaced = None

    def _change(self, event: ModeChanged) -> Attention | None:
        if event.training:
            return None
        known = self._of(event.module)
        if known is None or not known.is_watched():
            return None
        if known.stop is None:
            known.switched = True
            known.stop = self._recorder.module_calls.listen(
                event.module, lambda module, _output: self._look_if_evaluating(known, module)
            )
        return Attention.AWAKE

    def _meet(self, event: ForwardFinished) -> None:
        """Ask for the calls of models of a class that is new, from now on."""
        kind = type(event.module)
        is_new = kind not in self._classes and not isinstance(event.module, torch.jit.ScriptModule)
        if is_new and event.grad_enabled:
            self._classes.add(kind)
            self._recorder.module_calls.listen_to_models(kind, self._after_call)

    def _after_call(self, module: nn.Module, _output: object, _given: object) -> None:
        if torch.is_grad_enabled() or not self._recorder.state.running:
            return
        known = self._of(module)
        if known is not None and known.is_watched() and not known.evaluated:
            self._look(known)
            # It may sleep, which nobody but an event ends.
            self._recorder.bus.wake_all()

    def _of(self, module: nn.Module) -> _Followed | None:
        known = next((each for each in self._followed if each.module() is module), None)
        return self._follow(module) if known is None else known

    def _follow(self, module: nn.Module) -> _Followed | None:
        if len(self._followed) >= _MOST:
            return None
        parameters = {id(each): each for each in module.parameters()}
        for window in self._windows.all():
            optimizer = window.optimizer()
            owned = [parameters[each] for each in window.ids if each in parameters]
            if optimizer is not None and owned and window.steps:
                largest: weakref.ref[Tensor] = weakref.ref(max(owned, key=torch.Tensor.numel))
                name = variable_of(module) or type(module).__name__
                kind = type(optimizer).__name__
                known = _Followed(weakref.ref(module), name, kind, largest)
                self._followed.append(known)
                return known
        return None

    def _look_if_evaluating(self, known: _Followed, module: nn.Module) -> None:
        known.end()
        known.evaluated = True
        if not module.training:
            self._look(known)

    def _look(self, known: _Followed) -> None:
        """Look at the weights with which it is evaluated."""
        known.evaluated = True
        now = known.now()
        is_earlier = now is not None and any(_are_same(now, each) for each in known.evaluated_with)
        if now is not None and not is_earlier:
            known.evaluated_with.append(now)
        if known.last is None:
            return
        if is_earlier or known.is_as_left(now):
            known.quiet += not is_earlier
            known.judged = known.judged or known.is_as_left(now)
            known.last = known.last if known.is_watched() else None
            return
        known.quiet = 0
        parameter = known.parameter()
        writes = (
            [] if parameter is None else self._recorder.write_log.since(known.sequence, parameter)
        )
        last = writes[-1] if writes else None
        site, operation = (None, None) if last is None else (last.site, last.operation)
        known.replaced = _Replaced(user_sites()[0], site, operation, known.judged)

    def _begin_step(self, _event: StepStarted) -> Attention | None:
        owned = self._windows.stepped.ids
        for known in self._followed:
            if known.last is None or id(known.parameter()) not in owned:
                continue
            if known.replaced is not None:
                if not known.is_as_left(known.now()):
                    known.times += 1
                    known.first = known.first or known.replaced
            elif not known.evaluated and known.usual < _USUAL:
                known.usual += 1
                known.changes += not known.is_as_left(known.now())
            known.replaced = None
            known.evaluated = False
        return None if self._is_watching() else Attention.ASLEEP

    def _end_step(self, _event: StepFinished) -> Attention | None:
        owned = self._windows.stepped.ids
        for known in self._followed:
            if known.is_watched() and id(known.parameter()) in owned:
                known.sequence = self._recorder.state.clock.tick()
                known.last = known.now()
                known.judged = False
        return None if self._is_watching() else Attention.ASLEEP

    def _is_watching(self) -> bool:
        return any(each.is_watched() for each in self._followed)

    def findings(self) -> list[Finding]:
        """Return one finding for each model."""
        return [_finding(each) for each in self._followed if each.times and not each.changes]


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and torch.equal(one, other)


def _finding(known: _Followed) -> Finding:
    running, written, operation, judged = known.first or _Replaced((), None, None)
    called = running[0] if running else None
    wrote = location_of(written)
    where = line_that_led_to(written, running) or location_of(called)
    doubts = ["it was seen once"] if known.times == 1 else []
    if not (known.switched or known.usual):
        doubts.append("it was called without recording before each step, as no evaluation is")
    if operation is not None and operation not in _COPIES:
        doubts.append(f"they were changed in place by {operation}(), as pruning does")
    if judged:
        doubts.append("the trained weights were evaluated before: another training may begin here")
    return Finding.of(
        catalogue.WEIGHTS_NOT_RESTORED,
        f"`{known.name}` was evaluated with weights that were written after the last "
        f"{known.optimizer}.step(), and training went on from them, {known.times} time"
        f"{'s' if known.times > 1 else ''}: what the steps had trained is lost; expected the "
        "weights to be put back after the evaluation",
        detector="audit",
        doubts=doubts,
        location=where,
        related=related(
            (wrote, "written here"), (location_of(called), "evaluated here"), apart_from=where
        ),
        hint="keep p.detach().clone() of each parameter before, and copy it back after",
        evidence={"count": known.times, "model": known.name, "operation": operation},
    )
