"""Copies of weights that were made before a state was loaded, and are updated after it.

Slow weights, a moving average or a target network are made with the model, from its initial
weights. A checkpoint or pretrained weights are then loaded into the model alone, and the copies
go on from weights that nobody trained: they are what is averaged with, pulled to or evaluated.

Of the largest parameters some elements are taken down before a load, unless they have been trained
by then: those are taken out for an average of them, and put back. Where at the next step any
tensor of the program still has them, and the parameter itself has others, the copy is followed: one
that never changes was kept on purpose, as the beginning to measure from or to go back to. What an
optimizer owns or a backward reaches is a network of its own.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    LoadStarted,
    SessionEnded,
    StateLoaded,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.referrers import RunningFrames, owner_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.auditing.saved_tensors.checksums import read_answers
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch import nn  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["CopiedBeforeLoadDetector"]

_OF_A_LINE = 2
"""Loads on one line that are followed. A bound on cost: a target network is loaded again and
again."""

_MOST = 16
"""Loads that are followed in a run. A bound on cost: each may ask for a search of the heap."""

_WEIGHTS = 4
"""Parameters of a load that are followed, the largest. A bound on cost."""

_SAMPLED = 64
"""Elements by which a copy is known. A bound on cost."""

_CANDIDATES = 64
"""Tensors of the same shape that are compared with one parameter. A bound on cost."""

_STEPS = 256
"""Steps in which a copy is followed; those that are powers of two are looked at. Chosen: slow
weights and target networks are updated more often."""

_AWAY = 0.05
"""Part of the way from the old weight to the new one from which on it has been left. Chosen: far
more than the steps between two looks go."""


@dataclass(slots=True)
class _Weight:
    """A parameter, and what it had before a load.

    Attributes:
        name: in the module.
        before: some of its elements.
        copies: the tensors that still had them at the first step.
    """

    name: str
    before: Tensor
    copies: list[weakref.ref[Tensor]] = field(default_factory=list)


@dataclass(slots=True)
class _Load:
    """A load that is followed.

    Attributes:
        site: where.
        module: into what.
        name: what the program calls that.
        weights: of it.
        loaded: whether it is over.
        steps: how many have begun since.
        holder: what the program calls a copy.
    """

    site: CallSite | None
    module: weakref.ref[nn.Module]
    name: str
    weights: list[_Weight]
    loaded: bool = False
    steps: int = 0
    holder: str | None = None


class CopiedBeforeLoadDetector:
    """Reports loaded-and-overwritten (GCS415) of copies that were made before."""

    def __init__(self, recorder: Recorder, leaves: LeafRecords) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._loads: list[_Load] = []
        self._lines: Counter[CallSite | None] = Counter()
        self._followed = 0
        self._found: dict[CallSite | None, Finding] = {}

    def subscriptions(self) -> Subscriptions:
        """Take weights down before a load, and look for their copies after it."""
        return {
            LoadStarted: self._begin_load,
            StateLoaded: self._end_load,
            StepStarted: self._begin_step,
            SessionEnded: self._end,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that loads."""
        return list(self._found.values())

    def _begin_load(self, event: LoadStarted) -> None:
        self._lines[event.site] += 1
        if self._lines[event.site] > _OF_A_LINE or self._followed >= _MOST or ops_are_recorded():
            return
        records = map(self._leaves.of, event.module.parameters())
        if any(record is not None and record.reached for record in records):
            return  # What was trained is taken out for others, as an average is, and put back.
        self._followed += 1
        weights = without_user_modes(_weights_of, event.module)
        if weights:
            name = variable_of(event.module) or type(event.module).__name__
            load = _Load(event.site, weakref.ref(event.module), name, weights)
            self._loads.append(load)

    def _end_load(self, event: StateLoaded) -> Attention:
        for load in self._loads:
            load.loaded = load.loaded or load.module() is event.module
        return Attention.AWAKE

    def _begin_step(self, _event: StepStarted) -> Attention | None:
        for load in self._loads:
            if not load.loaded:
                continue
            load.steps += 1
            if load.steps == 1:
                if not ops_are_recorded():
                    without_user_modes(self._look_for_copies, load)
                load.weights = [each for each in load.weights if each.copies]
            elif not load.steps & (load.steps - 1):
                self._look(load)
        self._loads = [each for each in self._loads if each.weights and each.steps <= _STEPS]
        return None if self._loads else Attention.ASLEEP

    def _end(self, _event: SessionEnded) -> None:
        for load in self._loads:
            if load.steps:
                self._look(load)
        self._loads = []

    def _look_for_copies(self, load: _Load) -> None:
        """Find what has the values of before, where the parameter has others."""
        module = load.module()
        if module is None:
            load.weights = []
            return
        now = dict(module.named_parameters())
        left = [
            (each, parameter)
            for each in load.weights
            if (parameter := now.get(each.name)) is not None and parameter.numel()
        ]
        changed = _are_same([(each.before, parameter) for each, parameter in left])
        left = [pair for pair, same in zip(left, changed, strict=True) if same is False]
        if not left:
            load.weights = []
            return
        found: dict[torch.Size, list[Tensor]] = {}
        shapes = {parameter.shape for _, parameter in left}
        with suppress(SearchEndedError):
            for tensor in self._recorder.heap.instances(Tensor):
                if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.shape in shapes:
                    found.setdefault(tensor.shape, []).append(tensor)
        for each, parameter in left:
            others = [
                tensor
                for tensor in found.get(parameter.shape, ())
                if tensor is not parameter and self._may_be_copy(tensor, parameter)
            ][:_CANDIDATES]
            same = _are_same([(each.before, tensor) for tensor in others])
            copies = [tensor for tensor, is_same in zip(others, same, strict=True) if is_same]
            each.copies = [weakref.ref(tensor) for tensor in copies]
            if copies and load.holder is None:
                load.holder = self._name_of(copies[0], {id(found), id(others), id(copies)})
            del others, copies
        found.clear()

    def _may_be_copy(self, tensor: Tensor, parameter: Tensor) -> bool:
        record = self._leaves.of(tensor)
        is_trained = record is not None and bool(record.owners or record.reached)
        return not (
            is_trained
            or tensor.grad_fn is not None
            or tensor.dtype != parameter.dtype
            or tensor.device != parameter.device
            or self._recorder.optimizers.owners(tensor)
        )

    def _name_of(self, tensor: Tensor, skip: set[int]) -> str | None:
        frames = RunningFrames()
        try:
            owner = owner_of(tensor, frames, self._recorder.heap, skip=skip)
        finally:
            frames.forget()
        return None if owner is None else owner.path or owner.name

    def _look(self, load: _Load) -> None:
        """Tell of copies that have changed since, and are no weights of another network."""
        pairs: list[tuple[_Weight, Tensor]] = []
        gone: list[_Weight] = []
        for each in load.weights:
            living = [tensor for one in each.copies if (tensor := one()) is not None]
            gone += [] if living else [each]
            pairs += [(each, one) for one in living if self._may_be_copy(one, one)]
        if ops_are_recorded():
            return
        same = without_user_modes(_are_same, [(each.before, one) for each, one in pairs])
        moved = [each for (each, _), is_same in zip(pairs, same, strict=True) if is_same is False]
        if gone and not moved:
            moved = without_user_modes(self._replaced, load, gone)
            load.weights = [each for each in load.weights if each not in gone]
        if moved:
            load.weights = []
            self._found.setdefault(load.site, _finding(load, moved))

    def _replaced(self, load: _Load, gone: list[_Weight]) -> list[_Weight]:
        """Return the weights of which there is now what lies on the way from old to new."""
        module = load.module()
        now = {} if module is None else dict(module.named_parameters())
        tensors: list[Tensor] = []
        with suppress(SearchEndedError):
            tensors = self._recorder.heap.instances(Tensor)
        moved = []
        for each in gone:
            parameter = now.get(each.name)
            if parameter is None:
                continue
            others = [
                tensor
                for tensor in tensors
                if type(tensor) in (Tensor, torch.nn.Parameter)
                and tensor.shape == parameter.shape
                and tensor is not parameter
                and self._may_be_copy(tensor, parameter)
            ][:_CANDIDATES]
            if any(_is_between(each.before, one, parameter) for one in others):
                moved.append(each)
        return moved


