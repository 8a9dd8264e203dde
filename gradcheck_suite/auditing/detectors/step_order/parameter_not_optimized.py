"""Leaves that backward fills and nobody owns, and those that an optimizer owns in vain.

Both are read from the records of leaves. One that gets gradients in step after step, is the same
each time, belongs to no optimizer and never changes was forgotten: a head made after its optimizer,
a loss module of its own, a tensor that no module has registered, a layer that was thawed later on.
What may speak for intent (its module is in evaluation mode, all that is trained comes after it)
lowers the severity and is told.

One that an optimizer owns, that no backward reaches any more, and that no module has, was replaced
or removed, unless the program keeps it by itself, as a code for each image.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_frames
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.leaf_places import LeafPlace, places_of
from gradcheck_suite.auditing.object_names.module_tree import ModuleTree
from gradcheck_suite.auditing.object_names.referrers import RunningFrames, owner_of
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.auditing.source_analysis.assignments import (
    layers_made_in_forward,
    leaf_made_anew,
)
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import (
        FreshLeaves,
        LeafRecord,  # noqa: TC004 - nobody asks for the types of the fields
        LeafRecords,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.heap import Heap
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ParameterNotOptimizedDetector"]

_MOST_NODES = 20_000
"""Nodes of a graph that are put in order. A bound on cost, see ``MOST_NODES`` of
``reachable_parameters``; the report says that larger graphs were left out."""

_MOST_ORDERS = 12
"""Graphs that are put in order, in all. A bound on cost; what is trained below a leaf shows in the
first of each line."""

_MOST_SCANS = 4
"""Searches for who holds what, in all. A bound on cost: each takes about a tenth of a second."""

_STEPS_TO_BE_SURE = 3
"""Steps in which a leaf gets a gradient and stays as it is, or gets none, before it is told.
Chosen: an optimizer for it may come after the first step, and two may take turns."""

_STEPS_OF_A_LINE = 4
"""Steps in which a line fills nothing but such leaves before it is told that it trains nothing.
Chosen: one more, so that an optimizer made after the first steps is seen."""

_STEPS_IN_DOUBT = 4
"""Steps of an optimizer, since fewer parameters got gradients, that are looked at: those that it
takes to be sure, and one whose backward gave rise to the doubt."""

_MOST_DOUBTS = 4
"""How often fewer gradients than before are looked into. A bound on cost for models that choose
anew which layers run."""

_ASKED = 3
"""Stale parameters, from the first on, and the last, whose holders are asked for. A bound on cost:
each question is a search; what keeps codes in a list keeps all of them."""

_USED_UP = "give each group a list: an iterator such as model.parameters() serves once only"

_EVALUATION = "its module is in evaluation mode"
_BELOW = "nothing that is trained comes before it, as where a head is fine-tuned"
_APART = "nothing that is trained takes part in the losses that reach it"
_INPUT = "what the optimizers own is no module's: an input is optimized"
_VARIABLE = "it is no attribute of a module, and may be an input whose gradient is wanted"
_COPIES = "an optimizer owns parameters of the same shapes: these may be copies"
_HIDDEN = "a list of one is also how a helper is hidden from a model"


@dataclass(frozen=True, slots=True)
class _Maker:
    """An optimizer: its class, and where it was made and stepped."""

    kind: str
    made: CallSite | None
    stepped: CallSite | None

    @property
    def site(self) -> CallSite | None:
        return self.stepped if self.made is None else self.made


@dataclass(slots=True)
class _Unowned:
    """A leaf that gets gradients and that nobody owns.

    Attributes:
        record: what became of it.
        place: where it is kept; None for what no module has.
        name: what the program calls it.
        maker: the optimizer that would own it.
        beside_trained: whether others of its model are trained.
        beside_modules: whether anything that an optimizer owns is a module's.
        beside_plain: whether any of that is a tensor and no ``nn.Parameter``.
        replaced: whether the optimizer owns what it has replaced.
        emptied: whether the optimizer has a group without parameters.
        doubled: whether two optimizers own just the same.
    """

    record: LeafRecord
    place: LeafPlace | None
    name: str
    maker: _Maker
    beside_trained: bool
    beside_modules: bool
    beside_plain: bool
    replaced: bool = False
    emptied: bool = False
    doubled: bool = False

    @property
    def is_thawed(self) -> bool:
        return not self.record.asked

    def doubts(self) -> tuple[str, ...]:
        """Return what speaks against a mistake."""
        place, record = self.place, self.record
        if self.replaced:
            return ()
        if place is None:
            return () if record.is_parameter or self.beside_plain else (_VARIABLE,)
        doubts = []
        if not place.training:
            doubts.append(_EVALUATION)
        if place.kind == "container":
            if place.container is not None and place.container[1] == 1:
                doubts.append(_HIDDEN)
            return tuple(doubts)
        if not self.beside_modules:
            doubts.append(_INPUT)
        is_meant = place.kind == "computed" or self.is_thawed or self.emptied or self.doubled
        if not record.after_owned and not is_meant:
            doubts.append(_BELOW if self.beside_trained else _APART)
        return tuple(doubts)


@dataclass(slots=True)
class _Stale:
    maker: _Maker
    count: int
    step: int


@dataclass(slots=True)
class _Passing:
    shape: tuple[int, ...]
    steps: int
    backward: CallSite | None
    is_as_owned: bool


@dataclass(slots=True)
class _MadeAnew:
    maker: _Maker
    name: str | None
    location: Location | None
    backward: CallSite | None
    since: int
    steps: int


class ParameterNotOptimizedDetector:
    """Reports parameter-not-optimized, stale-parameter and unregistered-module (GCS404)."""

    def __init__(
        self, recorder: Recorder, windows: AccumulationWindows, leaves: LeafRecords
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._unowned: dict[int, _Unowned] = {}
        self._told: set[int] = set()
        self._stale: list[_Stale] = []
        self._made_anew: list[_MadeAnew] = []
        self._passing: dict[tuple[int, ...], _Passing] = {}
        self._emptied: dict[_Maker, int] = {}
        # By the line of a backward: an optimizer whose step came next, and that it does not reach.
        self._next: dict[CallSite | None, _Maker] = {}
        self._backward: CallSite | None = None
        self._scans = self._orders = 0
        self._cut_short = False
        # How many parameters got a gradient: by the line of a backward, the last time; by the
        # optimizer, at most and the last time.
        self._totals: dict[CallSite | None, int] = {}
        self._filled: weakref.WeakKeyDictionary[AccumulationWindow, tuple[int, int]]
        self._filled = weakref.WeakKeyDictionary()
        self._unsettled = False
        self._doubts = 0
        self._doubt_ends = -1

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
        }

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
        if fewer:
            self._begin_to_doubt()
        return None

    def _begin_to_doubt(self) -> None:
        """Look closely for some steps: some parameters were replaced, or have no part this time."""
        step = self._recorder.state.step
        if step > self._doubt_ends and self._doubts < _MOST_DOUBTS:
            self._doubts += 1
            self._doubt_ends = step + self._leaves.turns * (_STEPS_IN_DOUBT + 1)
            self._leaves.look_closely(_STEPS_IN_DOUBT + 1)

    def _before_backward(self, event: BackwardStarted) -> None:
        if not event.accumulates or not self._leaves.looks_at(self._recorder.state.iteration):
            return
        self._backward = event.site
        if self._orders == _MOST_ORDERS:
            return
        records = map(self._leaves.of, reachable_graph(event).leaves.values())
        if any(each is not None and _may_be_forgotten(each) for each in records):
            self._orders += 1
            self._look_below(event)

    def _look_below(self, event: BackwardStarted) -> None:
        """Find out which leaves meet what owned ones have made."""
        order = _in_order([root.grad_fn for root in event.roots if root.grad_fn is not None])
        if order is None:
            self._cut_short = True
            return
        leaves = {
            id(leaf): leaf
            for node in order
            if not node.next_functions and (leaf := getattr(node, "variable", None)) is not None
        }
        records = {key: self._leaves.of(leaf) for key, leaf in leaves.items()}
        owned = {key for key, each in records.items() if each is not None and each.owners}
        after = _after_owned(order, owned)
        for key, record in records.items():
            if record is not None and not record.owners:
                record.after_owned = bool(record.after_owned) or key in after

    def _end_step(self, event: StepFinished) -> None:
        backward, self._backward = self._backward, None
        if not self._leaves.looks_at(event.number):
            return
        window = self._windows.stepped
        records = [
            record for each in window.parameters() if (record := self._leaves.of(each)) is not None
        ]
        if backward is not None and all(each.reached_last != event.number for each in records):
            self._next.setdefault(backward, _maker(window, event.site))
        if any(not group["params"] for group in event.optimizer.param_groups):
            self._emptied.setdefault(_maker(window, event.site), event.number)
        if self._scans < _MOST_SCANS and self._recorder.state.backwards:
            self._look(window, event, records)

    def _look(
        self, window: AccumulationWindow, event: StepFinished, records: list[LeafRecord]
    ) -> None:
        forgotten = [
            each
            for each in self._leaves.all()
            if id(each) not in self._unowned and _is_forgotten(each)
        ]
        never = [
            leaf
            for each in records
            if each.missed >= _STEPS_TO_BE_SURE
            and (leaf := each.reference()) is not None
            and leaf.requires_grad
            and id(leaf) not in self._told
        ]
        known = self._recorder.optimizers.parameter_modules
        passing = [
            each
            for shape, each in self._leaves.fresh.items()
            if each.are_parameters
            and each.steps >= _STEPS_TO_BE_SURE
            and shape not in self._passing
        ]
        if forgotten or passing or not all(map(known.has, never)):
            tree = self._scan(window, event, forgotten, never)
            self._tell_of_passing(passing, tree)
        elif never:
            self._scans += 1  # All are at home: a search would say no more.

    def _scan(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        forgotten: list[LeafRecord],
        never: list[Tensor],
    ) -> ModuleTree:
        """Ask once who holds what; this takes about a tenth of a second."""
        self._scans += 1
        tree = ModuleTree(self._recorder.heap)
        if not tree.is_whole:
            return tree
        for unused in never:
            for module, _ in tree.owners(unused)[:1]:
                self._recorder.optimizers.parameter_modules.note(unused, module)
        lost = self._place(window, event, forgotten, tree)
        self._tell_of_stale(window, event, never, lost, tree)
        return tree

    def _tell_of_passing(self, passing: list[FreshLeaves], tree: ModuleTree) -> None:
        """Tell of parameters that come anew in each step, and that nothing has but the graph."""
        for fresh in passing if tree.is_whole else ():
            leaf = None if fresh.last is None else fresh.last()
            if leaf is None or id(leaf) in tree.owned or tree.owners(leaf):
                continue
            shape = tuple(leaf.shape)
            if not _names_of([leaf], self._recorder):
                owned = (tuple(each.shape) for each in self._recorder.optimizers.parameters())
                passing_by = _Passing(shape, fresh.steps, fresh.site, shape in owned)
                self._passing[shape] = passing_by

    def _place(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        forgotten: list[LeafRecord],
        tree: ModuleTree,
    ) -> list[_Unowned]:
        """Find out where forgotten leaves are kept, and which optimizer would own them."""
        living = {id(leaf): each for each in forgotten if (leaf := each.reference()) is not None}
        leaves = [
            leaf
            for key, each in living.items()
            if key not in tree.owned and (leaf := each.reference()) is not None
        ]
        places = places_of(leaves, tree)
        elsewhere = _names_of([leaf for leaf in leaves if id(leaf) not in places], self._recorder)
        trained = {
            id(root): set(map(id, root.parameters()))
            for root in {id(each): tree.outermost(each) for each in tree.modules}.values()
        }
        owned = self._recorder.optimizers.parameters()
        beside_modules = any(map(tree.owners, owned))
        beside_plain = not all(isinstance(each, nn.Parameter) for each in owned)
        windows = self._windows.all()
        doubled = len({each.ids for each in windows}) < len(windows)
        found = []
        for leaf in leaves:
            place = places.get(id(leaf))
            mine = set() if place is None else trained.get(place.root, set())
            owner = max(windows, key=lambda each: len(mine & each.ids), default=window)
            beside = bool(mine & owner.ids)
            maker = _maker(owner, event.site) if beside else _maker(window, event.site)
            name = elsewhere.get(id(leaf)) if place is None else place.name
            if name is None:
                continue
            optimizer = owner.optimizer() if beside else event.optimizer
            groups = [] if optimizer is None else optimizer.param_groups
            emptied = any(not group["params"] for group in groups)
            record = living[id(leaf)]
            each = _Unowned(record, place, name, maker, beside, beside_modules, beside_plain)
            each.emptied, each.doubled = emptied, doubled
            found.append(each)
        self._unowned.update((id(each.record), each) for each in found)
        return found

    def _tell_of_stale(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        never: list[Tensor],
        lost: list[_Unowned],
        tree: ModuleTree,
    ) -> None:
        shapes = Counter(each.record.shape for each in self._unowned.values())
        stale = [each for each in never if not tree.owners(each)]
        replaced = [each for each in stale if shapes[_shape(each)] > 0]
        all_of_it = len(never) == len(window.ids)
        if all_of_it and never and not Counter(map(_shape, never)) - shapes:
            stale = replaced = never
        if replaced:
            for each in lost:
                each.replaced = each.beside_trained or all_of_it
        anew = [each for each in stale if self._is_made_anew(each)]
        if anew and not replaced:
            self._tell_of_one_made_anew(window, event, anew[0])
            stale = [each for each in stale if not any(each is other for other in anew)]
        heap = self._recorder.heap
        if stale and (replaced or not _are_held(stale, event.optimizer, heap)):
            self._told.update(map(id, stale))
            self._recorder.optimizers.replaced.update(map(id, stale))
            self._stale.append(_Stale(_maker(window, event.site), len(stale), event.number))

    def _is_made_anew(self, leaf: Tensor) -> bool:
        """Return whether, since it is reached no more, another of its shape is in each step."""
        fresh, record = self._leaves.fresh.get(_shape(leaf)), self._leaves.of(leaf)
        if fresh is None or record is None:
            return False
        last = -1 if record.reached_last is None else record.reached_last
        return fresh.steps >= _STEPS_TO_BE_SURE - 1 and fresh.step > last

    def _tell_of_one_made_anew(
        self, window: AccumulationWindow, event: StepFinished, leaf: Tensor
    ) -> None:
        fresh: FreshLeaves = self._leaves.fresh[_shape(leaf)]
        record = self._leaves.of(leaf)
        last = None if fresh.last is None else fresh.last()
        self._told.add(id(leaf))
        self._recorder.optimizers.replaced.add(id(leaf))
        name = None
        if last is not None:
            name = _names_of([last], self._recorder).get(id(last))
        location = None
        if name is not None:
            codes = [frame.f_code for frame in user_frames()]
            location = leaf_made_anew(name, codes)
        reached = None if record is None else record.reached_last
        self._made_anew.append(
            _MadeAnew(
                _maker(window, event.site),
                name,
                location,
                fresh.site,
                0 if reached is None else reached + 1,
                fresh.steps,
            )
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each model, attribute, line or optimizer."""
        living = [each for each in self._unowned.values() if _is_forgotten(each.record)]
        wasted, rest = self._wasted(living)
        groups: dict[object, list[_Unowned]] = {}
        for each in rest:
            place = each.place
            if place is None:
                key: object = each.name
            elif place.kind == "registered":
                key = (place.root, each.doubts(), each.replaced)
            else:
                key = (place.module, place.attribute)
            groups.setdefault(key, []).append(each)
        found = [_finding_of(group) for group in groups.values()]
        empty = {each.maker for each in living if each.emptied}
        return [
            *map(_stale_finding, self._stale),
            *found,
            *map(_anew_finding, self._made_anew),
            *_passing_findings(list(self._passing.values())),
            *(self._wasted_finding(site, group) for site, group in wasted.items()),
            *(
                _empty_finding(maker, step)
                for maker, step in self._emptied.items()
                if maker not in empty
            ),
        ]

    def _wasted(
        self, living: list[_Unowned]
    ) -> tuple[dict[CallSite | None, list[_Unowned]], list[_Unowned]]:
        """Return the lines whose backwards fill only what nobody owns, and what others fill."""
        forgotten = {
            id(each.record): each
            for each in living
            if each.record.reached >= _STEPS_OF_A_LINE
            and each.place is not None
            and each.place.kind == "registered"
            and not each.replaced
        }
        lines: dict[CallSite | None, list[_Unowned] | None] = {}
        for record in self._leaves.all():
            each = forgotten.get(id(record))
            for site in record.sites:
                if each is None and not (record.returned and not record.is_parameter):
                    lines[site] = None
                group = lines.setdefault(site, [])
                if each is not None and group is not None:
                    group.append(each)
        wasted = {site: group for site, group in lines.items() if group}
        told = {id(each) for group in wasted.values() for each in group}
        return wasted, [each for each in living if id(each) not in told]

    def _wasted_finding(self, site: CallSite | None, group: list[_Unowned]) -> Finding:
        names = [each.name for each in group]
        number, them = _counted(len(names))
        maker = self._next.get(site)
        place = location_of(site)
        where = place if maker is None else location_of(maker.site)
        doubts = [_EVALUATION] if not any(e.place and e.place.training for e in group) else []
        return Finding.of(
            catalogue.PARAMETER_NOT_OPTIMIZED,
            f"this backward() gives gradients to {number} ({listed(names)}) and to nothing else, "
            f"and no optimizer owns {them} and nothing changes {them}, so that it trains nothing; "
            f"expected an optimizer to own {them}"
            if maker is None
            else f"{maker.kind} steps after a backward() that fills none of what it owns, but "
            f"{number} ({listed(names)}) that no optimizer owns; expected {maker.kind} to own "
            f"{them}",
            detector="audit",
            severity=Severity.WARNING,
            doubts=doubts,
            location=where,
            related=related((place, "this backward fills them"), apart_from=where),
            hint="give their optimizer the parameters of this model",
            evidence={"count": len(names), "names": names},
        )


