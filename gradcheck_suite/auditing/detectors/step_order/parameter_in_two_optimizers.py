"""Parameters that two optimizers step on one gradient.

The step of one optimizer has used a gradient and moved the parameter. Another optimizer's step,
which began after that one had ended, finds the very same gradient there, neither added to nor
written to since, and moves the parameter again. Told once it has come about twice. An optimizer
that wraps another one steps it inside of its own step, and that is none of this.

Where one optimizer owns all that another does, and more, and both move it in turn, each on a loss
of its own, that is a note; a warning where their gradients point against each other, so that the
one undoes what the other does, as where a generator's optimizer has the critic's parameters too.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero, sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    ParameterGroupAdded,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.findings import Finding, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor  # noqa: TC004 - nobody asks for the types of the fields
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames

__all__ = ["ParameterInTwoOptimizersDetector"]

_ENOUGH = 2
"""Steps that have used a gradient again before it is told. Chosen: the least that shows it goes on;
what happens once may be meant."""


_MOST_COMPARED = 4
"""Turns of two optimizers whose gradients are compared. A bound on cost."""

_SAMPLED = 1024
"""Elements of each gradient that are compared, at most. A bound on memory: these are kept from the
step of one optimizer to that of the other."""

_AGAINST = -0.1
"""The cosine between the gradients of two losses below which one undoes what the other does.
Chosen: those of losses that have nothing to do with each other scatter around zero, by 0.03 where a
thousand elements are compared."""


class _Use(NamedTuple):
    """A gradient that an optimizer's step has used, as it was left."""

    optimizer: weakref.ref[Optimizer]
    gradient: weakref.ref[Tensor]
    version: int
    site: CallSite | None

    def is_there(self, parameter: Tensor) -> bool:
        """Return whether the parameter still has this gradient, untouched."""
        gradient = parameter.grad
        return (
            gradient is not None
            and gradient is self.gradient()
            and version_of(gradient) == self.version
        )


@dataclass(slots=True)
class _Occurrence:
    """Steps of two optimizers on one gradient.

    ``larger`` says which of ``made`` owns more, ``added`` where one of them was given the shared
    parameters after that.
    """

    second: str
    first: str
    site: CallSite | None
    first_site: CallSite | None
    made: tuple[tuple[str, CallSite | None], ...]
    larger: int
    added: CallSite | None
    names: tuple[str, ...]
    parameters: int
    step: int


@dataclass(slots=True)
class _Whole:
    """An optimizer that owns all that another does, and more.

    Attributes:
        names: of the larger and the smaller.
        made: where each was made.
        site: where the larger has stepped last.
        parameters: how many both own.
        turns: how often the larger has moved what the smaller had moved before.
        sampled: some elements of the gradients that the smaller has used last, by parameter.
        cosines: between those and the gradients of the larger.
    """

    names: tuple[str, str]
    made: tuple[CallSite | None, CallSite | None]
    site: CallSite | None
    parameters: int
    turns: int = 0
    sampled: dict[int, Tensor] | None = None
    cosines: list[float] = field(default_factory=list)

    @property
    def points_against(self) -> bool:
        return len(self.cosines) >= _ENOUGH and max(self.cosines) < _AGAINST


