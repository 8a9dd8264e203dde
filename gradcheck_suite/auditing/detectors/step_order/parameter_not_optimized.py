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
from typing import TYPE_CHECKING

from torch import nn

from gradcheck_suite.auditing.call_sites import CallSite, user_frames
from gradcheck_suite.auditing.detectors.reachable_parameters import (
    MOST_NODES,
    in_order,
    leaves_after,
)
from gradcheck_suite.auditing.detectors.step_order.unowned_leaves import (
    Emptied,
    MadeAnew,
    Maker,
    Passing,
    Stale,
    Unowned,
    anew_finding,
    empty_finding,
    finding_of,
    passing_findings,
    stale_finding,
    wasted_finding,
)
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.leaf_places import places_of
from gradcheck_suite.auditing.object_names.module_tree import ModuleTree
from gradcheck_suite.auditing.object_names.referrers import RunningFrames, owner_of
from gradcheck_suite.auditing.source_analysis.assignments import (
    leaf_made_anew,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import (
        FreshLeaves,
        LeafRecord,
        LeafRecords,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.heap import Heap
    from gradcheck_suite.auditing.object_names.leaf_places import LeafPlace
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Finding

__all__ = ["ParameterNotOptimizedDetector"]

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


class ParameterNotOptimizedDetector:
    """Reports parameter-not-optimized, stale-parameter and unregistered-module (GCS404)."""

    def __init__(
        self, recorder: Recorder, windows: AccumulationWindows, leaves: LeafRecords
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._unowned: dict[int, Unowned] = {}
        self._told: set[int] = set()
        self._stale: list[Stale] = []
        self._made_anew: list[MadeAnew] = []
        self._passing: dict[tuple[int, ...], Passing] = {}
        self._emptied: dict[Maker, Emptied] = {}
        # By the line of a backward: an optimizer whose step came next, and that it does not reach.
        self._next: dict[CallSite | None, Maker] = {}
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
        return [f"parameters that no optimizer owns, under graphs of over {MOST_NODES:,} nodes"]

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
        if not event.accumulates or not self._leaves.is_looking:
            return
        self._backward = event.site
        if self._orders == _MOST_ORDERS:
            return
        if any(map(_may_be_forgotten, self._leaves.unowned)):
            self._orders += 1
            self._look_below(event)

    def _look_below(self, event: BackwardStarted) -> None:
        """Find out which leaves meet what owned ones have made."""
        order = in_order([root.grad_fn for root in event.roots if root.grad_fn is not None])
        if order is None:
            self._cut_short = True
            return
        leaves = {
            id(leaf): leaf
            for node in order
            if not node.next_functions and (leaf := getattr(node, "variable", None)) is not None
        }
        of, standing_for = self._leaves.of, self._leaves.standing_for
        records = {key: of(standing_for(leaf)) for key, leaf in leaves.items()}
        owned = {key for key, each in records.items() if each is not None and each.owners}
        after = leaves_after(order, owned)
        for key, record in records.items():
            if record is not None and not record.owners:
                record.after_owned = bool(record.after_owned) or key in after

    def _end_step(self, event: StepFinished) -> None:
        backward, self._backward = self._backward, None
        if not self._leaves.is_looking:
            return
        window = self._windows.stepped
        records = self._leaves.stepped
        if backward is not None and all(each.reached_last != event.number for each in records):
            self._next.setdefault(backward, _maker(window, event.site))
        if any(not group["params"] for group in event.optimizer.param_groups):
            emptied = Emptied(event.number, self._orphans(event.number))
            maker = _maker(window, event.site)
            known = self._emptied.setdefault(maker, emptied)
            if len(known.orphans) < len(emptied.orphans):
                self._emptied[maker] = emptied
        if self._scans < _MOST_SCANS and self._recorder.state.backwards:
            self._look(window, event, records)

    def _orphans(self, step: int) -> tuple[str, ...]:
        """Return what has a gradient in this step and was owned by optimizers that are no more."""
        owned: set[int] = set().union(*(each.ids for each in self._windows.all()))
        return tuple(
            each.name or "a leaf"
            for each in self._leaves.all()
            if each.owners
            and each.reached_last == step
            and (leaf := each.reference()) is not None
            and id(leaf) not in owned
        )

    def _look(
        self, window: AccumulationWindow, event: StepFinished, records: list[LeafRecord]
    ) -> None:
        forgotten = [
            each
            for each in self._leaves.all()
            if not each.owners and id(each) not in self._unowned and _is_forgotten(each)
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
                passing_by = Passing(shape, fresh.steps, fresh.site, shape in owned)
                self._passing[shape] = passing_by

    def _place(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        forgotten: list[LeafRecord],
        tree: ModuleTree,
    ) -> list[Unowned]:
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
            id(root): {id(each): place for place, each in enumerate(root.parameters())}
            for root in {id(each): tree.outermost(each) for each in tree.modules}.values()
        }
        owned = self._recorder.optimizers.parameters()
        beside_modules = any(map(tree.owners, owned))
        beside_plain = not all(isinstance(each, nn.Parameter) for each in owned)
        windows = self._windows.all()
        doubled = len({each.ids for each in windows}) < len(windows)
        found = []
        # A graph has them in another order than their module.
        for leaf in sorted(leaves, key=lambda each: _rank(each, places, trained)):
            place = places.get(id(leaf))
            mine = set() if place is None else trained.get(place.root, {}).keys()
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
            each = Unowned(record, place, name, maker, beside, beside_modules, beside_plain)
            each.emptied, each.doubled = emptied, doubled
            found.append(each)
        self._unowned.update((id(each.record), each) for each in found)
        return found

    def _tell_of_stale(
        self,
        window: AccumulationWindow,
        event: StepFinished,
        never: list[Tensor],
        lost: list[Unowned],
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
            dimensions = {each.dim() for each in stale}
            for each in lost:
                # A head for another number of classes has other sizes.
                alike = len(each.record.shape) in dimensions
                each.replaced = each.replaced or (alike and each.beside_trained)
            self._told.update(map(id, stale))
            self._recorder.optimizers.replaced.update(map(id, stale))
            self._stale.append(Stale(_maker(window, event.site), len(stale), event.number))

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
            MadeAnew(
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
        groups: dict[object, list[Unowned]] = {}
        for each in rest:
            place = each.place
            if place is None:
                key: object = each.name
            elif place.kind == "registered":
                key = (place.root, each.doubts(), each.replaced)
            else:
                key = (place.module, place.attribute)
            groups.setdefault(key, []).append(each)
        found = [finding_of(group) for group in groups.values()]
        empty = {each.maker for each in living if each.emptied}
        return [
            *map(stale_finding, self._stale),
            *found,
            *map(anew_finding, self._made_anew),
            *passing_findings(list(self._passing.values())),
            *(wasted_finding(site, group, self._next.get(site)) for site, group in wasted.items()),
            *(
                empty_finding(maker, emptied)
                for maker, emptied in self._emptied.items()
                if maker not in empty
            ),
        ]

    def _wasted(
        self, living: list[Unowned]
    ) -> tuple[dict[CallSite | None, list[Unowned]], list[Unowned]]:
        """Return the lines whose backwards fill only what nobody owns, and what others fill."""
        forgotten = {
            id(each.record): each
            for each in living
            if each.record.reached >= _STEPS_OF_A_LINE
            and each.place is not None
            and each.place.kind == "registered"
            and not each.replaced
        }
        lines: dict[CallSite | None, list[Unowned] | None] = {}
        for record in self._leaves.all():
            each = forgotten.get(id(record))
            for site in record.sites:
                if each is None and not (record.returned and not record.is_parameter):
                    lines[site] = None
                group = lines.setdefault(site, [])
                if each is not None and group is not None:
                    group.append(each)
        ranks = {id(each): rank for rank, each in enumerate(living)}
        wasted = {
            site: sorted(group, key=lambda each: ranks[id(each)])
            for site, group in lines.items()
            if group
        }
        told = {id(each) for group in wasted.values() for each in group}
        return wasted, [each for each in living if id(each) not in told]


def _rank(
    leaf: Tensor, places: Mapping[int, LeafPlace], ranks: Mapping[int, Mapping[int, int]]
) -> int:
    """Return the place of a leaf among the parameters of its outermost module."""
    place = places.get(id(leaf))
    return 0 if place is None else ranks.get(place.root, {}).get(id(leaf), 0)


def _maker(window: AccumulationWindow, stepped: CallSite | None) -> Maker:
    return Maker(type(window.optimizer()).__name__, window.constructed_at, stepped)


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