def _maker(window: AccumulationWindow, stepped: CallSite | None) -> _Maker:
    return _Maker(type(window.optimizer()).__name__, window.constructed_at, stepped)


def _may_be_forgotten(record: LeafRecord) -> bool:
    """Return whether a leaf may turn out to be, and nothing that is trained was seen below it."""
    again = record.reached >= _STEPS_TO_BE_SURE - 1
    return again and not record.owners and not record.changed and not record.after_owned


def _is_forgotten(record: LeafRecord) -> bool:
    """Return whether a leaf gets gradients in step after step, and nobody owns or changes it."""
    return (
        not record.owners
        and record.reached >= _STEPS_TO_BE_SURE
        and record.changed is False
        and record.with_gradient + record.with_zeros > 0
        and record.asked_last
        # A tensor that `autograd.grad` goes through is an input.
        and (record.is_parameter or not record.returned)
    )


def _names_of(leaves: Sequence[Tensor], recorder: Recorder) -> dict[int, str]:
    """Return how the program reaches leaves that no module has, of the first few."""
    found: dict[int, str] = {}
    frames = RunningFrames()
    skip = {id(leaves)}
    try:
        for leaf in leaves[:_ASKED]:
            owner = owner_of(leaf, frames, recorder.heap, skip=skip)
            if owner is not None:
                found[id(leaf)] = owner.path or owner.name
    finally:
        frames.forget()
    return found


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


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _counted(count: int) -> tuple[str, str]:
    return ("1 parameter", "it") if count == 1 else (f"{count} parameters", "them")


