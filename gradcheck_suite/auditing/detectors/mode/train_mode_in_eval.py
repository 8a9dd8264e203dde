"""Evaluation in training mode: passes whose results no backward uses.

Every call of a model that an optimizer trains is told of, by its line and the line that called
that one. It trains if a backward goes through what it recorded; where it recorded nothing, or no
backward uses any of it, it is a pass. One that comes once in several steps is an evaluation. One
that comes with every step is part of the step (a teacher, a second view, a search along a line),
unless the first came after the first step and the last after the last.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import BATCH_NORMS, DROPOUTS, inside_backward, node_metadata
from gradcheck_suite.auditing.call_sites import CallSite, kind_of_file, location_of
from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindow
from gradcheck_suite.auditing.detectors.reachable_parameters import MOST_NODES, nodes_of
from gradcheck_suite.auditing.events import (
    BackwardStarted,
    ForwardFinished,
    ModeChanged,
    OptimizerConstructed,
    ParameterGroupAdded,
    SessionEnded,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["TrainModeInEvalDetector", "names_of", "node_of", "sensitive_layers"]

_MARK = "gradcheck_suite.pass"

_STEPS_BETWEEN = 2
"""Steps of its optimizer since a model's last pass. The least that tells evaluation from a pass
that comes with every step, which is part of the step."""

_ENOUGH = 3
"""Passes of one line that come with each step, or that recorded a graph for nothing, before they
are told. Chosen: one or two may be on purpose, as for a picture of the graph."""

_SAME_INPUT = 3
"""Calls in a row with one input that show dropout to be sampled (Gal and Ghahramani 2016). Chosen,
as above."""

_MOST_WALKS = 64
"""Backwards whose graph is looked through for the calls that they use. A bound on cost; beyond, all
calls before a backward count as used by it."""

_MOST_LINES = 512
"""Lines whose calls are followed. A bound on memory."""

_FRAMES = 2
"""The user's frames that make a line: a helper that calls the model serves training and evaluation,
told apart by who calls it."""

_Line: TypeAlias = "tuple[int, ...]"


@dataclass(slots=True)
class _Model:
    """A model that was called.

    Attributes:
        reference: to it.
        trainer: the window of the first optimizer that has a parameter of it.
        layers: those of its layers that act differently in training mode.
        has_hooks: whether a part of it had a forward hook when it was met.
    """

    reference: weakref.ref[nn.Module]
    trainer: weakref.ref[AccumulationWindow] | None
    layers: list[weakref.ref[nn.Module]]
    has_hooks: bool


@dataclass(slots=True)
class _Passes:
    """The calls of one model on one line.

    Attributes:
        name: what the user calls the model.
        kind: its class.
        places: the line, and the line that called this one.
        layers: the layers in training mode, in words; empty where it has none that mind.
        partly: whether other such layers were in evaluation mode.
        recorded: whether they recorded a graph.
        used: whether a backward has used what any of them recorded.
        count: how many there were.
        first: how many steps its optimizer had taken at the first.
        last: the same of the last.
        turns: after how many different numbers of steps they came.
        seldom: how many of these came several steps after the one before.
        often: how many came one step after it.
        burst: how many came in a row without a backward or step, at most.
        in_a_row: how many have come since the last of these.
        backwards: how many backwards had begun by the last call.
        on_purpose: whether each came after train() was called, since the step before.
        sampled: how many calls in a row had the same input, at most.
        same: how many had by now; given: that input.
        before: how many backwards came after it, the next ones each.
        alone: how many of them came before any other call of the model.
        at_the_end: whether the audit ended after the last without another step.
    """

    name: str
    kind: str
    places: tuple[CallSite, ...]
    layers: str
    recorded: bool
    first: int
    last: int
    step: int
    on_purpose: bool
    partly: bool = False
    used: bool = False
    count: int = 0
    turns: int = 1
    seldom: int = 0
    often: int = 0
    burst: int = 0
    in_a_row: int = 0
    backwards: int = -1
    sampled: int = 0
    same: int = 0
    given: weakref.ref[Tensor] | None = None
    before: int = 0
    alone: int = 0
    at_the_end: bool = False
    graphs: list[weakref.ref[_PassGraph]] = field(default_factory=list)

    def is_evaluation(self) -> bool:
        """Return whether they came once in several steps, or after each step and not before."""
        between = bool(self.seldom) and not self.often
        return between or (self.first > 0 and self.at_the_end and self.turns >= _ENOUGH)

    def may_feed_another(self) -> bool:
        """Return whether the next backward mostly came before any other call of the model.

        What they return may be in the loss of another model, detached, as a generator's is in that
        of the discriminator.
        """
        return self.alone * 2 > self.before

    def is_for_nothing(self) -> bool:
        """Return whether they recorded graphs enough that are gone and that no backward used."""
        living = sum(graph() is not None for graph in self.graphs)
        return self.recorded and not self.used and self.count - living >= _ENOUGH


class _PassGraph:
    """Lives while the graph of one call does."""

    __slots__ = ("__weakref__", "passes")

    def __init__(self, passes: _Passes) -> None:
        self.passes = passes


class TrainModeInEvalDetector:
    """Reports train-mode-in-eval (GCS701) and, in training mode, eval-with-graph (GCS204)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._classes: set[type[nn.Module]] = set()
        self._models: dict[int, _Model] = {}
        self._passes: dict[_Line, _Passes] = {}
        # Since the last backward: the calls that recorded, and those whose use nobody knows yet.
        self._calls = 0
        self._open: list[weakref.ref[_PassGraph]] = []
        self._row: list[_Line] = []
        self._unsettled = False
        self._walks = 0
        self._backwards = 0
        self._resumed = False
        # The last train() of each module, by the number of its optimizer's steps then.
        self._trained: dict[int, tuple[weakref.ref[nn.Module], int]] = {}

    def subscriptions(self) -> Subscriptions:
        """Follow models from call to backward."""
        return {
            ModeChanged: self._change,
            ForwardFinished: self._meet,
            BackwardStarted: self._begin_backward,
            OptimizerConstructed: self._begin_anew,
            ParameterGroupAdded: self._begin_anew,
            WatchResumed: self._resume,
            SessionEnded: self._end,
        }

    def _begin_anew(self, _event: object) -> None:
        self._models.clear()

    def _resume(self, _event: WatchResumed) -> None:
        # How many steps lie between two passes is not known where some were not watched.
        for passes in self._passes.values():
            passes.last = -1
        self._open, self._row, self._calls = [], [], 0

    def _change(self, event: ModeChanged) -> None:
        if event.training:
            model = self._model_of(event.module)
            window = None if model.trainer is None else model.trainer()
            steps = 0 if window is None else window.steps
            self._trained[id(event.module)] = (weakref.ref(event.module), steps)

    def _model_of(self, module: nn.Module) -> _Model:
        known = self._models.get(id(module))
        if known is None or known.reference() is not module:
            mine = set(map(id, module.parameters()))
            windows = self._windows.all() if mine else ()
            found = next((each for each in windows if not each.ids.isdisjoint(mine)), None)
            layers = [] if found is None else list(map(weakref.ref, sensitive_layers(module)))
            trainer = None if found is None else weakref.ref(found)
            has_hooks = found is not None and _has_hooks(module)
            known = _Model(weakref.ref(module), trainer, layers, has_hooks)
            self._models[id(module)] = known
        return known

    def _meet(self, event: ForwardFinished) -> None:
        """Ask for each call of the models of a class that is new, from now on."""
        kind = type(event.module)
        is_new = kind not in self._classes and not isinstance(event.module, torch.jit.ScriptModule)
        if is_new and self._model_of(event.module).trainer is not None:
            self._classes.add(kind)
            self._recorder.module_calls.listen_to_models(kind, self._after_call)
            self._end_forward(event)

    def _after_call(self, module: nn.Module, output: Any, given: tuple[Any, ...]) -> None:
        if self._recorder.state.running:
            recording, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            event = ForwardFinished(module, output, recording, inference, None, given)
            self._end_forward(event)

    def _end_forward(self, event: ForwardFinished) -> None:
        module = event.module
        model = self._model_of(module)
        window = None if model.trainer is None else model.trainer()
        if window is None:
            return
        node = node_of(event.output) if event.grad_enabled else None
        self._calls += node is not None
        if not module.training:
            return
        places = _user_places()
        line: _Line = (id(module), node is None)
        for code, offset in places:
            # By identity: the hash of a code object goes through all its constants.
            line += (id(code), offset)
        if len(self._row) < _MOST_LINES:
            self._row.append(line)
        passes = self._passes.get(line)
        if passes is None:
            if len(self._passes) >= _MOST_LINES:
                return
            passes = self._passes[line] = self._new(module, model, window, places)
            passes.recorded = node is not None
            # What a hook has kept may be used, and what is returned not.
            passes.used = passes.recorded and model.has_hooks
        # A checkpoint, or a Function that recomputes: the backward that runs has a use for it.
        if passes.used or inside_backward():
            return
        self._unsettled = True
        self._count(passes, window, event)
        if node is not None:
            graph = _PassGraph(passes)
            node_metadata(node)[_MARK] = graph
            reference = weakref.ref(graph)
            self._open.append(reference)
            passes.graphs = [each for each in passes.graphs if each() is not None]
            passes.graphs.append(reference)

    def _new(
        self,
        module: nn.Module,
        model: _Model,
        window: AccumulationWindow,
        places: tuple[CallSite, ...],
    ) -> _Passes:
        layers = [layer for each in model.layers if (layer := each()) is not None]
        training = [layer for layer in layers if layer.training]
        return _Passes(
            name=variable_of(module) or type(module).__name__,
            kind=type(module).__name__,
            places=places,
            layers=names_of(training),
            partly=len(training) < len(layers),
            recorded=False,
            first=window.steps,
            last=window.steps,
            step=window.steps,
            on_purpose=True,
        )

    def _count(self, passes: _Passes, window: AccumulationWindow, event: ForwardFinished) -> None:
        passes.count += 1
        since = window.steps - passes.last
        # The first may come after any number of steps.
        since = since if passes.count > 1 else passes.first
        if passes.last >= 0 and since:
            passes.turns += passes.count > 1
            passes.seldom += since >= _STEPS_BETWEEN
            passes.often += since < _STEPS_BETWEEN and passes.count > 1
        is_row = since == 0 and passes.backwards == self._backwards
        passes.in_a_row = passes.in_a_row + 1 if is_row and passes.count > 1 else 1
        passes.last = window.steps
        passes.on_purpose = passes.on_purpose and self._was_set(event.module, window)
        passes.backwards = self._backwards
        passes.burst = max(passes.burst, passes.in_a_row)
        given = next((each for each in event.given if isinstance(each, Tensor)), None)
        before = None if passes.given is None else passes.given()
        is_same = is_row and given is not None and given is before
        passes.same = passes.same + 1 if is_same else 1
        passes.given = None if given is None else weakref.ref(given)
        passes.sampled = max(passes.sampled, passes.same)

    def _was_set(self, module: nn.Module, window: AccumulationWindow) -> bool:
        """Return whether train() was called of it since its optimizer's last step."""
        return any(
            steps == window.steps
            and (trained := reference()) is not None
            and any(part is module for part in trained.modules())
            for reference, steps in self._trained.values()
        )

    def _begin_backward(self, event: BackwardStarted) -> None:
        self._backwards += 1
        row, self._row = self._row, []
        if not self._unsettled:  # nearly always: each call is on a line that trains
            self._calls = 0
            return
        self._unsettled = False
        self._note_followers(row)
        waiting, self._open = self._open, []
        calls, self._calls = self._calls, 0
        graphs = [graph for each in waiting if (graph := each()) is not None]
        if not graphs:
            return
        if calls == 1 or self._walks >= _MOST_WALKS:
            for graph in graphs:
                graph.passes.used = True
            return
        self._walks += 1
        nodes = nodes_of(event)
        found = {id(graph) for node in nodes if (graph := node_metadata(node).get(_MARK))}
        for graph in graphs:
            if id(graph) in found or len(nodes) >= MOST_NODES:
                graph.passes.used = True
        # A later backward may come for them.
        self._open = [weakref.ref(graph) for graph in graphs if not graph.passes.used]
        self._calls = len(self._open)
        self._unsettled = bool(self._open)

    def _note_followers(self, row: list[_Line]) -> None:
        """Note which calls before a backward no other call of the same model has followed."""
        later: dict[int, set[_Line]] = {}
        for line in reversed(row):
            others = later.setdefault(line[0], set())
            passes = None if line in others else self._passes.get(line)
            if passes is not None and not passes.used:
                passes.before += 1
                passes.alone += not others
            others.add(line)

    def _end(self, _event: SessionEnded) -> None:
        for line, passes in self._passes.items():
            model = self._models.get(line[0])
            window = None if model is None or model.trainer is None else model.trainer()
            passes.at_the_end = window is not None and passes.last == window.steps

    def findings(self) -> list[Finding]:
        """Return one finding for each line that calls a model so."""
        used: set[CallSite] = {
            passes.places[0] for passes in self._passes.values() if passes.used and passes.places
        }
        trained = {line[0] for line, passes in self._passes.items() if passes.used}
        found: dict[object, Finding] = {}
        for line, passes in self._passes.items():
            # Where no backward uses any call of the model, that is what is wrong.
            if passes.used or not passes.places or (passes.recorded and line[0] not in trained):
                continue
            finding = _judge(passes, used)
            if finding is not None:
                found.setdefault((finding.code, finding.location), finding)
        return list(found.values())


