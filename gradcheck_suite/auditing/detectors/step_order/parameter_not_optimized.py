"""Parameters that backward fills and nobody owns, and those that an optimizer owns in vain.

In the first steps, ever more rarely later, and once fewer parameters than before get gradients, the
leaves of a backward's graph are compared with what the optimizers own. A module's parameter that
nobody owns, gets a gradient and never changes, while an optimizer trains other parameters of the
same model, was forgotten; unless everything that is trained comes after it, as where only the head
is fine-tuned, or its module rests in evaluation mode, as a fixed feature extractor does. So was a
whole model whose backward fills nothing else.

A parameter that an optimizer owns, that no backward reaches, and that no module has any more, was
replaced or removed, unless the program keeps it by itself, as a code for each image; so was a whole
model whose twin gets the gradients.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.step_order.wasted_backwards import WastedBackwards
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    OptimizerConstructed,
    ParameterGroupAdded,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.referrers import RunningFrames, owner_of
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.findings import JSON, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.heap import Heap
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["ParameterNotOptimizedDetector"]

_FIRST_STEPS = 6
"""In so many first steps of an optimizer each is looked at; after those, at powers of two. Chosen:
twice the steps that it takes to be sure."""

_MOST_NODES = 20_000
"""Nodes of a graph that are put in order. A bound on cost, see ``MOST_NODES`` of
``reachable_parameters``; the report says that larger graphs were left out."""

_MOST_SCANS = 4
"""Searches for who holds what, in all. A bound on cost: each takes about a tenth of a second."""

_STEPS_TO_BE_SURE = 3
"""Steps in which a parameter gets a gradient and stays as it is before it is told. Chosen: an
optimizer for it may come after the first step, and two may take turns."""

_STEPS_IN_DOUBT = 4
"""Steps of an optimizer, since fewer parameters got gradients, after which it is looked at: those
that it takes to be sure, and one whose backward gave rise to the doubt."""

_MOST_DOUBTS = 4
"""How often fewer gradients than before are looked into. A bound on cost for models that choose
anew which layers run."""

_ASKED = 3
"""Stale parameters, from the first on, and the last, whose holders are asked for. A bound on cost:
each question is a search; what keeps codes in a list keeps all of them."""


class _Orphan:
    """A parameter that got a gradient and that no optimizer owns."""

    __slots__ = ("after_owned", "backward", "content", "parameter", "step")

    def __init__(self, parameter: Tensor, backward: CallSite | None, step: int) -> None:
        self.parameter = weakref.ref(parameter)
        self.content: Fingerprint | None = fingerprint(parameter)
        self.backward = backward
        self.step = step
        self.after_owned = False


@dataclass(slots=True)
class _Occurrence:
    stale: bool
    kind: str
    made: CallSite | None
    stepped: CallSite | None
    backward: CallSite | None
    names: tuple[str, ...]
    parameters: tuple[weakref.ref[Tensor], ...]
    count: int
    replaced: bool
    emptied: bool
    step: int

    def is_owned_by(self, owned: frozenset[int]) -> bool:
        """Return whether any of the parameters, by identity, is among these."""
        living = (reference() for reference in self.parameters)
        return any(id(each) in owned for each in living if each is not None)


class ParameterNotOptimizedDetector:
    """Reports parameter-not-optimized (GCS307) and stale-parameter (GCS308)."""

    def __init__(self, recorder: Recorder, windows: AccumulationWindows) -> None:
        self._recorder = recorder
        self._windows = windows
        self._orphans: dict[int, _Orphan] = {}
        self._reached: set[int] = set()
        self._ran = False
        self._scans = 0
        self._told: set[int] = set()
        self._occurrences: list[_Occurrence] = []
        self._cut_short = False
        # How many parameters got a gradient: by the line of a backward, the last time; by the
        # optimizer, at most and the last time.
        self._totals: dict[CallSite | None, int] = {}
        self._filled: weakref.WeakKeyDictionary[AccumulationWindow, tuple[int, int]]
        self._filled = weakref.WeakKeyDictionary()
        self._unsettled = False
        self._doubts = 0
        self._doubt_ends = 0
        # The steps that each optimizer had done when the doubt began.
        self._doubted: dict[AccumulationWindow, int] = {}
        self._wasted = WastedBackwards(partial(_names_of_unowned, recorder.heap))

    def not_covered(self) -> list[str]:
        """Return what to say of graphs that were too large."""
        if not self._cut_short:
            return []
        return [f"parameters that no optimizer owns, under graphs of over {_MOST_NODES:,} nodes"]

    def subscriptions(self) -> Subscriptions:
        """Look at the graphs of some backwards and at the steps that follow."""
        return {
            BackwardStarted: self._before_backward,
            StepFinished: self._end_step,
            BackwardFinished: self._end_backward,
            OptimizerConstructed: self._take_up,
            ParameterGroupAdded: self._take_up,
        }

    def _take_up(self, event: OptimizerConstructed | ParameterGroupAdded) -> None:
        """Take back what was said of parameters that an optimizer owns from now on."""
        owned = self._windows.of(event.optimizer).ids
        self._orphans = {key: each for key, each in self._orphans.items() if key not in owned}
        self._wasted.take_up(owned)
        self._occurrences = [
            occurrence
            for occurrence in self._occurrences
            if occurrence.stale or not occurrence.is_owned_by(owned)
        ]

    def _end_backward(self, event: BackwardFinished) -> Attention | None:
        """Begin to doubt where an optimizer's parameters get fewer gradients than they did."""
        total = len(event.created) + len(event.accumulated)
        is_usual = self._totals.get(event.site) == total
        self._totals[event.site] = total
        if event.failed or (is_usual and not self._unsettled):
            return None
        self._unsettled = False
        got = {id(each) for each in (*event.created, *event.accumulated)}
        fewer = False
        for window in self._windows.all():
            filled = len(got & window.ids)
            if total and not filled:
                continue  # it is the turn of another optimizer
            most, last = self._filled.get(window, (0, -1))
            if filled < most and filled != last:
                # Twice the same: where the layers that run are chosen anew each time, that is rare.
                self._unsettled = True
                self._filled[window] = most, filled
                continue
            fewer = fewer or filled < most
            self._filled[window] = filled, filled
        return self._begin_to_doubt() if fewer else None

    def _begin_to_doubt(self) -> Attention | None:
        """Look closely for some steps: some parameters were replaced, or have no part this time."""
        if self._is_in_doubt() or self._doubts == _MOST_DOUBTS or not self._ran:
            return None
        windows = self._windows.all()
        self._doubts += 1
        self._doubt_ends = self._recorder.state.step + len(windows) * (_STEPS_IN_DOUBT + 1)
        self._doubted = {window: window.steps for window in windows}
        # What the model that there was has reached may be reached no more.
        self._reached.clear()
        return Attention.AWAKE

    def _is_in_doubt(self) -> bool:
        return self._recorder.state.step <= self._doubt_ends

    def _before_backward(self, event: BackwardStarted) -> int | None:
        step = self._recorder.state.step
        if step & (step - 1) and not self._is_in_doubt():
            return _next_power_of_two(step)
        windows = self._windows.all()
        if not windows:
            return None
        owned = set().union(*(window.ids for window in windows))
        roots = [root.grad_fn for root in event.roots if root.grad_fn is not None]
        order = _in_order(roots)
        if order is None:
            self._cut_short = True
            return None
        leaves = [
            leaf
            for node in order
            if not node.next_functions and (leaf := getattr(node, "variable", None)) is not None
        ]
        if not event.accumulates:
            self._wasted.ask(leaves)
            return None
        self._ran = True
        self._wasted.begin(event.site, leaves, owned, step)
        if self._scans < _MOST_SCANS:
            self._note_orphans(event, order, leaves, owned)
        return None

    def _note_orphans(
        self, event: BackwardStarted, order: list[Node], leaves: list[Tensor], owned: set[int]
    ) -> None:
        orphans = []
        for leaf in leaves:
            self._reached.add(id(leaf))
            if id(leaf) in owned:
                continue
            if isinstance(leaf, nn.Parameter) and id(leaf) not in self._told:
                orphans.append(leaf)
        for leaf in orphans:
            known = self._orphans.get(id(leaf))
            if known is None or known.parameter() is not leaf:
                self._orphans[id(leaf)] = _Orphan(leaf, event.site, self._recorder.state.step)
        if orphans:
            for identity in _after_owned(order, owned):
                if identity in self._orphans:
                    self._orphans[identity].after_owned = True

    def _end_step(self, event: StepFinished) -> int | None:
        if not self._ran or self._scans >= _MOST_SCANS:
            return None
        rare = event.number > _FIRST_STEPS and event.number & (event.number - 1)
        if rare and not self._orphans and not self._is_in_doubt():
            return _next_power_of_two(event.number)
        self._look(event)
        return None

    def _look(self, event: StepFinished) -> None:
        window = self._windows.stepped
        steps = window.steps
        in_doubt = self._is_in_doubt() and steps - self._doubted.get(window, steps) > 0
        if in_doubt:
            if steps - self._doubted[window] != _STEPS_IN_DOUBT:
                return
        elif steps < _STEPS_TO_BE_SURE or (steps > _FIRST_STEPS and (steps - 1) & (steps - 2)):
            return
        orphans = [each for each in self._orphans.values() if self._is_untouched(each)]
        never: list[Tensor] = [
            parameter
            for parameter in window.parameters()
            if parameter.grad is None
            and parameter.requires_grad
            and isinstance(parameter, nn.Parameter)
            and id(parameter) not in self._reached
            and id(parameter) not in self._told
        ]
        known = self._recorder.optimizers.parameter_modules
        if orphans or not all(map(known.has, never)):
            self._scan(window, event, orphans, never)
        elif never:
            self._scans += 1  # All are at home: a search would say no more.

    def _is_untouched(self, orphan: _Orphan) -> bool:
        parameter = orphan.parameter()
        if parameter is None or parameter.grad is None or orphan.content is None:
            return False
        old = self._recorder.state.step - orphan.step >= _STEPS_TO_BE_SURE - 1
        return old and same_content(orphan.content, parameter)

    def _scan(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        orphans: list[_Orphan],
        never: list[Tensor],
    ) -> None:
        """Ask once who holds what; this takes about a tenth of a second."""
        self._scans += 1
        heap = self._recorder.heap
        try:
            modules, elsewhere = _modules_and_owned(heap)
        except SearchEndedError:
            return
        modules_of = {
            id(each): module
            for module in modules
            for each in module._parameters.values()  # noqa: SLF001 - this module's own, without those of its children
        }
        for unused in never:
            if id(unused) in modules_of:
                self._recorder.optimizers.parameter_modules.note(unused, modules_of[id(unused)])
        lost = [
            each for each in orphans if (p := each.parameter()) is not None and id(p) in modules_of
        ]
        lost = [each for each in lost if id(each.parameter()) not in elsewhere]
        shapes = Counter(_shape(each.parameter()) for each in lost)
        stale = [each for each in never if id(each) not in modules_of]
        replaced = [each for each in stale if shapes[_shape(each)] > 0]
        twins = Counter(map(_shape, never))
        all_of_it = len(never) == len(window.ids)
        if all_of_it and not twins - shapes:
            stale = replaced = never
        if stale and (replaced or not _are_held(stale, event.optimizer, heap)):
            self._tell(window, event, stale, (), stale=True, replaced=bool(replaced))
        trained = window.ids & self._reached
        roots = _outermost(modules)
        emptied = any(not group["params"] for group in event.optimizer.param_groups)
        together: list[_Orphan] = []
        for each in lost:
            parameter = each.parameter()
            if parameter is None:
                continue
            swapped = any(_shape(old)[1:] == _shape(parameter)[1:] for old in replaced)
            owner = modules_of[id(parameter)]
            same_model = any(
                id(parameter) in mine and not mine.isdisjoint(trained) for mine in roots
            )
            if (replaced and (same_model or all_of_it)) or (
                (same_model or emptied) and owner.training and (each.after_owned or swapped)
            ):
                together.append(each)
        if together:
            found = [p for each in together if (p := each.parameter()) is not None]
            names = _names(modules, found)
            self._tell(
                window,
                event,
                found,
                names,
                stale=False,
                replaced=bool(replaced),
                emptied=emptied,
                backward=together[0].backward,
            )

    def _tell(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        parameters: Iterable[Tensor],
        names: tuple[str, ...],
        *,
        stale: bool,
        replaced: bool,
        emptied: bool = False,
        backward: CallSite | None = None,
    ) -> None:
        listed = tuple(parameters)
        self._told.update(map(id, listed))
        if stale:
            self._recorder.optimizers.replaced.update(map(id, listed))
        else:
            self._wasted.leave_out(set(map(id, listed)))
        for each in listed:
            self._orphans.pop(id(each), None)
        self._occurrences.append(
            _Occurrence(
                stale=stale,
                kind=type(event.optimizer).__name__,
                made=window.constructed_at,
                stepped=event.site,
                backward=backward,
                names=names,
                parameters=tuple(weakref.ref(each) for each in listed),
                count=len(listed),
                replaced=replaced,
                emptied=emptied,
                step=event.number,
            )
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer, unless another has taken the parameters up."""
        return [
            *(_finding(occurrence) for occurrence in self._occurrences),
            *self._wasted.findings(),
        ]


def _next_power_of_two(number: int) -> int:
    return 1 << number.bit_length()


def _in_order(roots: list[Node]) -> list[Node] | None:
    """Return the nodes of these graphs, each after those that it depends on; None if too many."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _MOST_NODES:
            return None
        waiting.append((node, True))
        waiting.extend((child, False) for child, _ in node.next_functions if child is not None)
    return order


def _after_owned(order: list[Node], owned: set[int]) -> set[int]:
    """Return the leaves that meet, where they are used, what owned parameters have made."""
    trained: set[Node] = set()
    # What is nothing but a leaf under another name: a transposed weight.
    alias: dict[Node, int] = {}
    found: set[int] = set()
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        leaf = getattr(node, "variable", None)
        if leaf is not None and not children:
            if id(leaf) in owned:
                trained.add(node)
            else:
                alias[node] = id(leaf)
            continue
        if any(child in trained for child in children):
            trained.add(node)
            if "Compiled" not in type(node).__name__:
                found.update(alias[child] for child in children if child in alias)
        elif len(children) == 1 and children[0] in alias:
            alias[node] = alias[children[0]]
    return found


def _modules_and_owned(heap: Heap) -> tuple[list[nn.Module], set[int]]:
    """Return the modules there are, and what any optimizer owns, known to the audit or not."""
    modules = []
    owned: set[int] = set()
    for thing in heap.instances(nn.Module, Optimizer):
        if issubclass(type(thing), nn.Module):
            if "_parameters" in thing.__dict__:
                modules.append(thing)
        elif "param_groups" in thing.__dict__:
            owned.update(map(id, parameters_of(thing)))
    return modules, owned


def _are_held(parameters: Sequence[Tensor], optimizer: Optimizer, heap: Heap) -> bool:
    """Return whether the program may still use them without this optimizer, as far as asked."""
    containers = [optimizer.state, optimizer.param_groups, *optimizer.param_groups]
    containers += [group["params"] for group in optimizer.param_groups]
    asked = (*parameters[:_ASKED], parameters[-1])
    skip = {id(parameters), id(asked), *map(id, containers)}
    frames = RunningFrames()
    try:
        # Not in an expression of its own, whose frame would hold it too.
        for each in asked:
            if owner_of(each, frames, heap, skip=skip) is not None:
                return True
    finally:
        frames.forget()
    return heap.is_exhausted


def _names_of_unowned(heap: Heap, parameters: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of parameters, none where one is no module's or is an optimizer's."""
    try:
        modules, owned = _modules_and_owned(heap)
    except SearchEndedError:
        return ()
    if any(id(parameter) in owned for parameter in parameters):
        return ()
    names = _names(modules, parameters)
    return names if len(names) == len(parameters) else ()


def _outermost(modules: list[nn.Module]) -> list[set[int]]:
    """Return the parameters of each module that is in no other."""
    inner = {id(child) for module in modules for child in module.children()}
    return [set(map(id, module.parameters())) for module in modules if id(module) not in inner]


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)


def _names(modules: list[nn.Module], parameters: Sequence[Tensor]) -> tuple[str, ...]:
    wanted = set(map(id, parameters))
    inner = {id(child) for module in modules for child in module.children()}
    for module in modules:
        if id(module) not in inner:
            names = [name for name, each in module.named_parameters() if id(each) in wanted]
            if names:
                return tuple(names)
    return ()


def _finding(occurrence: _Occurrence) -> Finding:
    name, count = occurrence.kind, occurrence.count
    number = f"{count} parameter" if count == 1 else f"{count} parameters"
    site = occurrence.stepped if occurrence.made is None else occurrence.made
    evidence: dict[str, JSON] = {
        "count": count,
        "step": occurrence.step,
        "optimizer": name,
        "names": list(occurrence.names),
    }
    they_were = "it was" if count == 1 else "they were"
    they_have = "it has" if count == 1 else "they have"
    if occurrence.stale:
        return Finding.of(
            catalogue.STALE_PARAMETER,
            f"{name} owns {number} that no loss depends on and that the model that runs does not "
            f"have: {they_were} replaced or removed after the optimizer was made; expected the "
            "parameters of the model",
            detector="audit",
            location=location_of(site),
            related=related((location_of(occurrence.stepped), "this step skips them")),
            hint="make the optimizer after the model is complete",
            evidence=evidence,
        )
    which = f" ({listed(occurrence.names)})" if occurrence.names else ""
    hint = "make the optimizer after the model is complete, from all that is to be trained"
    if occurrence.replaced:
        why = f"; {name} still owns what {they_have} replaced"
    elif occurrence.emptied:
        why = f", and a group of {name} has no parameters at all"
        hint = "give each group a list: an iterator such as model.parameters() serves once only"
    else:
        why = f", though {name} trains other parameters of the same model"
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"backward() gives gradients to {number}{which} that no optimizer owns and nothing "
        f"changes{why}; expected an optimizer to own them, or requires_grad_(False)",
        detector="audit",
        severity=Severity.ERROR if occurrence.replaced else Severity.WARNING,
        location=location_of(site),
        related=related((location_of(occurrence.backward), "this backward fills them")),
        hint=hint,
        evidence=evidence,
    )
