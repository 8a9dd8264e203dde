"""Graphs that are kept or recorded for a backward that never comes.

``retain_graph=True`` without a second pass, validation that records, and gradients that carry the
graph of a ``create_graph=True`` into the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import node_metadata, transform_is_active
from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFailed,
    BackwardStarted,
    GradientsReturned,
    GraphKept,
    ModeChanged,
    SessionEnded,
)
from gradcheck_suite.auditing.source_analysis.source import only_call_of
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["UnusedGraphDetector"]

_MARK = "gradcheck_suite.evaluation"
_SECOND = "gradcheck_suite.second_graph"
_CERTAIN = 3
"""Graphs that were kept or recorded in vain, by one line, before it is told. Chosen: one or two may
be on purpose, as for a picture of the graph."""

_WALKED_UNTIL = 8
"""Steps in which retained graphs are followed: ``_EVERY_ITERATION_UNTIL`` of ``graph_lifetime``, as
only there each graph is looked through and a second backward surely seen."""

_CALLS_OF_A_PHASE = 4
"""Calls of a module that are heard after each ``eval()``: one more than make a finding, so that a
single evaluation suffices. A bound on cost."""

_CALLS_OF_A_MODULE = 24
"""Calls of a module that are heard in all: six evaluations of those. A bound on cost for programs
that evaluate after every step."""

_BACKWARDS_OF_A_PHASE = 8
"""Backwards that may begin while a module in evaluation mode is listened to. A bound on cost, above
the calls that make a finding, for a teacher that is called once in each turn."""

_MOST_NODES = 20_000
"""Nodes of a backward's graph that are looked at for marks. A bound on cost, see ``MOST_NODES`` of
``reachable_parameters``; beyond, all that is marked counts as used."""


@dataclass(slots=True)
class _Retained:
    """A graph that a backward has retained.

    Attributes:
        family: the numbers of that backward and of those through whose graphs it went.
        step: in which it was.
        used: whether a later backward went through any of these graphs.
        outlived: whether the graph was still there when a backward of a later step began.
    """

    family: frozenset[int]
    step: int
    used: bool = False
    outlived: bool = False


@dataclass(slots=True)
class _Evaluated:
    """Calls of a module in evaluation mode on one line.

    Attributes:
        module: the name of its class.
        calls: how many of them recorded a graph.
        graphs: what lives as long as these graphs.
        used: whether a backward went through any of them.
        amid_training: whether backwards of other graphs came between, as with a teacher.
    """

    module: str
    calls: int = 0
    graphs: list[weakref.ref[_EvaluationGraph]] = field(default_factory=list)
    used: bool = False
    amid_training: bool = False

    def unused(self) -> int:
        """Return of how many graphs it is certain that no backward has used them."""
        if self.used:
            return 0
        if not self.amid_training:
            return self.calls
        return sum(graph() is None for graph in self.graphs)


class _EvaluationGraph:
    """Lives while the graph of one call in evaluation mode does."""

    __slots__ = ("__weakref__", "entry")

    def __init__(self, entry: _Evaluated) -> None:
        self.entry = entry
        entry.graphs.append(weakref.ref(self))


@dataclass(slots=True)
class _Phase:
    """A module in evaluation mode; ``stop`` ends listening to its calls.

    Attributes:
        module: the module.
        calls: how many of its calls were heard.
        of_phase: how many of them since it was set to evaluation mode.
        backwards: how many backwards began among these.
        recorded: where the last of them recorded a graph, if it did.
    """

    module: weakref.ref[nn.Module]
    stop: Callable[[], None] | None = None
    calls: int = 0
    of_phase: int = 0
    backwards: int = 0
    recorded: _Evaluated | None = None

    def goes_on(self) -> bool:
        """Return whether it may go on amid training: so far, its graphs were for nothing."""
        self.backwards += 1
        entry = self.recorded
        return entry is not None and not entry.used and self.backwards <= _BACKWARDS_OF_A_PHASE


class _SecondGraph:
    """Lives while the graph of one derivative's gradients does."""

    __slots__ = ("__weakref__", "line")

    def __init__(self, line: _SecondGraphs) -> None:
        self.line = line