class ParameterInTwoOptimizersDetector:
    """Reports parameter-in-two-optimizers (GCS312)."""

    def __init__(self, windows: AccumulationWindows, names: ParameterNames) -> None:
        self._windows = windows
        self._names = names
        # By the identity of parameters, which their optimizers keep.
        self._uses: dict[int, _Use] = {}
        self._versions: dict[int, int] = {}
        self._added: dict[int, CallSite | None] = {}
        self._again: list[Tensor] = []
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()
        self._whole: dict[object, _Whole] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what each step uses, where optimizers share parameters."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ParameterGroupAdded: self._add_group,
            WatchResumed: self._begin_anew,
        }

    def _add_group(self, event: ParameterGroupAdded) -> Attention:
        added = event.optimizer.param_groups[-1]["params"]
        self._added.update((id(each), event.site) for each in added)
        return Attention.AWAKE

    def _begin_anew(self, _event: WatchResumed) -> None:
        self._uses.clear()

    def _shared(self) -> list[Tensor]:
        """Return the parameters of the stepped optimizer that another one has as well."""
        stepped = self._windows.stepped
        others = [
            window.ids
            for window in self._windows.all()
            if window is not stepped and not window.ids.isdisjoint(stepped.ids)
        ]
        if not others:
            return []
        return [each for each in stepped.parameters() if any(id(each) in ids for ids in others)]

    def _begin_step(self, event: StepStarted) -> Attention | None:
        self._again = []
        if not self._any_shared():
            self._uses.clear()
            return Attention.ASLEEP
        shared = self._shared()
        self._versions = {id(each): version_of(each) for each in shared}
        for parameter in shared:
            use = self._uses.get(id(parameter))
            other = None if use is None else use.optimizer()
            if use is None or other is None or other is event.optimizer:
                continue
            if use.is_there(parameter) and is_nonzero(parameter.grad):
                self._again.append(parameter)
        return None

    def _any_shared(self) -> bool:
        if self._windows.is_alone():
            return False
        windows = self._windows.all()
        return any(
            not one.ids.isdisjoint(other.ids)
            for index, one in enumerate(windows)
            for other in windows[:index]
        )

    def _end_step(self, event: StepFinished) -> Attention | None:
        if not self._versions and not self._any_shared():
            return Attention.ASLEEP
        versions, self._versions = self._versions, {}
        moved = [
            parameter
            for parameter in self._shared()
            if versions.get(id(parameter), version_of(parameter)) != version_of(parameter)
        ]
        again = [
            parameter
            for parameter in self._again
            if self._uses[id(parameter)].is_there(parameter)
            and any(parameter is each for each in moved)
        ]
        self._again = []
        if again:
            self._report(event, again)
        elif moved:
            self._compare(event, moved)
        reference = weakref.ref(event.optimizer)
        for parameter in moved:
            gradient = parameter.grad
            if gradient is not None:
                self._uses[id(parameter)] = _Use(
                    reference, weakref.ref(gradient), version_of(gradient), event.site
                )
        return None

    def _compare(self, event: StepFinished, moved: list[Tensor]) -> None:
        """Compare what two optimizers make of the same parameters, where one owns all of them."""
        stepped = self._windows.stepped
        for other in self._windows.all():
            if stepped.ids < other.ids:
                whole = self._pair(other, stepped, event.site)
                enough = len(whole.cosines) >= _MOST_COMPARED
                whole.sampled = {} if enough else _samples(moved, other.ids)
            elif other.ids < stepped.ids:
                whole = self._pair(stepped, other, event.site)
                whole.site = event.site
                if whole.sampled is not None:
                    whole.turns += 1
                    now = _samples(moved, other.ids) if whole.sampled else {}
                    cosine = _cosine(whole.sampled, now)
                    whole.sampled = None
                    if cosine is not None:
                        whole.cosines.append(cosine)

    def _pair(
        self, large: AccumulationWindow, small: AccumulationWindow, site: CallSite | None
    ) -> _Whole:
        names = type(large.optimizer()).__name__, type(small.optimizer()).__name__
        made = large.constructed_at, small.constructed_at
        return self._whole.setdefault((names, made), _Whole(names, made, site, len(small.ids)))

    def _report(self, event: StepFinished, again: list[Tensor]) -> None:
        use = self._uses[id(again[0])]
        first = use.optimizer()
        if first is None:
            return
        self._occurrences.note(
            (event.site, use.site),
            lambda: _Occurrence(
                second=type(event.optimizer).__name__,
                first=type(first).__name__,
                site=event.site,
                first_site=use.site,
                made=tuple(
                    (type(each).__name__, self._windows.of(each).constructed_at)
                    for each in (first, event.optimizer)
                ),
                larger=int(len(self._windows.of(first).ids) <= len(self._windows.stepped.ids)),
                added=self._added.get(id(again[0])),
                names=tuple(name for each in again if (name := self._names.of(each)) is not None),
                parameters=len(again),
                step=event.number,
            ),
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of lines of steps, and of optimizers."""
        twice = self._occurrences.findings(_finding, least=_ENOUGH)
        whole = [] if twice else [x for x in self._whole.values() if x.turns > _ENOUGH]
        return [*twice, *map(_whole_finding, whole)]


def _samples(parameters: list[Tensor], wanted: frozenset[int]) -> dict[int, Tensor]:
    found = {}
    for parameter in parameters:
        if id(parameter) in wanted and parameter.grad is not None:
            sample = sample_of(parameter.grad, _SAMPLED)
            if sample is not None:
                found[id(parameter)] = sample
    return found


def _cosine(one: dict[int, Tensor], other: dict[int, Tensor]) -> float | None:
    both = [key for key in one if key in other and one[key].device == other[key].device]
    if not both:
        return None
    with torch.no_grad():
        device = one[both[0]].device
        first = torch.cat([one[key].to(device, torch.float32) for key in both])
        second = torch.cat([other[key].to(device, torch.float32) for key in both])
        return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    number = plural(occurrence.parameters, "parameter")
    named = f" ({listed(occurrence.names)})" if occurrence.names else ""
    made = location_of(occurrence.added) or location_of(occurrence.made[occurrence.larger][1])
    where = made or location_of(occurrence.site)
    places = [
        (occurrence.first_site, f"{occurrence.first}.step() uses them first"),
        (occurrence.site, f"{occurrence.second}.step() uses them again"),
        *((site, f"{optimizer} is made here") for optimizer, site in occurrence.made),
    ]
    return Finding.of(
        catalogue.PARAMETER_IN_TWO_OPTIMIZERS,
        f"{occurrence.second}.step() applied gradients of {number}{named} that "
        f"{occurrence.first}.step() had applied already, unchanged, {count} times: they "
        "are in both optimizers and take two steps for each backward(); expected each in one",
        detector="audit",
        location=where,
        related=related(*((location_of(site), words) for site, words in places), apart_from=where),
        hint="leave the parameters that both have out of one of the optimizers",
        evidence={
            "count": count,
            "first_step": occurrence.step,
            "optimizers": [occurrence.first, occurrence.second],
            "parameters": occurrence.parameters,
            "names": list(occurrence.names),
        },
    )


def _whole_finding(whole: _Whole) -> Finding:
    large, small = whole.names
    both = f"the other {small}" if large == small else small
    number = plural(whole.parameters, "parameter")
    against = (
        f"their gradients point against each other (cosine {max(whole.cosines):.2f} at most), so "
        "that the one undoes what the other does"
        if whole.points_against
        else "each on a loss of its own"
    )
    where = location_of(whole.made[0]) or location_of(whole.site)
    return Finding.of(
        catalogue.PARAMETER_IN_TWO_OPTIMIZERS,
        f"{large} owns all that {both} owns as well, {number}, and both move them in turn, "
        f"{whole.turns} times: {against}; expected each parameter in one optimizer",
        detector="audit",
        severity=Severity.WARNING if whole.points_against else Severity.NOTE,
        location=where,
        related=related(
            (location_of(whole.made[1]), f"{both} is made here"),
            (location_of(whole.site), f"this step moves what {both} owns"),
            apart_from=where,
        ),
        hint="leave the parameters that both have out of one of the optimizers",
        evidence={
            "count": whole.turns,
            "optimizers": list(whole.names),
            "parameters": whole.parameters,
            "cosines": [round(each, 3) for each in whole.cosines],
        },
    )
