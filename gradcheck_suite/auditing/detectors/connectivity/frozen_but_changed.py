"""What is frozen, or was declared so, and gets a gradient or changes all the same."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch.nn.modules.batchnorm import _NormBase

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_zero
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    ForwardFinished,
    ModeChanged,
    OptimizerConstructed,
    SessionEnded,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.tensor_names import (
    listed,
    operation_words,
    variable_of,
    written,
)
from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint, fingerprint, same_content
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.frozen import FrozenTensor
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["DeclaredFrozenDetector", "FrozenParameterDetector", "FrozenStatisticsDetector"]

_Kind = Literal["gradient", "step", "forward", "write", "unknown"]


@dataclass(slots=True)
class _Occurrence:
    kind: _Kind
    by: str
    site: CallSite | None
    names: list[str] = field(default_factory=list)


class DeclaredFrozenDetector:
    """Reports frozen-but-changed (GCS409) of what was declared.

    Each tensor is told of once, at the first that happens to it: the backward that gives it a
    gradient, the step that moves it, the forward that updates a buffer, or the write, where the
    audit knows it. Parameters are compared where a version counter has moved, and all of them when
    the audit ends.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._frozen = recorder.frozen
        self._occurrences: dict[object, _Occurrence] = {}

    def subscriptions(self) -> Subscriptions:
        """Look again after whatever may give a gradient or change something."""
        return {
            BackwardFinished: self._after_backward,
            StepStarted: self._before_step,
            StepFinished: self._after_step,
            SessionEnded: self._end,
        }

    def is_following(self) -> bool:
        """Return whether anything was declared."""
        return bool(self._frozen.tensors)

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        got = [each for each in self._frozen.tensors if each.got_gradient()]
        self._report("gradient", "backward()", event.site, got)
        return None

    def _before_step(self, event: StepStarted) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        self._look_for_writes(event.site, thoroughly=False)
        return None

    def _after_step(self, event: StepFinished) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        changed = self._changed(thoroughly=False)
        self._report("step", f"{type(event.optimizer).__name__}.step()", event.site, changed)
        return None

    def listen_to(self, module: nn.Module) -> None:
        """Look at buffers after each call of a module that has some of them."""
        self._recorder.module_calls.listen(module, self._after_call)

    def _after_call(self, module: nn.Module, _result: object) -> None:
        # The statistics of batch norm move no version counter.
        buffers = [
            each
            for each in self._frozen.tensors
            if each.is_buffer and each.has_changed(thoroughly=True)
        ]
        self._report("forward", f"a forward of {type(module).__name__}", call_site(), buffers)

    def _end(self, _event: SessionEnded) -> None:
        self._look_for_writes(None, thoroughly=True)

    def _look_for_writes(self, site: CallSite | None, *, thoroughly: bool) -> None:
        for each in self._changed(thoroughly=thoroughly):
            tensor = each.tensor()
            writes = [] if tensor is None else self._recorder.write_log.since(each.since, tensor)
            if writes:
                last = writes[-1]
                self._report("write", operation_words(last.operation), last.site, [each])
            else:
                self._report("unknown", "something", site, [each])

    def _changed(self, *, thoroughly: bool) -> list[FrozenTensor]:
        return [
            each
            for each in self._frozen.tensors
            if each.has_changed(thoroughly=thoroughly or each.is_buffer)
        ]

    def _report(
        self, kind: _Kind, by: str, site: CallSite | None, found: list[FrozenTensor]
    ) -> None:
        if not found:
            return
        occurrence = self._occurrences.setdefault((kind, by, site), _Occurrence(kind, by, site))
        occurrence.names += [each.name for each in found]
        self._frozen.tensors = [each for each in self._frozen.tensors if each not in found]

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return [_finding(occurrence) for occurrence in self._occurrences.values()]


_HINTS: dict[str, str] = {
    "gradient": "call requires_grad_(False) on it, or run the frozen part under torch.no_grad()",
    "step": "leave it out of the optimizer, or set its .grad to None",
    "forward": "keep the frozen part in evaluation mode: train() sets all of a model to training",
    "write": "leave it out of what is written",
    "unknown": "look for what writes through .data, numpy or an extension",
}