@dataclass(slots=True)
class _SecondGraphs:
    """The graphs that ``create_graph=True`` on one line gave gradients.

    Attributes:
        returned: whether ``autograd.grad`` was called there.
        living: those that may yet be used.
        dropped: how many were dropped unused.
        used: whether a backward went through any.
    """

    returned: bool
    living: list[weakref.ref[_SecondGraph]] = field(default_factory=list)
    dropped: int = 0
    used: bool = False

    def note(self, gradients: Iterable[Tensor | None]) -> None:
        """Mark the graphs of these gradients."""
        nodes = [
            node for each in gradients if each is not None and (node := each.grad_fn) is not None
        ]
        self.count_dropped()
        if nodes and not self.used:
            mark = _SecondGraph(self)
            for node in nodes:
                node_metadata(node)[_SECOND] = mark
            self.living.append(weakref.ref(mark))

    def is_following(self) -> bool:
        """Return whether there are graphs that may yet be used."""
        return bool(self.living) and not self.used

    def count_dropped(self) -> int:
        """Return how many graphs were dropped unused; none where one was used."""
        living = [each for each in self.living if each() is not None]
        self.dropped += len(self.living) - len(living)
        self.living = living
        return 0 if self.used else self.dropped


@dataclass(slots=True)
class _Cycle:
    site: CallSite | None
    step: int
    seen: int = 0
    parameters: int = 0
    counted: set[int] = field(default_factory=set)