def _stale_finding(stale: _Stale) -> Finding:
    maker = stale.maker
    number, _ = _counted(stale.count)
    they_were = "it was" if stale.count == 1 else "they were"
    return Finding.of(
        catalogue.STALE_PARAMETER,
        f"{maker.kind} owns {number} that no loss depends on and that the model that runs does not "
        f"have: {they_were} replaced or removed after the optimizer was made; expected the "
        "parameters of the model",
        detector="audit",
        location=location_of(maker.site),
        related=related((location_of(maker.stepped), "this step skips them")),
        hint="make the optimizer after the model is complete",
        evidence={"count": stale.count, "step": stale.step, "optimizer": maker.kind, "names": []},
    )


def _anew_finding(anew: _MadeAnew) -> Finding:
    what = "a leaf" if anew.name is None else f"`{anew.name}`"
    location = anew.location or location_of(anew.maker.site)
    kind = anew.maker.kind
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"{what} is another tensor in each step, and {kind} still owns the first, which no loss "
        f"depends on since step {anew.since}: nothing changes what is used; expected the leaf that "
        f"{kind} owns to be written to",
        detector="audit",
        location=location,
        related=related(
            (location_of(anew.maker.made), f"{kind} is made here"),
            (location_of(anew.backward), "this backward fills the new one"),
            apart_from=location,
        ),
        hint="with torch.no_grad(): leaf.copy_(new)",
        evidence={
            "count": anew.steps,
            "step": anew.since,
            "optimizer": kind,
            "names": [] if anew.name is None else [anew.name],
        },
    )