def _user_places() -> tuple[tuple[CodeType, int], ...]:
    """Return the innermost of the user's lines that are running."""
    # Without generators: this runs in each call of a model.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `call_site` does
    kinds = kind_of_file
    found: tuple[tuple[CodeType, int], ...] = ()
    while frame is not None and len(found) < _FRAMES:
        if not kinds[frame.f_code.co_filename]:  # the user's own
            found += ((frame.f_code, frame.f_lasti),)
        frame = frame.f_back
    return found


def _has_hooks(model: nn.Module) -> bool:
    return any(vars(part).get("_forward_hooks") for part in model.modules())


def sensitive_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that act differently in training mode."""
    return [
        layer
        for layer in model.modules()
        if (isinstance(layer, DROPOUTS) and float(getattr(layer, "p", 0.0)) > 0)
        or (
            isinstance(layer, BATCH_NORMS)
            and layer.track_running_stats
            and layer.momentum is not None
        )
        or (isinstance(layer, nn.RNNBase) and layer.dropout > 0)
    ]


def names_of(layers: list[nn.Module]) -> str:
    """Return the first few of their kinds, as words."""
    kinds = dict.fromkeys(type(layer).__name__ for layer in layers)
    return " and ".join(list(kinds)[:3])


def node_of(output: Any) -> Node | None:
    """Return the node of the first tensor with a graph in what a module has returned."""
    if isinstance(output, Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((node for each in output if (node := node_of(each)) is not None), None)
    return None


def _judge(passes: _Passes, used: set[CallSite]) -> Finding | None:
    """Return what is to be told of the passes of one line."""
    is_evaluation = passes.is_evaluation()
    if passes.layers and is_evaluation and (not passes.recorded or passes.is_for_nothing()):
        return _in_training_mode(passes, used)
    if passes.is_for_nothing():
        is_evaluation = is_evaluation and not passes.may_feed_another()
        return _with_graph(passes, used, is_evaluation=is_evaluation or passes.burst >= _ENOUGH)
    return None


def _place(passes: _Passes, used: set[CallSite]) -> CallSite:
    """Return the innermost line that serves evaluation alone."""
    return next((each for each in passes.places if each not in used), passes.places[0])


def _in_training_mode(passes: _Passes, used: set[CallSite]) -> Finding:
    doubts = []
    if passes.partly:
        doubts.append("others of its layers were in evaluation mode")
    if passes.on_purpose:
        doubts.append("train() was called before it, after the last step")
    if passes.sampled >= _SAME_INPUT:
        doubts.append("it ran on the same input again and again, as to sample dropout")
    if passes.may_feed_another():
        doubts.append("what it returned may have gone into the loss of another model")
    if passes.recorded:
        how = "and no backward used the graphs that it recorded"
        hint = f"call {passes.name}.eval() before the pass and train() after it, and run it under "
        hint += "torch.no_grad()"
    else:
        how = "without recording gradients"
        hint = f"call {passes.name}.eval() before the pass and {passes.name}.train() after it"
    times = "" if passes.turns == 1 else f", {passes.turns} times"
    return Finding.of(
        catalogue.TRAIN_MODE_IN_EVAL,
        f"`{passes.name}` ran between steps of training, {how}, with {passes.layers} in training "
        f"mode{times}; expected {passes.name}.eval() before such a pass and train() after it "
        f"(first after step {passes.first})",
        detector="audit",
        doubts=doubts,
        location=location_of(_place(passes, used)),
        hint=hint,
        evidence={
            "count": passes.turns,
            "step": passes.step,
            "model": passes.kind,
            "layers": passes.layers,
        },
    )


def _with_graph(passes: _Passes, used: set[CallSite], *, is_evaluation: bool) -> Finding:
    return Finding.of(
        catalogue.EVAL_WITH_GRAPH,
        f"`{passes.name}` recorded a graph in {passes.count} calls here, and no backward used any "
        "of them: what such a pass computes needs none",
        detector="audit",
        severity=Severity.WARNING if is_evaluation else Severity.NOTE,
        location=location_of(_place(passes, used)),
        hint="with torch.no_grad(): around this call",
        evidence={"count": passes.count, "model": passes.kind},
    )