def _finding(occurrence: _Occurrence) -> Finding:
    names = listed(occurrence.names)
    what = f"{names}, {plural(len(occurrence.names), 'tensor')} declared frozen"
    if occurrence.kind == "gradient":
        message = f"backward() gave a gradient to {what}; expected none"
    elif occurrence.kind == "unknown":
        message = f"{what}, changed while nothing told of it; expected the same contents"
    else:
        message = f"{occurrence.by} changed {what}; expected the same contents"
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        message,
        detector="audit",
        location=location_of(occurrence.site),
        hint=_HINTS[occurrence.kind],
        evidence={"by": occurrence.by, "names": list(occurrence.names), "declared": True},
    )


_ENOUGH_MOVES = 2
"""Steps of one line that have moved frozen parameters before it is told. Chosen: the least that
shows it goes on; the first after a freeze may be meant to use up the last gradients."""

_MOST_PARAMETERS = 16
"""Frozen parameters of an optimizer that are compared in a step. A bound on cost: what moves one of
them, momentum or a gradient that is left, mostly moves all."""

_EACH_OF_THE_FIRST = 8
"""Steps of the program in each of which it is asked whether anything is frozen. Chosen, like the
other looks of the first 8 steps; nothing depends on it closely."""

_EVERY_STEPS = 32
"""After those, steps between two questions, while nothing is frozen. A bound on cost: a freeze
later on is seen so many steps late, and its moves go on."""


@dataclass(slots=True)
class _Moved:
    optimizer: str
    site: CallSite | None
    names: tuple[str, ...]
    parameters: int
    is_zero: bool
    step: int