def _passing_findings(passing: list[_Passing]) -> list[Finding]:
    """Return one finding for all parameters that pass by."""
    if not passing:
        return []
    backward = location_of(passing[0].backward)
    files = [] if backward is None else [backward.path]
    made = layers_made_in_forward(files)
    where = made[0] if made else backward
    shapes = ", ".join("x".join(map(str, each.shape)) or "a scalar" for each in passing)
    number, _ = _counted(len(passing))
    are = "is" if len(passing) == 1 else "are"
    return [
        Finding.of(
            catalogue.PARAMETER_NOT_OPTIMIZED,
            f"{number} ({shapes}) {are} made anew in each step: backward() gives them gradients, "
            "and nothing but the graph has them, so that no optimizer owns them; expected layers "
            "that are made once, in the constructor",
            detector="audit",
            severity=Severity.WARNING,
            doubts=[_COPIES] if all(each.is_as_owned for each in passing) else [],
            location=where,
            related=related((backward, "this backward fills them"), apart_from=where),
            hint="make the layer in __init__, as an attribute",
            evidence={"count": len(passing), "names": [], "steps": passing[0].steps},
        )
    ]


def _empty_finding(maker: _Maker, step: int) -> Finding:
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"a group of {maker.kind} has no parameters; an iterator that was used up leaves it so",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(maker.site),
        hint=_USED_UP,
        evidence={"count": 0, "step": step, "optimizer": maker.kind, "names": []},
    )


