"""States of optimizers that do not carry over what they are kept for.

Where another parameter is put into a group, as when points are pruned, its state goes with the old
one, by whose identity it is kept, unless it is moved: the new parameter begins with none, and the
old state stays. In an optimizer of the program's own, an entry may be made anew in each step, so
that the moving average holds this step's gradient alone; or be written by something that was given
it as if it were a copy, so that the average is another multiple of itself after each step; or be
read and never written, as what was indexed by a tensor is a copy. These show in the numbers: what
an average with the rate of the group would be, from its values before the step and the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero, is_zero, sample_of
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import (
    Attention,
    SessionEnded,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.source_analysis.optimizer_source import (
    StateUses,
    replacement_of_parameters,
    state_uses,
)
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["LostStateDetector"]

_ENOUGH = 3
"""Steps looked at after an entry was made that all say the same. Chosen: of averages, two may agree
by chance where gradients hardly differ."""
_FEW = 3
"""Parameters of an optimizer whose states are looked at, the first that have enough elements. A
bound on cost: a rule that loses the state of one loses it of all."""
_SAMPLED = 64
"""Elements of each that are compared. A bound on cost."""
_LEAST = 4
"""Elements that a parameter must have: of fewer, any two are nearly multiples of one another."""
_EXACT = 1e-4
"""Of their size, so much may numbers differ that are the same but for rounding in float32. A sum is
held to a tenth of it, and counts where it shows in ten times as much."""
_OFF = 0.005
"""The least by which an average is another multiple of itself that is told. Chosen, far above
rounding, for which the sum is held to ``_EXACT``."""
_APART = 0.02
"""The least part of the old average that must not be along the gradient, or all averages of the two
are multiples of one another. Chosen."""


_SMALLEST = 0.01
"""The least option of a group that is taken for the rate of an average. Chosen: an average that
keeps less of what it was is hardly another than the gradient itself."""


class _Kind(NamedTuple):
    """An entry of the states of a class of optimizers."""

    optimizer: type
    key: str


@dataclass(slots=True)
class _Entry:
    """What was seen of an entry.

    Attributes:
        site: where the optimizer stepped.
        options: of the first parameter group that was looked at.
        looks: after how many steps it was looked at.
        seen: how often then, for each parameter whose gradient was not zero.
        found: of what kind it was then: "anew", "scaled", "zero", or "" for none.
        beside: how often another entry of the same parameter was not zero.
        rate: the option of the group that the average is made with.
        factors: of what size the average was, of what it would be.
    """

    site: CallSite | None
    options: Mapping[str, Any]
    looks: int = 0
    seen: int = 0
    found: Counter[str] = field(default_factory=Counter)
    beside: int = 0
    rate: float = 0.0
    factors: list[float] = field(default_factory=list)


class LostStateDetector:
    """Reports optimizer-made-anew (GCS319), no-effect (GCS318) and GCS112 of states."""

    def __init__(self, optimizers: Optimizers, leaves: LeafRecords) -> None:
        self._optimizers = optimizers
        self._leaves = leaves
        self._entries: dict[_Kind, _Entry] = {}
        self._before: list[tuple[Tensor, dict[str, Tensor]]] = []
        self._sizes: dict[int, int] = {}
        self._left: dict[str, list[int]] = {}
        self._left_at: dict[str, CallSite | None] = {}
        self._ended = False

    def subscriptions(self) -> Subscriptions:
        """Look at the states before and after some steps, and at how many there are."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            SessionEnded: self._end,
        }

    def _end(self, _event: SessionEnded) -> None:
        self._before = []
        self._ended = True

    def _begin_step(self, event: StepStarted) -> Attention | int | None:
        self._before = []
        self._ended = False
        if self._leaves.is_looking:
            if not _is_of_torch(type(event.optimizer)):
                without_user_modes(self._look, event.optimizer)
            return Attention.AWAKE
        return next_looked_at(event.number) if self._leaves.turns == 1 else None

    def _look(self, optimizer: Optimizer) -> None:
        if ops_are_recorded():
            return
        for parameter in _first_with_states(optimizer):
            samples = {
                key: sample
                for key, tensor in _averages(optimizer, parameter)
                if (sample := sample_of(tensor, _SAMPLED)) is not None
            }
            self._before.append((parameter, samples))

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._leaves.is_looking:
            return Attention.ASLEEP
        number = self._optimizers.number_of(event.optimizer)
        size = len(getattr(event.optimizer, "state", ()))
        if size > self._sizes.get(number, size):
            self._look_for_left(event, self._sizes[number])
        self._sizes[number] = size
        before, self._before = self._before, []
        if before:
            without_user_modes(self._compare, event, before)
        return None

    def _look_for_left(self, event: StepFinished, known: int) -> None:
        """Look for states of parameters that others have come for, which have a new state."""
        optimizer = event.optimizer
        owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
        states = list(optimizer.state.items())
        left = sum(_has_tensors(state) for one, state in states[:known] if id(one) not in owned)
        new = sum(_has_tensors(state) for one, state in states[known:] if id(one) in owned)
        if left and new:
            kind = type(optimizer).__name__
            self._left.setdefault(kind, []).append(new)
            self._left_at.setdefault(kind, event.site)

    def _compare(self, event: StepFinished, before: list[tuple[Tensor, dict[str, Tensor]]]) -> None:
        if ops_are_recorded():
            return
        optimizer = event.optimizer
        groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
        looked_at: set[_Kind] = set()
        for parameter, samples in before:
            group = groups.get(id(parameter))
            if group is None or not is_nonzero(parameter.grad):
                continue
            now = dict(_averages(optimizer, parameter))
            zeros = {key for key in samples if key in now and is_zero(now[key])}
            for key, old in samples.items():
                if key not in now:
                    continue
                kind = _Kind(type(optimizer), key)
                entry = self._entries.setdefault(kind, _Entry(event.site, group))
                looked_at.add(kind)
                entry.seen += 1
                entry.beside += len(zeros) < len(samples)
                new = sample_of(now[key], _SAMPLED)
                gradient = _strided(parameter.grad)
                if key in zeros:
                    entry.found["zero"] += 1
                elif new is not None and gradient is not None:
                    law = _law(old, gradient, new, _rates(group))
                    entry.found[law.kind] += 1
                    entry.rate = law.rate or entry.rate
                    entry.factors.append(law.factor)
        for kind in looked_at:
            self._entries[kind].looks += 1

    def findings(self) -> list[Finding]:
        """Return one finding for each entry of a class, and one for each class that loses some."""
        if not self._ended:
            return []
        found = [
            _finding(kind, entry, what)
            for kind, entry in self._entries.items()
            for what in ("anew", "scaled", "zero")
            if entry.looks >= _ENOUGH and entry.found[what] == entry.seen
        ]
        lost = [
            _left_behind(kind, counts, self._left_at[kind]) for kind, counts in self._left.items()
        ]
        return [*(each for each in found if each is not None), *lost]


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim")


