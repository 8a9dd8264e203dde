"""A state that was kept to be loaded or saved, and is the memory of the parameters themselves.

``model.state_dict()``, ``parameter.data`` and ``tensor.detach()`` are no copies: what they return
changes with each step. To copy it back writes each element onto itself, a file that it is saved to
has the last weights, and a target network that shares the tensors of the network it follows is that
network.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import CopiedOntoItself, StateSaved, StateTaken
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.source_analysis.assignments import set_before_call
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["CopyOntoItselfDetector"]

_MOST_TAKEN = 20_000
"""Tensors of states that are remembered. A bound on memory: each takes some hundred bytes."""

_MOST_COPIES = 1_000
"""Copies onto themselves that are looked at. A bound on cost: each may take a search."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A tensor of a state that a module has given out."""

    tensor: weakref.ref[Tensor]
    kind: str
    sequence: int
    step: int
    version: int
    site: CallSite | None


@dataclass(slots=True)
class _Copies:
    """What one line has copied onto itself, as one line had taken it.

    Attributes:
        taken: where from; None where that was not seen.
        names: of the tensors, where they have any.
        tensors: which these were.
        times: in how many different steps of the run.
        since: how many steps were taken while the state was kept, at most.
        written: whether anything at all has changed the memory in between.
        kept: whether a container of the program has the source.
    """

    taken: _Taken | None
    names: list[str] = field(default_factory=list)
    tensors: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    since: int = 0
    written: bool = False
    kept: bool = False


@dataclass(slots=True)
class _Saved:
    """A state that one line had taken and another saved, and the most steps in between."""

    taken: _Taken
    since: int = 0


class CopyOntoItselfDetector:
    """Reports copy-onto-itself (GCS110)."""

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._taken: dict[int, _Taken] = {}
        self._copies: dict[tuple[CallSite | None, CallSite | None], _Copies] = {}
        self._saved: dict[tuple[CallSite | None, CallSite | None], _Saved] = {}
        self._looked_at = 0

    def subscriptions(self) -> Subscriptions:
        """Remember what states were given out when, and look at copies that change nothing."""
        return {StateTaken: self._take, CopiedOntoItself: self._copy, StateSaved: self._save}

    def _take(self, event: StateTaken) -> None:
        state = self._recorder.state
        if len(self._taken) > _MOST_TAKEN:
            living = {k: each for k, each in self._taken.items() if each.tensor() is not None}
            self._taken = living if len(living) < _MOST_TAKEN else {}
        kind = type(event.module).__name__
        sequence = state.clock.tick()
        for tensor in event.state.values():
            if isinstance(tensor, Tensor):
                now = sequence, state.optimizer_steps, version_of(tensor)
                self._taken[id(tensor)] = _Taken(weakref.ref(tensor), kind, *now, event.site)

    def _copy(self, event: CopiedOntoItself) -> None:
        self._looked_at += 1
        if self._looked_at > _MOST_COPIES:
            return
        state = self._recorder.state
        taken = self._taken.get(id(event.source))
        if taken is not None and taken.tensor() is not event.source:
            taken = None
        key = event.site, None if taken is None else taken.site
        copies = self._copies.get(key)
        if copies is None:
            copies = self._copies[key] = _Copies(taken)
        sequence = 0 if taken is None else taken.sequence
        since = self._steps_since(sequence, event.target)
        moved = 0 if taken is None else version_of(event.source) - taken.version
        if taken is not None and moved > 1 and not since:
            since = state.optimizer_steps - taken.step  # their optimizer is no more
        # The copy itself has moved the version by one.
        if since or moved > 1 or self._recorder.write_log.since(sequence, event.target):
            copies.written = True
            copies.since = max(copies.since, since)
        copies.steps.add(state.optimizer_steps)
        address = event.target.data_ptr()
        if address not in copies.tensors:
            copies.tensors.add(address)
            name = self._names.of(event.target)
            if name is not None:
                copies.names.append(name)
        if taken is None and not copies.kept:
            copies.kept = self._is_kept(event.source)

    def _save(self, event: StateSaved) -> None:
        """Look for a state that was taken before the last steps, in what was written to a file.

        One that was taken before the first step may be meant to follow the model.
        """
        for tensor in islice(_tensors_in(event.saved), _MOST_TAKEN):
            taken = self._taken.get(id(tensor))
            if taken is None or taken.tensor() is not tensor or not taken.step:
                continue
            since = self._steps_since(taken.sequence, tensor)
            if not since and version_of(tensor) > taken.version:
                since = self._recorder.state.optimizer_steps - taken.step
            if since:
                key = event.site, taken.site
                saved = self._saved.setdefault(key, _Saved(taken))
                saved.since = max(saved.since, since)
                return

    def _steps_since(self, sequence: int, target: Tensor) -> int:
        """Return how many steps have since been taken by optimizers that own this memory."""
        address = target.data_ptr()
        owning = {
            id(optimizer)
            for optimizer in self._recorder.optimizers.known()
            if any(_address(each) == address for each in parameters_of(optimizer))
        }
        return sum(
            step.sequence > sequence and id(step.optimizer()) in owning
            for step in self._recorder.state.recent_steps
        )

    def _is_kept(self, source: Tensor) -> bool:
        """Return whether a list, tuple or dictionary of the program has this tensor."""
        try:
            found = self._recorder.heap.referrers([source])
        except SearchEndedError:
            return False
        return any(type(each) in (list, dict) for each in found)

    def findings(self) -> list[Finding]:
        """Return one finding for each line that copies and each that had taken the state."""
        found = [_finding(site, copies) for (site, _), copies in self._copies.items()]
        told = {finding.location for finding in found if finding is not None}
        found += [
            _saved_too_late(site, saved)
            for (site, _), saved in self._saved.items()
            if location_of(saved.taken.site) not in told
        ]
        return [finding for finding in found if finding is not None]