class UnusedGraphDetector:
    """Reports retain-graph (GCS203), eval-with-graph (GCS204) and create-graph-cycle (GCS206)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._retained: dict[CallSite | None, list[_Retained]] = {}
        self._families: dict[int, frozenset[int]] = {}
        self._evaluated: dict[CallSite, _Evaluated] = {}
        self._phases: dict[int, _Phase] = {}
        self._pending = 0
        self._cycle: _Cycle | None = None
        self._family: frozenset[int] | None = None
        self._second: dict[CallSite | None, _SecondGraphs] = {}

    def subscriptions(self) -> Subscriptions:
        """Read backwards, and which modules are in evaluation mode."""
        return {
            BackwardStarted: self._before_backward,
            GraphKept: self._after_backward,
            GradientsReturned: self._after_grad,
            BackwardFailed: self._after_failure,
            ModeChanged: self._after_mode,
            SessionEnded: self._at_the_end,
        }

    def is_following(self) -> bool:
        """Return whether a backward may yet come for graphs that are looked at."""
        listens = any(phase.stop is not None for phase in self._phases.values())
        return bool(
            listens
            or self._pending
            or self._cycle is not None
            or self._follows_second_graphs()
            or self._may_use_evaluation()
        )

    def findings(self) -> list[Finding]:
        """Return what is certain by now."""
        found = [
            _retained(site, len(records))
            for site, records in self._retained.items()
            if len(records) >= _CERTAIN and not any(record.used for record in records)
        ]
        found += [
            _retained_last(site, lasts)
            for site, records in self._retained.items()
            if any(record.used for record in records)
            and len(lasts := _outlived_by_the_last(records)) >= _CERTAIN
        ]
        found += [
            _evaluated(site, entry)
            for site, entry in self._evaluated.items()
            if entry.unused() >= _CERTAIN
        ]
        if self._cycle is not None and self._cycle.seen > 1:
            found.append(_cycle(self._cycle))
        else:
            found += [
                _unused_second_graph(site, count)
                for site, each in self._second.items()
                if (count := each.count_dropped()) >= _CERTAIN and not each.returned
            ]
        found += [
            _unused_derivative(site, count)
            for site, each in self._second.items()
            if (count := each.count_dropped()) >= _CERTAIN and each.returned
        ]
        return found

    # retain_graph

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        self._family = None
        if self._pending or self._follows_second_graphs() or self._may_use_evaluation():
            self._look_for_marks(event)
        if self._phases:
            self._close_phases()
        if self._cycle is not None and event.accumulates:
            self._look_for_cycle(self._cycle)
        step = self._recorder.state.step
        # Only there does a generation know every earlier one that it goes through.
        if (step or event.number) >= _WALKED_UNTIL:
            return None if self.is_following() else Attention.ASLEEP
        generation = self._recorder.generations.newest()
        if generation is None or generation.index != event.number:
            return None
        self._note_outlived(step)
        earlier = frozenset[int]()
        for reference in generation.reused:
            other = reference()
            if other is not None:
                earlier |= self._families.get(other.index, frozenset((other.index,)))
        self._family = self._families[event.number] = earlier | {event.number}
        if earlier:
            for records in self._retained.values():
                for record in records:
                    record.used = record.used or not record.family.isdisjoint(earlier)
        return None

    def _after_backward(self, event: GraphKept) -> Attention | None:
        finished = event.finished
        if not finished.creates_graph:
            if self._family is not None:
                record = _Retained(self._family, self._recorder.state.step)
                self._retained.setdefault(finished.site, []).append(record)
            return None
        if finished.created or finished.accumulated:
            filled = (each.grad for each in (*finished.created, *finished.accumulated))
            self._second_graphs(finished.site, returned=False).note(filled)
            if self._cycle is None:
                self._cycle = _Cycle(finished.site, self._recorder.state.step)
            return Attention.AWAKE
        return None

    def _after_grad(self, event: GradientsReturned) -> Attention | None:
        finished = event.finished
        if not finished.creates_graph:
            return None
        self._second_graphs(finished.site, returned=True).note(event.gradients)
        return Attention.AWAKE

    def _second_graphs(self, site: CallSite | None, *, returned: bool) -> _SecondGraphs:
        known = self._second.get(site)
        if known is None:
            known = self._second[site] = _SecondGraphs(returned)
        return known

    def _follows_second_graphs(self) -> bool:
        return any(each.is_following() for each in self._second.values())

    def _note_outlived(self, step: int) -> None:
        """Take note of the graphs of earlier steps that are still there."""
        if not self._retained:
            return
        alive = {each.index for each in self._recorder.generations.retained()}
        for records in self._retained.values():
            for record in records:
                if record.step < step and max(record.family) in alive:
                    record.outlived = True

    # create_graph

    def _look_for_cycle(self, cycle: _Cycle) -> None:
        step = self._recorder.state.step
        if step <= cycle.step or step in cycle.counted or cycle.seen >= _CERTAIN:
            return
        cycle.counted.add(step)
        with_graph = sum(
            parameter.grad is not None and parameter.grad.grad_fn is not None
            for parameter in self._recorder.optimizers.parameters()
        )
        if with_graph:
            cycle.seen += 1
            cycle.parameters = with_graph

    def _after_failure(self, event: BackwardFailed) -> None:
        """Take torch's refusal to follow a gradient into its old graph for certain."""
        cycle = self._cycle
        if cycle is not None and "a second time" in str(event.error):
            self._look_for_cycle(cycle)
            cycle.seen *= _CERTAIN

    # Evaluation mode

    def _after_mode(self, event: ModeChanged) -> Attention | None:
        key = id(event.module)
        phase = self._phases.get(key)
        if event.training:
            if phase is not None:
                _close(phase)
            return None
        if phase is None or phase.module() is not event.module:
            phase = self._phases[key] = _Phase(weakref.ref(event.module))
        if phase.stop is None and phase.calls < _CALLS_OF_A_MODULE:
            phase.of_phase = phase.backwards = 0
            phase.recorded = None
            phase.stop = self._recorder.module_calls.listen(event.module, self._note_evaluation)
        return Attention.AWAKE

    def _note_evaluation(self, module: nn.Module, output: Any) -> None:
        """Note a call of a module that was set to evaluation mode."""
        phase = self._phases.get(id(module))
        if phase is None or phase.stop is None or not self._recorder.state.running:
            return
        phase.calls += 1
        phase.of_phase += 1
        phase.recorded = None
        if phase.of_phase >= _CALLS_OF_A_PHASE:
            _close(phase)
        node = _node_of(output)
        site = call_site()
        if transform_is_active():
            # What torch.func records is the transform's own, and used without any backward().
            return
        if node is None or site is None or module.training or not torch.is_grad_enabled():
            return
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        entry = self._evaluated.setdefault(site, _Evaluated(type(module).__name__))
        entry.calls += 1
        entry.amid_training = entry.amid_training or phase.backwards > 0
        node_metadata(node)[_MARK] = _EvaluationGraph(entry)
        phase.recorded = entry
        self._pending = 2  # a backward of another graph may come in between

    def _at_the_end(self, _event: SessionEnded) -> None:
        for phase in self._phases.values():
            _close(phase)

    def _close_phases(self) -> None:
        for phase in self._phases.values():
            if phase.stop is not None and phase.of_phase and not phase.goes_on():
                _close(phase)

    def _may_use_evaluation(self) -> bool:
        """Return whether a graph lives that was recorded amid training, for nothing so far."""
        return any(
            entry.amid_training
            and not entry.used
            and any(graph() is not None for graph in entry.graphs)
            for entry in self._evaluated.values()
        )

    def _look_for_marks(self, event: BackwardStarted) -> None:
        # Marked graphs that are used at all are used by one of the next backwards.
        self._pending = max(0, self._pending - 1)
        waiting: list[Node] = [node for root in event.roots if (node := root.grad_fn) is not None]
        seen: set[Node] = set()
        while waiting and len(seen) < _MOST_NODES:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            metadata = node_metadata(node)
            graph = metadata.get(_MARK)
            if isinstance(graph, _EvaluationGraph):
                graph.entry.used = True
            second = metadata.get(_SECOND)
            if isinstance(second, _SecondGraph):
                second.line.used = True
            waiting.extend(edge for edge, _ in node.next_functions if edge is not None)
        if len(seen) >= _MOST_NODES:
            for entry in self._evaluated.values():
                entry.used = True
            for each in self._second.values():
                each.used = True


