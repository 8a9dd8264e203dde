"""Parameters that two optimizers step on one gradient.

The step of one optimizer has used a gradient and moved the parameter. Another optimizer's step,
which began after that one had ended, finds the very same gradient there, neither added to nor
written to since, and moves the parameter again. Told once it has come about twice. An optimizer
that wraps another one steps it inside of its own step, and that is none of this.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import (
    Attention,
    ParameterGroupAdded,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames

__all__ = ["ParameterInTwoOptimizersDetector"]

_ENOUGH = 2
"""Steps that have used a gradient again before it is told. Chosen: the least that shows it goes on;
what happens once may be meant."""


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
    second: str
    first: str
    site: CallSite | None
    first_site: CallSite | None
    made: tuple[tuple[str, CallSite | None], ...]
    names: tuple[str, ...]
    parameters: int
    step: int


class ParameterInTwoOptimizersDetector:
    """Reports parameter-in-two-optimizers (GCS312)."""

    def __init__(self, windows: AccumulationWindows, names: ParameterNames) -> None:
        self._windows = windows
        self._names = names
        # By the identity of parameters, which their optimizers keep.
        self._uses: dict[int, _Use] = {}
        self._versions: dict[int, int] = {}
        self._again: list[Tensor] = []
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at what each step uses, where optimizers share parameters."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ParameterGroupAdded: self._add_group,
            WatchResumed: self._begin_anew,
        }

    def _add_group(self, _event: ParameterGroupAdded) -> Attention:
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
        reference = weakref.ref(event.optimizer)
        for parameter in moved:
            gradient = parameter.grad
            if gradient is not None:
                self._uses[id(parameter)] = _Use(
                    reference, weakref.ref(gradient), version_of(gradient), event.site
                )
        return None

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
                names=tuple(name for each in again if (name := self._names.of(each)) is not None),
                parameters=len(again),
                step=event.number,
            ),
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of lines of steps."""
        return self._occurrences.findings(_finding, least=_ENOUGH)


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    number = plural(occurrence.parameters, "parameter")
    named = f" ({listed(occurrence.names)})" if occurrence.names else ""
    places = [(occurrence.first_site, f"{occurrence.first}.step() has used them before")]
    places += [(site, f"{optimizer} is made here") for optimizer, site in occurrence.made]
    return Finding.of(
        catalogue.PARAMETER_IN_TWO_OPTIMIZERS,
        f"{occurrence.second}.step() applied gradients of {number}{named} that "
        f"{occurrence.first}.step() had applied already, unchanged, {count} times: they "
        "are in both optimizers and take two steps for each backward(); expected each in one",
        detector="audit",
        location=location_of(occurrence.site),
        related=related(*((location_of(site), words) for site, words in places)),
        hint="leave the parameters that both have out of one of the optimizers",
        evidence={
            "count": count,
            "first_step": occurrence.step,
            "optimizers": [occurrence.first, occurrence.second],
            "parameters": occurrence.parameters,
            "names": list(occurrence.names),
        },
    )