class FrozenParameterDetector:
    """Reports frozen-but-changed (GCS409) of parameters that no longer require grad.

    A parameter required grad when its optimizer was made or stepped, and does so no longer. It
    still has a gradient, and a step changes its contents: the gradient itself, or momentum and
    weight decay where that is zero. A parameter that never required grad is left alone, as some
    programs put gradients there themselves.
    """

    def __init__(self, windows: AccumulationWindows, names: ParameterNames) -> None:
        self._windows = windows
        self._names = names
        self._required: weakref.WeakKeyDictionary[AccumulationWindow, frozenset[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._before: list[tuple[Tensor, Fingerprint]] = []
        self._occurrences: Occurrences[object, _Moved] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Compare what is frozen before and after steps."""
        return {
            OptimizerConstructed: self._construct,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
        }

    def _construct(self, event: OptimizerConstructed) -> None:
        self._look(self._windows.of(event.optimizer))

    def _look(self, window: AccumulationWindow) -> list[Tensor]:
        """Return the parameters that are frozen now, and remember those that are not."""
        parameters = window.parameters()
        frozen = [each for each in parameters if not each.requires_grad]
        if not frozen:
            self._required[window] = window.ids
        elif len(frozen) < len(parameters):
            required = {id(each) for each in parameters if each.requires_grad}
            self._required[window] = self._required.get(window, frozenset()) | required
        return frozen

    def _begin_step(self, event: StepStarted) -> Attention | int | None:
        self._before = []
        window = self._windows.stepped
        frozen = self._look(window)
        if not frozen:
            return event.number + _EVERY_STEPS if event.number >= _EACH_OF_THE_FIRST else None
        required = self._required.get(window, frozenset())
        for parameter in frozen:
            if parameter.grad is not None and id(parameter) in required:
                content = fingerprint(parameter)
                if content is not None:
                    self._before.append((parameter, content))
                if len(self._before) == _MOST_PARAMETERS:
                    break
        return Attention.AWAKE if self._before else None

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._before:
            return Attention.ASLEEP
        moved = [each for each, content in self._before if not same_content(content, each)]
        self._before = []
        if not moved:
            return None
        self._occurrences.note(
            event.site,
            lambda: _Moved(
                optimizer=type(event.optimizer).__name__,
                site=event.site,
                names=tuple(name for each in moved if (name := self._names.of(each)) is not None),
                parameters=len(moved),
                is_zero=all(is_zero(each.grad) for each in moved),
                step=event.number,
            ),
        )
        return None

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return self._occurrences.findings(_moved_finding, least=_ENOUGH_MOVES)


def _moved_finding(occurrence: _Moved, count: int) -> Finding:
    number = plural(occurrence.parameters, "parameter")
    named = f" ({listed(occurrence.names)})" if occurrence.names else ""
    why = (
        "their gradients, all zero, are still there, and momentum or weight decay makes updates of "
        "them"
        if occurrence.is_zero
        else "the gradients from before they were frozen are still there"
    )
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"{occurrence.optimizer}.step() moved {number}{named} that no longer require grad, "
        f"{count} times: {why}; expected frozen parameters to stay",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(occurrence.site),
        hint="set .grad to None where you freeze, as zero_grad(set_to_none=True) does, or leave "
        "frozen parameters out of the optimizer",
        evidence={
            "count": count,
            "first_step": occurrence.step,
            "optimizer": occurrence.optimizer,
            "parameters": occurrence.parameters,
            "names": list(occurrence.names),
        },
    )


_NEXT_LOOKS = (3, 8)
"""Steps at which running statistics are looked at, after the first of a new optimizer. Chosen: the
third tells of layers that were frozen from the start, the eighth of those frozen by the third."""

_EVERY = 64
"""After those, steps between two looks. A bound on cost: each goes through all modules of the
models and takes fingerprints of frozen layers."""

_STEPS_BETWEEN = 2
"""Steps that lie at least between the two looks that are compared: where two optimizers take turns,
and freeze each other's part, both have stepped by then."""


@dataclass(slots=True)
class _Layer:
    """A frozen layer as it was when it was first seen."""

    layer: weakref.ref[_NormBase]
    statistics: Fingerprint | None
    parameters: list[Fingerprint | None]
    step: int


_MOST_CALLS = 256
"""Modules whose last train() and eval() are remembered. A bound on memory."""


class _Modes:
    """Where modules were set to a mode last, by the module that it was called on."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, bool], tuple[weakref.ref[nn.Module], CallSite | None]] = {}

    def note(self, event: ModeChanged) -> None:
        """Note a call."""
        if len(self._calls) < _MOST_CALLS:
            key = id(event.module), event.training
            self._calls[key] = weakref.ref(event.module), event.site

    def undone(self, layer: nn.Module) -> tuple[CallSite | None, CallSite | None] | None:
        """Return where a frozen part with this layer was set to evaluation, and where back."""
        back = frozen = None
        for (_, training), (reference, site) in self._calls.items():
            module = reference()
            if module is None or all(each is not layer for each in module.modules()):
                continue
            trains = any(each.requires_grad for each in module.parameters())
            if training and trains:
                back = (site,)
            elif not training and not trains:
                frozen = (site,)
        return None if back is None or frozen is None else (*frozen, *back)

    def trained_at(self, layer: nn.Module) -> CallSite | None:
        """Return where a module with this layer was last put into training mode."""
        found = None
        for (_, training), (reference, site) in self._calls.items():
            module = reference()
            if training and module is not None and any(x is layer for x in module.modules()):
                found = site
        return found


@dataclass(slots=True)
class _Drifting:
    """Statistics that change.

    Attributes:
        undone: where the layer was set to evaluation, and where back.
        trained_at: where it was put into training mode.
        whole: whether it is of a part that is frozen as a whole, as a backbone is.
    """

    model: str
    site: CallSite | None
    names: list[str]
    step: int
    undone: tuple[CallSite | None, CallSite | None] | None
    trained_at: CallSite | None
    whole: bool


class FrozenStatisticsDetector:
    """Reports frozen-but-changed (GCS409) of running statistics.

    Told where none of the layer's own parameters requires grad, though it has some, and they stay
    the same while the statistics change and other parameters of the model are trained. So it is
    not told of layers without parameters, of a teacher whose parameters follow a student's, of
    models that nothing trains, and of layers that adapt their parameters and their statistics
    together.
    """

    def __init__(self, names: ParameterNames) -> None:
        self._names = names
        # A running function may know a model as an attribute alone.
        self._called: dict[int, weakref.ref[nn.Module]] = {}
        self._looks = 0
        self._first = 0
        self._modes = _Modes()
        self._layers: dict[int, _Layer] = {}
        self._occurrences: dict[object, _Drifting] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the models of a few steps."""
        return {
            OptimizerConstructed: self._construct,
            ForwardFinished: self._end_forward,
            ModeChanged: self._modes.note,
            StepStarted: self._begin_step,
        }

    def _construct(self, _event: OptimizerConstructed) -> Attention:
        self._first = -1  # the next step, in which a phase of the training begins
        return Attention.AWAKE

    def _end_forward(self, event: ForwardFinished) -> Attention | None:
        self._called[id(event.module)] = weakref.ref(event.module)
        # Few models are called for the first time later.
        return Attention.ASLEEP if self._looks > len(_NEXT_LOOKS) else None

    def _begin_step(self, event: StepStarted) -> int:
        self._looks += 1
        if self._first < 0:
            self._first = event.number
        called = (model for each in self._called.values() if (model := each()) is not None)
        for model in {id(model): model for model in (*self._names.modules(), *called)}.values():
            if model.training and event.site not in self._occurrences:
                self._look(model, event)
        later = [self._first + n for n in _NEXT_LOOKS if self._first + n > event.number]
        return later[0] if later else event.number + _EVERY

    def _look(self, model: nn.Module, event: StepStarted) -> None:
        frozen = [
            (name, each)
            for name, each in model.named_modules()
            if isinstance(each, _NormBase) and _is_frozen(each)
        ]
        if not frozen or not any(each.requires_grad for each in model.parameters()):
            return
        drifting = [each for each in frozen if self._has_drifted(each[1], event.number)]
        names = [name for name, _ in drifting]
        if names:
            undone = self._modes.undone(drifting[0][1])
            name = variable_of(model) or type(model).__name__
            named = [written(f"{name}.{each}") if each else name for each in names]
            first = drifting[0][1]
            self._occurrences[event.site] = _Drifting(
                name,
                event.site,
                named,
                event.number,
                undone,
                self._modes.trained_at(first),
                _is_of_frozen_part(first, model),
            )

    def _has_drifted(self, layer: _NormBase, step: int) -> bool:
        """Return whether its statistics are others than some steps before, and nothing else."""
        known = self._layers.get(id(layer))
        if known is None or known.layer() is not layer:
            self._layers[id(layer)] = _Layer(
                weakref.ref(layer),
                None if layer.running_mean is None else fingerprint(layer.running_mean),
                [fingerprint(each) for each in layer.parameters(recurse=False)],
                step,
            )
            return False
        if step - known.step < _STEPS_BETWEEN:
            return False
        statistics = layer.running_mean
        if statistics is None or known.statistics is None:
            return False
        parameters = list(layer.parameters(recurse=False))
        stays = len(parameters) == len(known.parameters) and all(
            content is not None and same_content(content, each)
            for content, each in zip(known.parameters, parameters, strict=True)
        )
        return stays and not same_content(known.statistics, statistics)

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return [_drifting_finding(occurrence) for occurrence in self._occurrences.values()]


def _is_of_frozen_part(layer: nn.Module, model: nn.Module) -> bool:
    """Return whether the child of a model around a layer has others, all of them frozen too."""
    own = set(map(id, layer.parameters()))
    for child in model.children():
        if any(each is layer for each in child.modules()):
            parameters = list(child.parameters())
            others = any(id(each) not in own for each in parameters)
            return others and not any(each.requires_grad for each in parameters)
    return False


def _is_frozen(layer: nn.Module) -> bool:
    parameters = list(layer.parameters(recurse=False))
    return (
        layer.training and bool(parameters) and not any(each.requires_grad for each in parameters)
    )


def _drifting_finding(occurrence: _Drifting) -> Finding:
    layers = f"{plural(len(occurrence.names), 'frozen layer')} ({listed(occurrence.names)})"
    undone = occurrence.undone
    message = (
        f"the running statistics of {layers} change in training mode, while "
        "their parameters stay the same and others are trained"
    )
    if undone is not None:
        message += ": this train() has undone the eval() of the frozen part"
    elif occurrence.whole:
        message += ": all that is around them is frozen as well"
    where = location_of(occurrence.trained_at if undone is None else undone[1])
    where = where or location_of(occurrence.site)
    is_meant = undone is None and not occurrence.whole
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"{message}; expected frozen layers in evaluation mode",
        detector="audit",
        severity=Severity.NOTE if is_meant else Severity.WARNING,
        location=where,
        related=related(
            (location_of(occurrence.site), "this step trains the others"),
            (None if undone is None else location_of(undone[0]), "eval() was called here"),
            apart_from=where,
        ),
        hint="call eval() on the frozen layers after each train()",
        evidence={
            "names": list(occurrence.names),
            "model": occurrence.model,
            "step": occurrence.step,
        },
    )