def _finding_of(group: list[_Unowned]) -> Finding:
    first = group[0]
    place, maker = first.place, first.maker
    if place is not None and place.kind == "container":
        return _container_finding(place, group)
    names = [each.name for each in group]
    number, them = _counted(len(group))
    if not first.record.is_parameter:
        number = "a tensor" if len(group) == 1 else f"{len(group)} tensors"
    why, hint = _reason(first, len(group))
    location = place.location if place is not None else None
    location = location or location_of(maker.site)
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"backward() gives gradients to {number} ({listed(names)}) that no optimizer owns and "
        f"nothing changes{why}; expected an optimizer to own {them}, or requires_grad_(False)",
        detector="audit",
        severity=Severity.ERROR if first.replaced else Severity.WARNING,
        doubts=first.doubts(),
        location=location,
        related=related(
            (location_of(first.record.sites[0]), f"this backward fills {them}"),
            (location_of(maker.made), f"{maker.kind} is made here"),
            apart_from=location,
        ),
        hint=hint,
        evidence={
            "count": len(group),
            "step": first.record.first_seen,
            "optimizer": maker.kind,
            "names": names,
        },
    )


def _reason(first: _Unowned, count: int) -> tuple[str, str]:
    """Return why nobody owns it, as far as that is known, and what to do."""
    place, kind = first.place, first.maker.kind
    complete = "make the optimizer after the model is complete, from all that is to be trained"
    if place is not None and place.kind in {"attribute", "computed"}:
        is_made = "was computed from an nn.Parameter that nothing else has, and is none itself"
        is_made = is_made if place.kind == "computed" else "is a tensor and no nn.Parameter"
        why = f": `{place.attribute}` of {place.module} {is_made}, so that parameters() misses it"
        hint = f"self.{place.attribute} = nn.Parameter(tensor), of a tensor that is converted"
    elif first.replaced:
        have = "it has" if count == 1 else "they have"
        why, hint = f"; {kind} still owns what {have} replaced", complete
    elif first.emptied:
        why, hint = f", and a group of {kind} has no parameters at all", _USED_UP
    elif first.doubled:
        why, hint = ", and two optimizers own just the same", "give each its own network"
    elif first.is_thawed:
        were = "it was" if count == 1 else "they were"
        why = f": {were} frozen when {kind} was made, and thawed later"
        hint = "optimizer.add_param_group({'params': ...}) where it is thawed"
    elif first.beside_trained:
        why, hint = f", though {kind} trains other parameters of the same model", complete
    else:
        why, hint = "", "give an optimizer what is to be trained: [*model.parameters(), ...]"
    return why, hint


def _container_finding(place: LeafPlace, group: list[_Unowned]) -> Finding:
    kind = "list" if place.container is None else place.container[0]
    better = "ModuleDict" if kind == "dict" else "ModuleList"
    return Finding.of(
        catalogue.UNREGISTERED_MODULE,
        f"{len(group)} parameters in the {kind} `{place.attribute}` of {place.module} get "
        "gradients, but a plain container is not registered: no optimizer owns them, and "
        "parameters() and state_dict() miss them",
        detector="audit",
        doubts=group[0].doubts(),
        location=place.location,
        hint=f"self.{place.attribute} = nn.{better}(...)",
        evidence={
            "attribute": place.attribute,
            "container": kind,
            "parameters": len(group),
        },
    )
