"""Parameters that began as copies of trained ones and stay, while other copies follow theirs.

A target network, a teacher or a key encoder is a copy that nobody trains and that is brought up to
date: by a moving average, or as a whole now and then. A part that was added later, or the second of
two critics, is left out, and keeps the values of the beginning. Copies are known by their values:
nobody but the one who copied has them. Where no copy follows, it was made to stay, as a reference
or a teacher.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import Attention, SessionEnded, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.auditing.source_analysis.source import only_call_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.call_sites import CallSite  # noqa: TC004 - as above
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["CopyLeftBehindDetector"]

_FIRST_STEPS = 4
"""Steps before which copies are looked for; from then on, their values are compared in those that
are powers of two. A bound on cost."""

_ENOUGH = 2
"""Looks in which a copy had other values than in the one before. Chosen: the least that shows that
it follows, and was not set once."""

_MOST = 256
"""Copies that are followed. A bound on cost: some elements of each are read in each look."""

_SAMPLED = 32
"""Elements by which a copy is known, and its changes. A bound on cost."""


@dataclass(slots=True)
class _Values:
    """Some elements of a parameter, as they were last, and in how many looks they had changed."""

    reference: weakref.ref[Tensor]
    last: Tensor
    moves: int = 0

    def look(self) -> None:
        """Compare them with those of now."""
        parameter = self.reference()
        now = None if parameter is None else sample_of(parameter, _SAMPLED)
        if now is not None and now.shape == self.last.shape and now.device == self.last.device:
            self.moves += not torch.equal(now, self.last)
            self.last = now


@dataclass(slots=True)
class _Copy:
    """A parameter that no optimizer has, with the values of one that an optimizer has."""

    name: str
    original: str
    values: _Values
    trained: _Values
    written_at: CallSite | None = None


class CopyLeftBehindDetector:
    """Reports copy-left-behind (GCS414)."""

    def __init__(self, recorder: Recorder, leaves: LeafRecords, names: ParameterNames) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._names = names
        self._copies: dict[int, _Copy] = {}

    def subscriptions(self) -> Subscriptions:
        """Look for copies before the first steps, and at their values now and then."""
        return {StepStarted: self._begin_step, SessionEnded: self._end}

    def _begin_step(self, event: StepStarted) -> Attention | int | None:
        is_first = event.number < _FIRST_STEPS
        if not ops_are_recorded():
            without_user_modes(self._look, is_first)
        if is_first or self._copies:
            return next_looked_at(event.number)
        return Attention.ASLEEP

    def _end(self, _event: SessionEnded) -> None:
        if self._copies and not ops_are_recorded():
            without_user_modes(self._look, is_first=False)

    def _look(self, is_first: bool) -> None:
        for each in self._copies.values():
            each.values.look()
            each.trained.look()
            copy = each.values.reference()
            if each.written_at is None and copy is not None and each.values.moves:
                writes = self._recorder.write_log.since(0, copy)
                each.written_at = writes[-1].site if writes else None
        if is_first:
            self._look_for_copies()

    def _look_for_copies(self) -> None:
        """Take up the parameters without an optimizer that have the values of one with."""
        known = self._recorder.optimizers.known()
        of_optimizers = {id(parameter) for each in known for parameter in parameters_of(each)}
        owned: dict[torch.Size, list[tuple[str, Tensor]]] = {}
        others: list[tuple[str, Tensor]] = []
        for name, parameter in self._parameters():
            if id(parameter) in of_optimizers:
                owned.setdefault(parameter.shape, []).append((name, parameter))
            elif id(parameter) not in self._copies and not _is_reached(self._leaves, parameter):
                others.append((name, parameter))
        samples: dict[int, Tensor | None] = {}
        for name, parameter in others[:_MOST]:
            mine = sample_of(parameter, _SAMPLED) if parameter.shape in owned else None
            if mine is None or bool((mine == mine[0]).all()):
                continue  # as biases that begin with zeros, which says nothing
            for original, trained in owned[parameter.shape]:
                if id(trained) not in samples:
                    samples[id(trained)] = sample_of(trained, _SAMPLED)
                theirs = samples[id(trained)]
                if theirs is not None and _are_alike(mine, theirs):
                    self._copies[id(parameter)] = _Copy(
                        name,
                        original,
                        _Values(weakref.ref(parameter), mine),
                        _Values(weakref.ref(trained), theirs),
                    )
                    break

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of the models that were called, or that running functions know."""
        seen: set[int] = set()
        for module in (*self._names.modules(), *self._leaves.modules()):
            if not any(id(each) not in seen for each in module.parameters()):
                continue
            root = variable_of(module) or type(module).__name__
            for path, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield written(f"{root}.{path}"), parameter

    def findings(self) -> list[Finding]:
        """Return one finding, for all copies that stay."""
        following = [each for each in self._copies.values() if each.values.moves >= _ENOUGH]
        left = [
            each
            for each in self._copies.values()
            if not each.values.moves and each.trained.moves >= _ENOUGH
        ]
        return [_finding(left, following)] if left and following else []


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether these are the same but for the rounding of a first average of the two."""
    same_kind = one.device == other.device and one.dtype == other.dtype
    return same_kind and torch.allclose(one, other, rtol=1e-5, atol=0.0)


def _is_reached(leaves: LeafRecords, parameter: Tensor) -> bool:
    """Return whether a backward has reached it, so that it is to be trained, by whomever."""
    record = leaves.of(parameter)
    return record is not None and bool(record.reached)


def _finding(left: list[_Copy], following: list[_Copy]) -> Finding:
    sites = [each.written_at for each in following if each.written_at is not None]
    names = tuple(each.name for each in left)
    originals = [each.original for each in left]
    where = location_of(sites[0]) if sites else None
    many = len(left) > 1
    doubts = [] if len(following) >= len(left) else ["fewer copies follow than stay"]
    return Finding.of(
        catalogue.COPY_LEFT_BEHIND,
        f"{listed(names)} began as {'copies' if many else 'a copy'} of {listed(originals)}, which "
        f"{'are' if many else 'is'} trained since, and {'stay' if many else 'stays'} as "
        f"{'they were' if many else 'it was'}, while {len(following)} other "
        f"{'copies follow' if len(following) > 1 else 'copy follows'}, as "
        f"{listed([each.name for each in following])}; expected all to be brought up to date",
        detector="audit",
        location=where,
        related=related((only_call_of(where), "from here"), apart_from=where),
        doubts=doubts,
        hint="bring the parameters of the whole copy up to date, not of a part of it",
        evidence={"left": names, "following": tuple(each.name for each in following)},
    )
