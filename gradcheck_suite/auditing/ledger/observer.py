"""Takes down what happens in a run, and makes its ledger of it.

Counts are of the whole run, less the steps that are passed over; what is told of modules and
parameters is of the steps in which these are looked at.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.detectors.functions.function_contract import line_in
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import (
    BackwardStarted,
    ForwardFinished,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaled,
    ModeChanged,
    OptimizerConstructed,
    SchedulerStepped,
    StepFinished,
)
from gradcheck_suite.auditing.instrumentation.modules import FIRST_STEPS as FORWARDS_ARE_TOLD
from gradcheck_suite.auditing.ledger.facts import (
    BackwardFacts,
    FunctionFacts,
    GroupFacts,
    Ledger,
    LossFacts,
    MemoryFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    Place,
    TermFacts,
)
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.connectivity.constant_loss_term import (
        ConstantLossTermDetector,
    )
    from gradcheck_suite.auditing.detectors.functions.function_contract import (
        FunctionContractDetector,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecord, LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.source_analysis.loss_terms import LossTerm
    from gradcheck_suite.findings import Finding

__all__ = ["LedgerObserver"]

_MOST_CHANGES = 4
"""Changes of mode on one line after which the next call of the module is taken down. A bound on
cost: to listen to a module takes replacing a method."""

_MOST_PLACES = 64
"""Lines that are remembered for each thing that can be done. A bound on memory."""


class _Optimizer:
    """An optimizer that was seen."""

    def __init__(self, optimizer: Optimizer, made: CallSite | None) -> None:
        self.kind = type(optimizer).__name__
        self.made = made
        self.steps = 0
        self.places: dict[str, Counter[tuple[CallSite | None, str]]] = {}
        self.backwards: Counter[int] = Counter()
        self.groups = tuple(map(_group_facts, optimizer.param_groups))

    def note(self, kind: str, site: CallSite | None, what: str = "") -> None:
        """Count that something was done to it at this line."""
        counts = self.places.setdefault(kind, Counter())
        key = (site, what)
        if key in counts or len(counts) < _MOST_PLACES:
            counts[key] += 1

    def of(self, kind: str) -> tuple[Place, ...]:
        """Return the lines that did this."""
        return _places(self.places.get(kind, Counter()))


class _Module:
    """A module that was called from outside of all modules."""

    def __init__(self, module: nn.Module) -> None:
        self.reference = weakref.ref(module)
        self.kind = type(module).__name__
        self.name = variable_of(module) or self.kind
        self.calls: Counter[tuple[CallSite | None, str]] = Counter()


class _Backward:
    """A line that runs backwards: how often, and how many leaves they have reached at most."""

    count = reached = 0


class LedgerObserver:
    """Takes part in an audit as detectors do, and accuses nobody."""

    def __init__(
        self,
        recorder: Recorder,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        losses: ConstantLossTermDetector,
        functions: FunctionContractDetector,
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._losses = losses
        self._functions = functions
        self._optimizers: dict[int, _Optimizer] = {}
        self._modules: dict[int, _Module] = {}
        self._gone_modules: list[_Module] = []
        self._backwards: dict[tuple[CallSite | None, bool], _Backward] = {}
        self._alive: dict[int, int] = {}
        self._mode_changes: Counter[CallSite | None] = Counter()
        self._passed_over = 0

    def subscriptions(self) -> Subscriptions:
        """Follow everything that a ledger tells of."""
        return {
            OptimizerConstructed: self._construct,
            GradientsCleared: self._clear,
            GradientsClipped: self._clip,
            GradientsUnscaled: self._unscale,
            SchedulerStepped: self._schedule,
            BackwardStarted: self._begin_backward,
            ForwardFinished: self._end_forward,
            ModeChanged: self._change_mode,
            StepFinished: self._end_step,
        }

    def findings(self) -> Sequence[Finding]:
        """Return nothing: these are facts."""
        return ()

    def _of(self, optimizer: Optimizer, made: CallSite | None = None) -> _Optimizer:
        number = self._recorder.optimizers.number_of(optimizer)
        if number not in self._optimizers:
            self._optimizers[number] = _Optimizer(optimizer, made)
        return self._optimizers[number]

    def _construct(self, event: OptimizerConstructed) -> None:
        self._of(event.optimizer, event.site)

    def _clear(self, event: GradientsCleared) -> None:
        owner = event.owner
        if isinstance(owner, Optimizer):
            self._of(owner).note("cleared", event.site)
            return
        for known in self._owning(owner.parameters()):
            known.note("cleared", event.site, "zero_grad() of the module")

    def _owning(self, parameters: Iterable[Tensor]) -> list[_Optimizer]:
        """Return the optimizers that own any of these parameters."""
        owners = self._leaves.owners_of(set(map(id, parameters)))
        return [known for key, known in self._optimizers.items() if key in owners]

    def _clip(self, event: GradientsClipped) -> None:
        for known in self._owning(event.given[:1]):
            known.note("clipped", event.site, event.function)

    def _unscale(self, event: GradientsUnscaled) -> None:
        self._of(event.optimizer).note("unscaled", event.site)

    def _schedule(self, event: SchedulerStepped) -> None:
        if event.optimizer is not None:
            self._of(event.optimizer).note("scheduled", event.site, type(event.scheduler).__name__)

    def _begin_backward(self, event: BackwardStarted) -> None:
        known = self._backwards.get((event.site, event.accumulates))
        if known is None:
            if len(self._backwards) >= _MOST_PLACES:
                return
            known = self._backwards[event.site, event.accumulates] = _Backward()
        known.count += 1
        if self._leaves.is_looking:
            known.reached = max(known.reached, len(reachable_graph(event).leaves))

    def _end_forward(self, event: ForwardFinished) -> None:
        module = event.module
        known = self._modules.get(id(module))
        if known is None or known.reference() is not module:
            if len(self._modules) + len(self._gone_modules) >= _MOST_PLACES:
                return
            if known is not None:
                self._gone_modules.append(known)
            known = self._modules[id(module)] = _Module(module)
        known.calls[event.site, _way(event)] += 1

    def _change_mode(self, event: ModeChanged) -> None:
        """Take down the next call of a module whose mode has changed, some times for each line."""
        self._mode_changes[event.site] += 1
        if self._mode_changes[event.site] > _MOST_CHANGES:
            return
        ends: list[Callable[[], None]] = []

        def note(module: nn.Module, output: object) -> None:
            ends.pop()()
            is_told = self._recorder.state.step < FORWARDS_ARE_TOLD
            if not is_told:
                recording, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
                site = call_site()
                self._end_forward(ForwardFinished(module, output, recording, inference, site))

        ends.append(self._recorder.module_calls.listen(event.module, note))

    def _end_step(self, event: StepFinished) -> None:
        passed_over = self._recorder.state.skipped_steps
        if passed_over != self._passed_over:
            # The end of the last of those: the audit goes on from here.
            self._passed_over = passed_over
            return
        known = self._of(event.optimizer)
        known.steps += 1
        known.note("stepped", event.site)
        summary = self._windows.of(event.optimizer).summary
        known.backwards[-1 if summary is None else len(summary.fills)] += 1
        if self._leaves.is_looking:
            self._alive[self._recorder.state.step] = self._recorder.generations.living.count
            known.groups = tuple(map(_group_facts, event.optimizer.param_groups))

    def ledger(self) -> Ledger:
        """Return what is known by now."""
        state = self._recorder.state
        everyone = list(self._optimizers.values())
        names = dict(zip(everyone, _optimizer_names(everyone), strict=True))
        by_storage: dict[int, list[str]] = {}
        for leaf in self._leaves.all():
            if leaf.storage is not None and leaf.name is not None:
                by_storage.setdefault(leaf.storage, []).append(leaf.name)
        told = [leaf for leaf in self._leaves.all() if leaf.is_parameter or leaf.owners]
        return Ledger(
            steps=state.step,
            watched=state.step - state.skipped_steps,
            looked_at=self._leaves.steps_looked_at,
            optimizers=tuple(_optimizer_facts(known, name) for known, name in names.items()),
            parameters=tuple(
                _parameter_facts(
                    leaf,
                    tuple(names[known] for known in self._owners_of(leaf)),
                    by_storage.get(leaf.storage or 0, ()),
                )
                for leaf in told
            ),
            modules=tuple(
                ModuleFacts(each.name, each.kind, _places(each.calls))
                for each in (*self._gone_modules, *self._modules.values())
            ),
            every_call=state.step < FORWARDS_ARE_TOLD,
            backwards=tuple(
                BackwardFacts(
                    Place(location_of(site), each.count), accumulates, each.reached, len(told)
                )
                for (site, accumulates), each in self._backwards.items()
            ),
            functions=tuple(
                FunctionFacts(each.__name__, line_in(each, "backward", None))
                for each in self._functions.differentiated
            ),
            losses=tuple(
                LossFacts(each.backward, tuple(map(_term_facts, each.terms)))
                for each in self._losses.terms
                if each.terms
            ),
            memory=MemoryFacts(tuple(self._alive.items())),
        )

    def _owners_of(self, leaf: LeafRecord) -> list[_Optimizer]:
        """Return the optimizers that own a leaf or have owned it."""
        return [known for key, known in self._optimizers.items() if key in leaf.owners]


def _optimizer_names(optimizers: Sequence[_Optimizer]) -> list[str]:
    """Return what to call each optimizer: its class, with a number where there are several."""
    counts = Counter(known.kind for known in optimizers)
    numbers: Counter[str] = Counter()
    names = []
    for known in optimizers:
        numbers[known.kind] += 1
        number = f" {numbers[known.kind]}" if counts[known.kind] > 1 else ""
        names.append(known.kind + number)
    return names


def _optimizer_facts(known: _Optimizer, name: str) -> OptimizerFacts:
    return OptimizerFacts(
        name=name,
        made=location_of(known.made),
        groups=known.groups,
        steps=known.steps,
        stepped=known.of("stepped"),
        backwards=tuple(sorted(known.backwards.items(), key=lambda pair: (-pair[1], pair[0]))),
        cleared=known.of("cleared"),
        clipped=known.of("clipped"),
        unscaled=known.of("unscaled"),
        scheduled=known.of("scheduled"),
    )


def _parameter_facts(
    leaf: LeafRecord, owners: tuple[str, ...], beside: Sequence[str]
) -> ParameterFacts:
    return ParameterFacts(
        name=leaf.name,
        shape=leaf.shape,
        is_parameter=leaf.is_parameter,
        owners=owners,
        requires_grad=leaf.asked,
        requires_grad_last=leaf.asked_last,
        steps=leaf.steps,
        with_gradient=leaf.with_gradient,
        with_zeros=leaf.with_zeros,
        changed=leaf.changed,
        shares_memory_with=tuple(each for each in beside if each != leaf.name),
    )


def _term_facts(term: LossTerm) -> TermFacts:
    cut = term.cut
    place = None if cut is None else Location(path=cut.path, line=cut.line)
    return TermFacts(term.text, term.location, term.state, place, "" if cut is None else cut.what)


def _group_facts(group: dict[str, Any]) -> GroupFacts:
    rate = group.get("lr")
    return GroupFacts(
        parameters=len(group["params"]),
        elements=sum(each.numel() for each in group["params"]),
        learning_rate=rate if isinstance(rate, (int, float)) else None,
    )


def _places(counts: Counter[tuple[CallSite | None, str]]) -> tuple[Place, ...]:
    """Return lines with their counts; several calls in one line are one."""
    merged: Counter[tuple[Any, str]] = Counter()
    for (site, what), count in counts.items():
        merged[(location_of(site), what)] += count
    return tuple(Place(location, count, what) for (location, what), count in merged.items())


def _way(event: ForwardFinished) -> str:
    """Say in which mode a module was called, and whether that was recorded."""
    modes = {each.training for each in event.module.modules()}
    mode = (
        "partly in training mode"
        if len(modes) > 1
        else ("training mode" if True in modes else "evaluation mode")
    )
    recorded = (
        "inference mode"
        if event.inference
        else ("recorded" if event.grad_enabled and _has_graph(event.output) else "not recorded")
    )
    return f"{mode}, {recorded}"


def _has_graph(output: Any) -> bool:
    if isinstance(output, Tensor):
        return output.requires_grad
    if isinstance(output, dict):
        return any(map(_has_graph, output.values()))
    if isinstance(output, (tuple, list)):
        return any(map(_has_graph, output))
    return any(map(_has_graph, vars(output).values())) if hasattr(output, "__dict__") else False
