"""Measure every gradient of a subject with as few evaluations as certainty allows.

All variables move together first. A variable whose part of the derivative stands out against the
tolerance is done with; the others are measured in smaller groups, down to single ones. What looks
wrong is measured again by itself: other directions, other cotangents, a finer ladder, and a point
close by.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.calling import Output, Subject
from gradcheck_suite.verification.contracts import ContractBreaches, check_contracts
from gradcheck_suite.verification.directions import generator_for, scales_of, spread_signs
from gradcheck_suite.verification.probes import (
    Gradients,
    Measurement,
    Point,
    differentiate,
    draw_cotangents,
    evaluate,
    match_outputs,
    measure,
)
from gradcheck_suite.verification.verdicts import Conclusion, Outcome, conclude, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.options import Precision

__all__ = ["Survey"]

_COTANGENTS, _DIRECTIONS, _MOVE = range(3)
_FIRST_CONFIRMATION = 1000
_CONFIRMATIONS = 2
_RECORDED_DIFFERENCE = 64.0


class Survey:
    """The measurements of one subject, and what they come to.

    Attributes:
        point: where the user asked for gradients.
        gradients: the analytic gradients of the first probe.
        breaches: what backward owes and does not keep.
    """

    def __init__(
        self,
        subject: Subject,
        outputs: Sequence[Output],
        *,
        precision: Precision,
        seed: int,
        probes: int,
    ) -> None:
        self.subject = subject
        self.precision = precision
        self._seed = seed
        self._probes = probes
        self._scales = scales_of([variable.value for variable in subject.variables])
        self._outcomes: dict[tuple[int, int], list[Outcome]] = defaultdict(list)
        self._gradients: dict[tuple[bool, int], Gradients] = {}
        self._moved: Point | None = None
        self.point = self._base_point(outputs)
        self.point = self._as_recorded_if_needed(self.point)
        self.gradients = self._differentiate(self.point, 0)
        self.breaches: ContractBreaches = check_contracts(
            subject,
            self.point,
            self.cotangents(self.point, 0),
            self.gradients,
            precision=precision,
        )

    @property
    def deterministic(self) -> bool:
        """Whether two calls at the same point with the same random draws were equal."""
        return all(noise is None for noise in self.point.noise)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every (output, variable) pair in which both have elements."""
        return [
            (output, variable)
            for output in range(len(self.point.outputs))
            for variable in self._variables()
        ]

    def run(self) -> dict[tuple[int, int], Conclusion]:
        """Measure every pair and conclude on it."""
        for probe in range(self._probes):
            suspects = self._suspects()
            group = [variable for variable in self._variables() if variable not in suspects]
            gradients = self._differentiate(self.point, probe)
            broken = [v for v in group if _has_non_finite(gradients, v)]
            for variable in broken:
                self._survey(probe, [variable])
            self._survey(probe, [variable for variable in group if variable not in broken])
        for variable in sorted(self._suspects()):
            for extra in range(_CONFIRMATIONS):
                self._measure_alone(self.point, _FIRST_CONFIRMATION + extra, variable)
            self._measure_moved(variable, probes=1)
        for variable in sorted(self._undecided()):
            self._measure_relative(variable)
            if variable in self._undecided():
                self._measure_moved(variable, probes=_CONFIRMATIONS)
        return {pair: conclude(self._outcomes[pair], self.precision) for pair in self.pairs}

    def outcomes(self, pair: tuple[int, int]) -> list[Outcome]:
        """Return everything that was measured of a pair."""
        return self._outcomes[pair]

    def cotangents(self, point: Point, probe: int) -> tuple[torch.Tensor, ...]:
        """Return the cotangents of a probe, the same on every call."""
        return draw_cotangents(point, generator_for(self._seed, _COTANGENTS, probe))

    def direction(self, probe: int, variable: int) -> torch.Tensor:
        """Return how a variable moves per unit of step in a probe, the same on every call."""
        generator = generator_for(self._seed, _DIRECTIONS, probe, variable)
        drawn = spread_signs(self.point.values[variable], generator)
        return drawn * self._scales[variable]

    def _variables(self) -> list[int]:
        return [
            index
            for index, variable in enumerate(self.subject.variables)
            if variable.value.numel() > 0
        ]

    def _base_point(self, outputs: Sequence[Output]) -> Point:
        values = tuple(variable.value for variable in self.subject.variables)
        second = evaluate(self.subject, [value.clone() for value in values], recorded=False)
        return _point(values, outputs, match_outputs(self.subject, outputs, second))

    def _as_recorded_if_needed(self, point: Point) -> Point:
        """Notice functions that compute something else while gradients are recorded."""
        if not self.deterministic:
            return point
        recorded = self._differentiate(point, 0).outputs
        for output, other, finite in zip(point.outputs, recorded, point.finite, strict=True):
            one, two = output.tensor.double(), other.double()
            if finite is not None:
                one, two = one.where(finite, 0.0), two.where(finite, 0.0)
            size = float(one.abs().max())
            difference = float((one - two).abs().max())
            if not difference <= _RECORDED_DIFFERENCE * self.precision.eps * size:
                outputs = tuple(
                    Output(known.name, tensor)
                    for known, tensor in zip(point.outputs, recorded, strict=True)
                )
                return replace(
                    _point(point.values, outputs, [known.tensor for known in outputs]),
                    recorded=True,
                )
        return point

    def _differentiate(self, point: Point, probe: int) -> Gradients:
        key = (point.moved, probe)
        if key not in self._gradients:
            cotangents = self.cotangents(point, probe)
            self._gradients[key] = differentiate(self.subject, point, cotangents)
        return self._gradients[key]

    def _survey(self, probe: int, group: list[int]) -> None:
        if not group:
            return
        results = self._measure(self.point, probe, {v: self.direction(probe, v) for v in group})
        if len(group) == 1:
            self._note(results, group[0], probe, moved=False)
            return
        rest = []
        for variable in group:
            rulings = [judge(result, variable, self.precision) for result in results]
            for result, ruling in zip(results, rulings, strict=True):
                if ruling == "pass":
                    pair = (result.output, variable)
                    self._outcomes[pair].append(Outcome(ruling, result, moved=False, probe=probe))
            if any(ruling != "pass" for ruling in rulings):
                rest.append(variable)
        if len(rest) <= len(group) // 2:
            self._survey(probe, rest)
            return
        middle = len(rest) // 2
        self._survey(probe, rest[:middle])
        self._survey(probe, rest[middle:])

    def _measure_alone(self, point: Point, probe: int, variable: int) -> None:
        results = self._measure(point, probe, {variable: self.direction(probe, variable)})
        self._note(results, variable, probe, moved=point.moved)

    def _measure_relative(self, variable: int) -> None:
        """Move every entry in proportion to itself, which keeps it on its side of zero."""
        if not any(
            outcome.measurement.trouble
            for output in range(len(self.point.outputs))
            for outcome in self._outcomes[output, variable]
        ):
            return
        value = self.point.values[variable]
        if bool((value == 0).any()):
            return
        probe = _FIRST_CONFIRMATION
        direction = self.direction(probe, variable) / self._scales[variable] * value.abs()
        self._note(
            self._measure(self.point, probe, {variable: direction}), variable, probe, moved=False
        )

    def _measure_moved(self, variable: int, *, probes: int) -> None:
        point = self._moved_point()
        if point is None:
            return
        for probe in range(probes):
            self._measure_alone(point, _FIRST_CONFIRMATION + _CONFIRMATIONS + probe, variable)

    def _moved_point(self) -> Point | None:
        """Return a point close by, or None if the function can't be evaluated there."""
        if self._moved is None:
            values = tuple(
                value
                + self.precision.move
                * scale
                * spread_signs(value, generator_for(self._seed, _MOVE, index))
                for index, (value, scale) in enumerate(
                    zip(self.point.values, self._scales, strict=True)
                )
            )
            try:
                first = self._outputs_at(values)
                second = self._outputs_at(values)
            except Exception:  # noqa: BLE001 - the user's function may fail here in any way
                return None
            if first is None or second is None:
                return None
            moved = _point(values, first, [output.tensor for output in second])
            if not _as_finite(moved, self.point):
                return None
            self._moved = replace(moved, moved=True, recorded=self.point.recorded)
        return self._moved

    def _outputs_at(self, values: Sequence[torch.Tensor]) -> list[Output] | None:
        copies = [value.clone() for value in values]
        produced = {
            output.name: output
            for output in evaluate(self.subject, copies, recorded=self.point.recorded)
        }
        found = [produced.get(output.name) for output in self.point.outputs]
        kept = [
            Output(output.name, output.tensor.detach())
            for output, known in zip(found, self.point.outputs, strict=True)
            if output is not None and output.tensor.shape == known.tensor.shape
        ]
        return kept if len(kept) == len(found) else None

    def _measure(
        self, point: Point, probe: int, direction: dict[int, torch.Tensor]
    ) -> list[Measurement]:
        return measure(
            self.subject,
            point,
            self.cotangents(point, probe),
            self._differentiate(point, probe),
            direction,
            precision=self.precision,
            thorough=len(direction) == 1,
        )

    def _note(
        self, results: Sequence[Measurement], variable: int, probe: int, *, moved: bool
    ) -> None:
        for result in results:
            ruling = judge(result, variable, self.precision)
            pair = (result.output, variable)
            self._outcomes[pair].append(Outcome(ruling, result, moved=moved, probe=probe))

    def _suspects(self) -> set[int]:
        return {
            variable
            for (_, variable), outcomes in self._outcomes.items()
            if any(outcome.ruling in {"fail", "ambiguous"} for outcome in outcomes)
        }

    def _undecided(self) -> set[int]:
        return {
            variable
            for output, variable in self.pairs
            if all(outcome.ruling == "unresolved" for outcome in self._outcomes[output, variable])
        }


def _point(
    values: tuple[torch.Tensor, ...], outputs: Sequence[Output], second: Sequence[torch.Tensor]
) -> Point:
    finite: list[torch.Tensor | None] = []
    noise: list[torch.Tensor | None] = []
    for output, again in zip(outputs, second, strict=True):
        known = torch.isfinite(output.tensor)
        finite.append(None if bool(known.all()) else known)
        one, two = output.tensor.double(), again.double()
        difference = (one - two).abs().where(known, 0.0)
        noise.append(difference if bool((difference != 0).any()) else None)
    return Point(
        values=values,
        outputs=tuple(Output(output.name, output.tensor.detach()) for output in outputs),
        finite=tuple(finite),
        noise=tuple(noise),
    )


def _as_finite(moved: Point, point: Point) -> bool:
    """Say whether the outputs are finite wherever they are at the other point."""
    for now, before in zip(moved.finite, point.finite, strict=True):
        if now is not None and (before is None or bool((before & ~now).any())):
            return False
    return True


def _has_non_finite(gradients: Gradients, variable: int) -> bool:
    parts = (row[variable] for row in gradients.rows)
    return any(part is not None and not bool(torch.isfinite(part).all()) for part in parts)