def _tensors_in(saved: object, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in what was saved, and in containers in it."""
    if isinstance(saved, Tensor):
        yield saved
    elif depth and isinstance(saved, (Mapping, list, tuple)):
        for each in tuple(saved.values()) if isinstance(saved, Mapping) else tuple(saved):
            yield from _tensors_in(each, depth - 1)


def _address(tensor: Tensor) -> int | None:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # it has no memory of its own
        return None


def _finding(site: CallSite | None, copies: _Copies) -> Finding | None:
    taken = copies.taken
    many = len(copies.tensors)
    tensors = f"{many} tensor{'s' if many > 1 else ''}"
    if copies.names:
        listed = ", ".join(f"`{name}`" for name in copies.names[:2])
        tensors += f" ({listed}{', ...' if many > len(copies.names[:2]) else ''})"
    copied = location_of(site)
    evidence = {"tensors": many, "times": len(copies.steps), "steps_between": copies.since}
    if taken is not None and copies.written:
        what = f"{copies.since} steps" if copies.since else "writes"
        here = location_of(taken.site)
        return Finding.of(
            catalogue.COPY_ONTO_ITSELF,
            f"the state_dict() of {taken.kind} that was kept here is no copy: it shares the memory "
            f"of the parameters, and has followed the {what} since; to load it copied {tensors} "
            "onto themselves and changed nothing; expected the state as it was",
            detector="audit",
            location=here,
            related=related((copied, "copied onto itself here"), apart_from=here),
            hint="best = copy.deepcopy(model.state_dict())",
            evidence=evidence,
        )
    if taken is not None:
        if len(copies.steps) < 2:  # noqa: PLR2004 - the least that shows steps in between
            return None
        return Finding.of(
            catalogue.COPY_ONTO_ITSELF,
            f"{tensors} were copied onto themselves here, after {len(copies.steps)} different "
            "steps: what is loaded and what it is loaded into share their memory, so that they are "
            "always the same; expected two sets of tensors",
            detector="audit",
            severity=Severity.WARNING,
            location=copied,
            related=related((location_of(taken.site), "taken here"), apart_from=copied),
            hint="make the other one a copy: target = copy.deepcopy(model)",
            evidence=evidence,
        )
    if not copies.written:
        return None
    doubts = [] if copies.kept else ["the source is no tensor that was kept"]
    where = (None if copied is None else set_before_call(copied)) or copied
    at = "here" if where is copied else "later"
    return Finding.of(
        catalogue.COPY_ONTO_ITSELF,
        f"{tensors} were copied onto themselves {at}, which changes nothing: what was to be put "
        "back shares their memory and has followed every change; expected a copy of what they were",
        detector="audit",
        severity=Severity.WARNING,
        doubts=doubts,
        location=where,
        related=related((copied, "copied onto itself here"), apart_from=where),
        hint="keep tensor.detach().clone(), not tensor.data or tensor.detach()",
        evidence=evidence,
    )


def _saved_too_late(site: CallSite | None, saved: _Saved) -> Finding:
    here = location_of(saved.taken.site)
    return Finding.of(
        catalogue.COPY_ONTO_ITSELF,
        f"the state_dict() of {saved.taken.kind} that was kept here is no copy: it shares the "
        f"memory of the parameters, and had followed {saved.since} more steps when torch.save() "
        "wrote it; expected the state as it was",
        detector="audit",
        severity=Severity.WARNING,
        location=here,
        related=related((location_of(site), "saved here"), apart_from=here),
        hint="best = copy.deepcopy(model.state_dict()), or save it at once",
        evidence={"steps_between": saved.since},
    )