def _weights_of(module: nn.Module) -> list[_Weight]:
    """Return the largest parameters whose values tell them from others."""
    found = sorted(
        (
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.dim() > 1 and parameter.is_floating_point()
        ),
        key=lambda each: each[1].numel(),
        reverse=True,
    )
    samples = [(name, sample_of(parameter, _SAMPLED)) for name, parameter in found[:_WEIGHTS]]
    known = [(name, sample) for name, sample in samples if sample is not None]
    differ = read_answers([(sample != sample[0]).any() for _, sample in known])
    return [
        _Weight(name, sample) for (name, sample), tells in zip(known, differ, strict=True) if tells
    ]


def _are_same(pairs: list[tuple[Tensor, Tensor]]) -> list[bool | None]:
    """Return of each pair whether the tensor has these elements; None where nobody can say."""
    samples = [(before, sample_of(tensor, _SAMPLED)) for before, tensor in pairs]
    answers = [
        None
        if now is None or now.shape != before.shape or now.device != before.device
        else (now == before).all()
        for before, now in samples
    ]
    read = iter(read_answers([each for each in answers if each is not None]))
    return [None if each is None else next(read) for each in answers]


def _is_between(before: Tensor, tensor: Tensor, parameter: Tensor) -> bool:
    """Return whether a tensor is an average of what a weight was and what it is."""
    here, there = sample_of(tensor, _SAMPLED), sample_of(parameter, _SAMPLED)
    if here is None or there is None or before.device != here.device:
        return False
    way, gone = (there - before).double(), (here - before).double()
    length = way.square().sum()
    if not bool(length > 0):
        return False
    part = (way * gone).sum() / length
    off = (gone - part * way).square().sum()
    return bool((part > 0) & (part < 1 - _AWAY) & (off < _AWAY**2 * length))


def _finding(load: _Load, moved: list[_Weight]) -> Finding:
    names = tuple(dict.fromkeys(written(f"{load.name}.{each.name}") for each in moved))
    copies = "copies of them" if len(names) > 1 else "a copy of it"
    holder = f" (`{load.holder}`)" if load.holder else ""
    where = location_of(load.site)
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{listed(names)} {'were' if len(names) > 1 else 'was'} loaded, and {copies} from before "
        f"the load{holder} still had the old values at the first step and were updated from "
        "them later; expected the copies to be loaded too, or made after the load",
        detector="audit",
        location=where,
        related=related(apart_from=where),
        hint="load the copies' own state as well, or make them from the weights that were loaded",
        evidence={"loaded": names, "copy": load.holder},
    )