def _first_with_states(optimizer: Optimizer) -> Iterator[Tensor]:
    found = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            is_used = parameter.grad is not None and parameter.numel() >= _LEAST
            if found < _FEW and is_used and any(_averages(optimizer, parameter)):
                found += 1
                yield parameter


def _averages(optimizer: Optimizer, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the entries of a parameter's state that have an element for each of its own."""
    states = getattr(optimizer, "state", {})
    state = states.get(parameter)
    for key, value in state.items() if isinstance(state, Mapping) else ():
        is_like_it = isinstance(value, Tensor) and value.shape == parameter.shape
        if isinstance(key, str) and is_like_it and value.is_floating_point():
            yield key, value


def _has_tensors(state: object) -> bool:
    return isinstance(state, Mapping) and any(isinstance(each, Tensor) for each in state.values())


def _strided(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None or gradient.is_sparse else sample_of(gradient, _SAMPLED)


def _rates(group: Mapping[str, Any]) -> list[float]:
    """Return the options of a group that may be the rate of an average."""
    values: list[Any] = []
    for value in group.values():
        values += value if isinstance(value, (tuple, list)) else [value]
    return [each for each in values if isinstance(each, float) and _SMALLEST <= each < 1]


class _Law(NamedTuple):
    kind: str
    rate: float = 0.0
    factor: float = 1.0


def _law(old: Tensor, gradient: Tensor, new: Tensor, rates: list[float]) -> _Law:
    """Return what a step has made of an average, where an option of the group is its rate.

    >>> old, gradient = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0])
    >>> _law(old, gradient, 0.9 * old + 0.1 * gradient, [0.9]).kind
    ''
    >>> _law(old, gradient, 0.1 * gradient, [0.9]).kind
    'anew'
    >>> _law(old, gradient, 0.5 * (0.9 * old + 0.1 * gradient), [0.9])
    _Law(kind='scaled', rate=0.9, factor=0.5)
    """
    before, grad, after = (each.detach().to("cpu", torch.float64) for each in (old, gradient, new))
    for power in (grad, grad * grad):
        share, apart = _projection(after, power)
        if apart <= _EXACT and _projection(before, power)[1] > _APART:
            rate = next((each for each in rates if abs(share - (1 - each)) <= _EXACT), None)
            # Another option may be what the gradient was multiplied by, as the learning rate.
            by_another = any(abs(share - each) <= _EXACT for each in rates if each != rate)
            if rate is not None and not by_another:
                return _Law("anew", rate, 0.0)
    if _projection(before, grad)[1] <= _APART:
        return _Law("")  # any average of the two is a multiple of any other
    for rate in rates:
        for weight in (1 - rate, 1.0):
            average = rate * before + weight * grad
            factor, apart = _projection(after, average)
            # What the gradient adds must be more than rounding, or any rate would do.
            seen = float(torch.linalg.vector_norm(weight * grad))
            if apart <= _EXACT / 10 and seen > _EXACT * 10 * float(average.norm()):
                is_off = abs(factor - 1) > _OFF
                return _Law("scaled", rate, round(factor, 4)) if is_off else _Law("")
    return _Law("")


def _projection(vector: Tensor, onto: Tensor) -> tuple[float, float]:
    """Return which multiple of another a vector is, and how much of it is none, as a part of it."""
    size, length = float(onto.dot(onto)), float(torch.linalg.vector_norm(vector))
    if not size or not length:
        return 0.0, 0.0
    share = float(vector.dot(onto)) / size
    return share, float(torch.linalg.vector_norm(vector - share * onto)) / length


def _finding(kind: _Kind, entry: _Entry, what: str) -> Finding | None:
    uses = state_uses(kind.optimizer, kind.key, entry.options)
    make = {"anew": _made_anew, "scaled": _scaled, "zero": _never_written}[what]
    return make(kind, entry, uses)


def _made_anew(kind: _Kind, entry: _Entry, uses: StateUses) -> Finding:
    name, step = kind.optimizer.__name__, location_of(entry.site)
    where = uses.made[-1] if uses.made else step
    return Finding.of(
        catalogue.OPTIMIZER_MADE_ANEW,
        f'state["{kind.key}"] of {name} is made anew in each step: in {entry.looks} looks after a '
        f"step it was {1 - entry.rate:g} times this step's gradient, and nothing of what it had "
        f"been before was in it, though the rate of the average is {entry.rate:g}; expected it to "
        "be made in the first step alone",
        detector="audit",
        location=where,
        related=related((step, "stepped here"), apart_from=where),
        hint=f'make it only where it is not there: if "{kind.key}" not in state: ...',
        evidence={"optimizer": name, "key": kind.key, "looks": entry.looks, "rate": entry.rate},
    )


def _scaled(kind: _Kind, entry: _Entry, uses: StateUses) -> Finding:
    name, step = kind.optimizer.__name__, location_of(entry.site)
    where = (uses.written or uses.read or (step,))[-1]
    low, high = min(entry.factors), max(entry.factors)
    size = f"{low:.3g}" if high - low <= _OFF * high else f"between {low:.3g} and {high:.3g}"
    return Finding.of(
        catalogue.INPUT_WRITTEN_IN_PLACE,
        f'state["{kind.key}"] of {name} is an average of gradients at the rate {entry.rate:g}, '
        f"written here, and after each of {entry.looks} steps looked at it was {size} times what "
        "that makes of it: something that is computed from it writes into it in place, as into a "
        "copy; expected a copy there (`x.float()`, `x.to()` and `x.contiguous()` return x itself "
        "where there is nothing to do)",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related((step, "stepped here"), apart_from=where),
        hint=f'clone what is computed from state["{kind.key}"] before it is written in place',
        evidence={"optimizer": name, "key": kind.key, "looks": entry.looks, "rate": entry.rate},
    )


def _never_written(kind: _Kind, entry: _Entry, uses: StateUses) -> Finding | None:
    if entry.beside != entry.seen or not uses.read:
        return None
    name, step = kind.optimizer.__name__, location_of(entry.site)
    where = uses.read[-1]
    return Finding.of(
        catalogue.NO_EFFECT,
        f'state["{kind.key}"] of {name} is read here and was nothing but zeros after each of '
        f"{entry.looks} steps looked at, while gradients and other entries were not: what is "
        "computed of it is written into a copy, as indexing by a tensor makes one, or nowhere; "
        "expected it to be written back",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related((step, "stepped here"), apart_from=where),
        hint=f'assign the result: state["{kind.key}"][rows] = ...',
        evidence={"optimizer": name, "key": kind.key, "looks": entry.looks},
    )


def _left_behind(kind: str, counts: list[int], site: CallSite | None) -> Finding:
    step, found = location_of(site), replacement_of_parameters()
    put = None if found is None else found.place
    where = step if found is None else found.states or found.place
    return Finding.of(
        catalogue.OPTIMIZER_MADE_ANEW,
        f"{plural(sum(counts), 'parameter')}, put into the groups of {kind} in place of others, "
        f"began without a state, in {plural(len(counts), 'look')} at steps, and it still keeps the "
        "states (moments, momentum) of those that they replace: what was known is lost; expected "
        "each state to be moved to the new parameter",
        detector="audit",
        location=where,
        doubts=["it was seen once"] if len(counts) == 1 else [],
        related=related((put, "put into the group here"), (step, "stepped here"), apart_from=where),
        hint="optimizer.state[new] = optimizer.state.pop(old): the key is the parameter itself",
        evidence={"optimizer": kind, "parameters": sum(counts), "looks": len(counts)},
    )