def _close(phase: _Phase) -> None:
    if phase.stop is not None:
        phase.stop()
        phase.stop = None


def _node_of(output: Any) -> Node | None:
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((node for each in output if (node := _node_of(each)) is not None), None)
    return None


def _retained(site: CallSite | None, count: int) -> Finding:
    return Finding.of(
        catalogue.RETAIN_GRAPH,
        f"backward(retain_graph=True) kept {count} graphs, and no second backward went through "
        "any of them: their buffers live longer for nothing",
        detector="audit",
        location=location_of(site),
        hint="leave out retain_graph=True",
        evidence={"count": count},
    )


def _outlived_by_the_last(records: list[_Retained]) -> list[_Retained]:
    """Return the last of each step, if none was used and it was still there in the next step.

    Who drops the graph with the function that made it need not care which backward is the last.
    """
    last = {record.step: record for record in records}
    if any(record.used for record in last.values()):
        return []
    return [record for record in last.values() if record.outlived]


def _retained_last(site: CallSite | None, lasts: list[_Retained]) -> Finding:
    return Finding.of(
        catalogue.RETAIN_GRAPH,
        "the last backward(retain_graph=True) of each step kept the graph too, and nothing went "
        f"through it any more: {len(lasts)} graphs were still there in the next step, with all "
        "that they had saved; expected the last backward to free its graph",
        detector="audit",
        location=location_of(site),
        hint="sum(losses).backward(), or retain_graph=True for all but the last",
        evidence={"count": len(lasts)},
    )


def _evaluated(site: CallSite, entry: _Evaluated) -> Finding:
    if entry.amid_training:
        return Finding.of(
            catalogue.EVAL_WITH_GRAPH,
            f"{entry.module} in evaluation mode recorded a graph in {entry.calls} calls here, amid "
            f"training, and {entry.unused()} of them were dropped before any backward could use "
            "them: eval() does not stop recording, and detach() comes after it",
            detector="audit",
            severity=Severity.NOTE,
            location=location_of(site),
            hint="with torch.no_grad(): around this call",
            evidence={"count": entry.unused(), "module": entry.module},
        )
    return Finding.of(
        catalogue.EVAL_WITH_GRAPH,
        f"{entry.module} in evaluation mode recorded a graph in {entry.calls} calls here, and no "
        "backward used any of them: eval() does not stop recording",
        detector="audit",
        location=location_of(site),
        hint="with torch.no_grad(): (or torch.inference_mode()) around the evaluation",
        evidence={"count": entry.calls, "module": entry.module},
    )


def _unused_second_graph(site: CallSite | None, count: int) -> Finding:
    return Finding.of(
        catalogue.CREATE_GRAPH_CYCLE,
        f"backward(create_graph=True) recorded the graph of the gradients {count} times, and "
        "nothing went through any of them before they were dropped: they take time and memory for "
        "nothing, and until .grad is cleared parameters and gradients keep each other alive",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(site),
        hint=(
            "leave out create_graph=True; for second derivatives, "
            "torch.autograd.grad(loss, parameters, create_graph=True)"
        ),
        evidence={"count": count},
    )


def _unused_derivative(site: CallSite | None, count: int) -> Finding:
    derived = location_of(site)
    where = only_call_of(derived) or derived
    return Finding.of(
        catalogue.RETAIN_GRAPH,
        f"autograd.grad(create_graph=True) recorded the graph of its gradients {count} times or "
        "more, and no backward went through any of them: what is computed of these gradients "
        "trains nothing; expected it in a loss, or no create_graph=True",
        detector="audit",
        location=where,
        related=related((derived, "recorded here"), apart_from=where),
        hint="add the term to the loss, or leave out create_graph=True",
        evidence={"count": count},
    )


def _cycle(cycle: _Cycle) -> Finding:
    return Finding.of(
        catalogue.CREATE_GRAPH_CYCLE,
        f"backward(create_graph=True) gave {cycle.parameters} parameters a .grad with a graph that "
        "is still there when the next step's backward adds to it: parameters and gradients keep "
        "each other and every graph so far alive",
        detector="audit",
        location=location_of(cycle.site),
        hint=(
            "use torch.autograd.grad(loss, parameters, create_graph=True), or set .grad to None "
            "before each step"
        ),
        evidence={"parameters": cycle.parameters, "first_step": cycle.step},
    )
