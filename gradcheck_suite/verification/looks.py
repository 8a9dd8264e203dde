"""Look at a function along random directions and compare with what its gradients foretell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.points import outputs_beside
from gradcheck_suite.verification.probes import differentiate, inner_product
from gradcheck_suite.verification.slopes import Pool

if TYPE_CHECKING:
    from gradcheck_suite.verification.points import Point
    from gradcheck_suite.verification.survey import Survey

__all__ = ["Probes"]

# Changes of fewer roundings than these may be lost as a whole.
_DROWNED = 8.0


class Probes:
    """Probes in which some variables move together, at one point.

    Attributes:
        pools: for each output what the probes saw.
        changes: for each output whether any probe changed it.
    """

    def __init__(
        self,
        survey: Survey,
        point: Point,
        variables: Sequence[int],
        steps: Sequence[float],
        *,
        in_proportion: bool = False,
    ) -> None:
        self._in_proportion = in_proportion
        self._survey = survey
        self._steps = tuple(steps)
        self._point = point
        self._variables = variables
        self._centres = [output.tensor.double() for output in point.outputs]
        self.pools = [Pool() for _ in point.outputs]
        self.changes = [False] * len(point.outputs)

    def take(self, probe: int) -> bool:
        """Take a probe at every step; False if the function can't be evaluated near by."""
        point, survey = self._point, self._survey
        cotangents = survey.cotangents(point, probe)
        rows = differentiate(survey.subject, point, cotangents).rows
        along = {variable: survey.direction(probe, variable) for variable in self._variables}
        if self._in_proportion:
            along = {variable: survey.in_proportion(variable, v) for variable, v in along.items()}
        seen = [self._look(along, step) for step in self._steps]
        steps = []
        for look in seen:
            if look is None:
                return False
            steps.append(look)
        for index, pool in enumerate(self.pools):
            cotangent = cotangents[index].double()
            deviations, parts, bends = [], [], []
            for look in steps:
                part = [
                    0.0 if given is None else inner_product(given.double(), look.made[variable])
                    for variable, given in ((v, rows[index][v]) for v in self._variables)
                ]
                high, low = look.high[index], look.low[index]
                self.changes[index] |= not torch.equal(high, low)
                deviations.append(inner_product(cotangent, high - low) - sum(part))
                parts.append(part)
                bend = (high + low).sub_(self._centres[index], alpha=2.0).mul_(cotangent)
                bends.append(inner_product(bend, bend))
            if not pool.add(deviations, parts, bends):
                return False
        return True

    def drowned(self, output: int, eps: float) -> list[bool]:
        """Say for each variable whether roundings may swallow all that it does to an output."""
        parts = torch.tensor(self.pools[output].parts, dtype=torch.float64)[:, 0]
        finite = self._point.finite[output]
        centre = self._centres[output]
        size = torch.linalg.vector_norm(centre if finite is None else centre.where(finite, 0.0))
        least = _DROWNED * eps * float(size)
        return [float(part) <= least for part in parts.square().mean(0).sqrt()]

    def _look(self, along: Mapping[int, torch.Tensor], step: float) -> _Look | None:
        point, subject = self._point, self._survey.subject
        ends = [list(point.values), list(point.values)]
        made = {}
        for variable, direction in along.items():
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                end[variable] = torch.add(end[variable], direction, alpha=sign * step)
            difference = ends[0][variable].double() - ends[1][variable].double()
            fixed = subject.variables[variable].fixed
            made[variable] = difference if fixed is None else difference.where(~fixed, 0.0)
        produced = outputs_beside(subject, point, ends)
        if produced is None:
            return None
        high, low = produced
        return _Look([one.double() for one in high], [one.double() for one in low], made)


@dataclass(frozen=True, slots=True)
class _Look:
    """The outputs ahead and behind, and by how much the inputs really differ."""

    high: Sequence[torch.Tensor]
    low: Sequence[torch.Tensor]
    made: Mapping[int, torch.Tensor]
