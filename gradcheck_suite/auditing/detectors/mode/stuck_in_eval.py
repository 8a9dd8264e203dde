"""Evaluation mode during training.

``eval()`` was called on what an optimizer trains, and steps follow without ``train()``. That is a
mistake if steps were taken in training mode before, or if a pass without training came in between;
it is a fact to know of where a model was in evaluation mode from the start. Freezing batch norm
alone is not looked at. A network of its own that was trained, and is in evaluation mode while the
same optimizer trains another one in training mode, is a teacher that was not to be trained.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import inside_backward
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindow
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.mode.train_mode_in_eval import names_of, sensitive_layers
from gradcheck_suite.auditing.events import (
    Attention,
    ForwardFinished,
    ModeChanged,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.module_tree import ModuleTree
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["StuckInEvalDetector"]

_ENOUGH = 2
"""Steps of an optimizer in evaluation mode before it is told. Chosen: the least that shows it goes
on; a single one may be meant."""

_MOST_FOLLOWED = 64
"""Modules in evaluation mode that are followed. A bound on cost: each is looked at in each step."""

_FIRST_STEPS = 8
"""Steps in which models are looked for that were in evaluation mode before the audit began."""


@dataclass(slots=True)
class _Evaluated:
    """A module in evaluation mode.

    Attributes:
        module: the module.
        name: what the user calls it.
        layers: those of its layers that act differently in training mode, each with the
            identities of its parameters, or of those nearest to it.
        parameters: the identities of its parameters.
        site: where ``eval()`` was called; None where nobody saw it.
        seen_at: where it was called in evaluation mode, if nobody saw ``eval()``.
        trained: whether steps of an optimizer of its were taken in training mode before.
        partly: whether ``train()`` was called of a part of it since.
        whole: whether it, with others in evaluation mode, is all that its optimizer trains.
        stuck: how many steps were taken in evaluation mode.
        words: the kinds of the layers that were in evaluation mode then.
        step: the number of the first such step that is told of, and where it was.
        calls: how often the first of the layers was called since the last ``eval()`` or step.
        unrecorded: how many of these calls recorded nothing.
        renewed: whether ``eval()`` was called since the last step.
        first: these three, as they were at the first step.
        later: how often it was called for a step that no ``eval()`` came before.
        undone: how often ``eval()`` had ended a ``train()`` by which no step was taken.
        apart: whether it is no part of another module, beside what else its optimizer trains.
        made: where that optimizer was made.
    """

    module: weakref.ref[nn.Module]
    name: str
    layers: list[tuple[weakref.ref[nn.Module], frozenset[int]]]
    parameters: frozenset[int]
    site: CallSite | None
    seen_at: CallSite | None = None
    trained: bool = False
    partly: bool = False
    whole: bool = True
    stuck: int = 0
    words: str = ""
    step: int = 0
    step_site: CallSite | None = None
    optimizer: str = ""
    window: weakref.ref[AccumulationWindow] | None = None
    calls: int = 0
    unrecorded: int = 0
    renewed: bool = False
    first: tuple[int, int] | None = None
    later: int | None = None
    undone: int = 0
    apart: bool = False
    made: CallSite | None = None
    stop: Callable[[], None] | None = field(default=None, repr=False)

    def is_evaluating(self) -> bool:
        """Return whether it lives and is in evaluation mode."""
        module = self.module()
        return module is not None and not module.training

    def was_passed_through(self) -> bool:
        """Return whether calls came between ``eval()`` and the first step that were not for it."""
        if self.first is None:
            return False
        calls, unrecorded = self.first
        return unrecorded > 0 if self.later is None else calls > self.later > 0

    def end(self) -> None:
        """Listen to its calls no more."""
        if self.stop is not None:
            self.stop()
            self.stop = None


class StuckInEvalDetector:
    """Reports stuck-in-eval (GCS702)."""

    def __init__(
        self, recorder: Recorder, windows: AccumulationWindows, leaves: LeafRecords
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._evaluated: list[_Evaluated] = []
        self._ended: list[_Evaluated] = []
        # By module, at the last train() of it: how many steps each optimizer had taken.
        self._trained: dict[int, tuple[weakref.ref[nn.Module], dict[int, int]]] = {}
        self._undone: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def subscriptions(self) -> Subscriptions:
        """Watch modes being set, and steps that follow."""
        return {
            ModeChanged: self._change,
            ForwardFinished: self._end_forward,
            StepFinished: self._end_step,
            SessionEnded: self._end,
        }

    def _end(self, _event: SessionEnded) -> None:
        for each in self._evaluated:
            each.end()

    def _change(self, event: ModeChanged) -> Attention | None:
        if event.training:
            taken = {id(window): window.steps for window in self._windows.all()}
            self._trained[id(event.module)] = (weakref.ref(event.module), taken)
            self._end_those_in_training(event.module)
            return None
        known = self._of(event.module)
        if known is None:
            if event.before is False or _is_sensitive_layer(event.module):
                return None
            known = self._follow(event.module, event.site)
            if known is None:
                return None
        if event.before is not False:
            if self._was_trained(event.module):
                known.trained = True
            elif id(event.module) in self._trained:
                self._undone[event.module] = self._undone.get(event.module, 0) + 1
        known.undone = self._undone.get(event.module, 0)
        known.calls = known.unrecorded = 0
        known.renewed = True
        known.partly = False
        return Attention.AWAKE

    def _of(self, module: nn.Module) -> _Evaluated | None:
        return next((each for each in self._evaluated if each.module() is module), None)

    def _follow(self, module: nn.Module, site: CallSite | None) -> _Evaluated | None:
        if len(self._evaluated) >= _MOST_FOLLOWED:
            return None
        layers = sensitive_layers(module)
        known = _Evaluated(
            weakref.ref(module),
            variable_of(module) or type(module).__name__,
            [(weakref.ref(layer), nearest) for layer, nearest in _with_parameters(layers, module)],
            frozenset(map(id, module.parameters())),
            site,
        )
        if layers:

            def note(_layer: nn.Module, _output: Any) -> None:
                if not inside_backward():  # a checkpoint
                    known.calls += 1
                    known.unrecorded += not torch.is_grad_enabled()

            known.stop = self._recorder.module_calls.listen(layers[0], note)
        self._evaluated.append(known)
        return known

    def _was_trained(self, module: nn.Module) -> bool:
        """Return whether a step was taken since train() of it, or ever, without one."""
        mine = set(map(id, module.parameters()))
        since = [
            taken
            for reference, taken in self._trained.values()
            if (trained := reference()) is not None
            and any(part is module for part in trained.modules())
        ]
        return any(
            window.steps > max((taken.get(id(window), 0) for taken in since), default=0)
            for window in self._windows.all()
            if not window.ids.isdisjoint(mine)
        ) or (bool(since) and self._was_trained_by_another(module))

    def _was_trained_by_another(self, module: nn.Module) -> bool:
        """Return whether an optimizer that is gone has trained a module."""
        optimizers = self._recorder.optimizers
        living = {optimizers.number_of(each) for each in optimizers.known()}
        records = map(self._leaves.of, module.parameters())
        return any(
            each is not None and each.changed and not each.owners <= living for each in records
        )

    def _end_those_in_training(self, trained: nn.Module) -> None:
        followed, self._evaluated = self._evaluated, []
        for each in followed:
            module = each.module()
            if module is None or module.training:
                each.end()
                if each.stuck:
                    self._ended.append(each)
                continue
            each.partly = each.partly or any(part is trained for part in module.modules())
            self._evaluated.append(each)

    def _end_forward(self, event: ForwardFinished) -> Attention | None:
        """Take up a model that was in evaluation mode before anybody could see that."""
        if self._recorder.state.iteration >= _FIRST_STEPS:
            return Attention.ASLEEP
        module = event.module
        if module.training or not event.grad_enabled or not any(True for _ in module.children()):
            return None
        parts = set(map(id, module.modules()))
        if not any(id(each.module()) in parts for each in self._evaluated):
            known = self._follow(module, None)
            if known is not None:
                known.seen_at = event.site
                return Attention.AWAKE
        return None

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._evaluated:
            return Attention.ASLEEP
        window = self._windows.stepped
        if window.summary is not None and window.summary.fills:
            self._look_for_stuck(window, event)
        return None

    def _look_for_stuck(self, window: AccumulationWindow, event: StepFinished) -> None:
        concerned = [
            each
            for each in self._evaluated
            if each.is_evaluating() and not window.ids.isdisjoint(each.parameters)
        ]
        if not concerned:
            return
        whole = window.ids <= frozenset[int]().union(*(each.parameters for each in concerned))
        for each in concerned:
            layers = [
                layer
                for known, nearest in each.layers
                if (layer := known()) is not None and not window.ids.isdisjoint(nearest)
            ]
            evaluating = [layer for layer in layers if not layer.training]
            if each.window is None:
                each.window = weakref.ref(window)
            # What the step trains was computed before eval() where it only was a pass since.
            computed_before = 0 < each.calls == each.unrecorded
            if evaluating and each.window() is window and not computed_before:
                each.whole = each.whole and whole
                each.partly = each.partly or len(evaluating) < len(layers)
                each.words = names_of(evaluating)
                _count(each, event)
                if each.stuck == _ENOUGH and each.trained and not each.whole:
                    module, tree = each.module(), ModuleTree(self._recorder.heap)
                    each.apart = (
                        module is not None and tree.is_whole and tree.parent(module) is None
                    )
                    each.made = window.constructed_at

    def findings(self) -> list[Finding]:
        """Return one finding for each ``eval()``."""
        found: dict[object, Finding] = {}
        counts: dict[object, int] = {}
        for each in (*self._ended, *self._evaluated):
            key = (each.site or each.seen_at, each.name)
            counts[key] = counts.get(key, 0) + each.stuck
        for each in reversed((*self._ended, *self._evaluated)):
            place = each.site or each.seen_at
            count = counts[place, each.name]
            if each.stuck and count >= _ENOUGH and place not in found:
                finding = _judge(each, count)
                if finding is not None:
                    found[place] = finding
        return list(found.values())


def _count(each: _Evaluated, event: StepFinished) -> None:
    """Count a step in evaluation mode, and the calls that came before it."""
    each.stuck += 1
    if each.first is None:
        each.first = (each.calls, each.unrecorded)
    elif not each.renewed and each.later is None:
        each.later = each.calls
    if each.stuck <= _ENOUGH:
        each.step, each.step_site = event.number, event.site
        each.optimizer = type(event.optimizer).__name__
    if each.later is not None:
        each.end()
    each.calls = each.unrecorded = 0
    each.renewed = False


def _with_parameters(
    layers: list[nn.Module], model: nn.Module
) -> list[tuple[nn.Module, frozenset[int]]]:
    """Return each layer with its parameters, or those of the least part around it that has any.

    Dropout has none: it belongs to what it stands between, which may be frozen as a whole.
    """
    around = {id(child): part for part in model.modules() for child in part.children()}
    found = []
    for layer in layers:
        part: nn.Module | None = layer
        nearest = frozenset[int]()
        while part is not None and not nearest:
            nearest = frozenset(map(id, part.parameters()))
            part = around.get(id(part))
        found.append((layer, nearest))
    return found


def _is_sensitive_layer(module: nn.Module) -> bool:
    """Return whether this is one dropout or batch norm, whose mode is mostly set on purpose."""
    return not any(True for _ in module.children()) and bool(sensitive_layers(module))


def _judge(each: _Evaluated, count: int) -> Finding | None:
    passed = each.was_passed_through()
    contradicts = each.undone >= _ENOUGH and each.later is None
    if not each.trained:
        if each.partly or not each.whole:
            return None  # as in fine-tuning a part of a model
        if each.site is None or not (passed or contradicts):
            return _from_the_start(each, count)
    if each.apart and not each.partly:
        return _beside_another(each, count)
    doubts = []
    if not each.whole:
        doubts.append(f"{each.optimizer} trains others too, which were not in evaluation mode")
    if each.partly and not passed:
        doubts.append("a part of it was in training mode")
    if not (passed or contradicts) and each.first != (0, 0):
        doubts.append("nothing but the next step came after eval()")
    when = "after steps in training mode" if each.trained else "for a pass before its first step"
    if contradicts and not each.trained:
        when = f"again after train(), {each.undone} times,"
    return Finding.of(
        catalogue.STUCK_IN_EVAL,
        f"`{each.name}` was put into evaluation mode {when}, and {count} steps followed without "
        f"train(): its {each.words} acted as in evaluation; expected train() before training "
        f"{'goes on' if each.trained else 'begins'}",
        detector="audit",
        doubts=doubts,
        location=location_of(each.site),
        related=related((location_of(each.step_site), "this step followed")),
        hint=f"call {each.name}.train() before the next training step",
        evidence=_evidence(each, count),
    )


def _beside_another(each: _Evaluated, count: int) -> Finding:
    return Finding.of(
        catalogue.STUCK_IN_EVAL,
        f"`{each.name}`, which was trained in training mode before, is in evaluation mode, and "
        f"{each.optimizer}.step() trained it in {count} steps together with a network that is in "
        f"training mode: its {each.words} acted as in evaluation; expected a network that is only "
        "asked to be no optimizer's, and one that is trained to be in training mode",
        detector="audit",
        location=location_of(each.site),
        doubts=["a backbone below a new head may be put to rest so"],
        related=related(
            (location_of(each.made), f"{each.optimizer} is given its parameters here"),
            (location_of(each.step_site), "this step followed"),
        ),
        hint=f"leave {each.name} out of the optimizer and call it under torch.no_grad(), or call "
        f"{each.name}.train()",
        evidence=_evidence(each, count),
    )


def _from_the_start(each: _Evaluated, count: int) -> Finding:
    return Finding.of(
        catalogue.STUCK_IN_EVAL,
        f"{each.optimizer}.step() trained `{each.name}` in evaluation mode from the start, in "
        f"{count} steps: its {each.words} acted as in evaluation; if that is not meant, "
        f"{each.name}.train() is missing",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(each.site or each.seen_at),
        related=related((location_of(each.step_site), "this step followed")),
        hint=f"call {each.name}.train() before training, unless evaluation mode is meant",
        evidence=_evidence(each, count),
    )


def _evidence(each: _Evaluated, count: int) -> dict[str, Any]:
    module = each.module()
    return {
        "count": count,
        "step": each.step,
        "model": each.name if module is None else type(module).__name__,
        "layers": each.words,
    }
