"""The same function in float64, of which differences are taken where others have too few digits.

In float32 steps must be so wide that kinks lie within them, in half precision wider still. If the
function runs in float64 as well and gives the same values there, at the point and at the ends of
wide steps around it, up to what the coarser type rounds, then both have the same derivative, and
that of the float64 one can be measured along steps so small that kinks hardly matter. What is
judged is still the gradient that the function's own backward gave.

That the values agree is not believed but measured: the difference of the two functions is a
function too, and its slope along each direction must be next to nothing against the gradient's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gradcheck_suite.verification.numerics.decision import Conclusion, Pair, Ruling, judge
from gradcheck_suite.verification.numerics.derivative import (
    Gradients,
    Measurement,
    differentiate,
    inner_product,
    measure,
)
from gradcheck_suite.verification.numerics.evaluation_point import (
    Point,
    evaluate,
    match_outputs,
    outputs_at,
)
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.target.pure_function import PureFunction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.first_order.ulp_noise import UlpNoise
    from gradcheck_suite.verification.target.pure_function import Output


__all__ = [
    "Change",
    "Float64Reference",
    "coarse_pairs",
    "conclusions_by_reference",
    "float64_reference_of",
]

_SAME_VALUES = {torch.float32: 2.0**-10, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
"""Values that differ by more than this share (of the 2-norm) are another function's: constants with
few digits, other random draws, a branch on the type. 8 roundings in half precision; ``2**13`` in
float32, where deep networks lose digits. Chosen: slopes decide."""
_NARROW = 2.0**-10
"""The step along which the float64 function's slope is taken, as a share of the displacement in the
coarser type: small in float64, where rounding leaves some 12 digits, and as large as float32 can
tell."""
_WIDE = (2.0**-3, 2.0**-5)
"""Steps, in units of the input's scale, along which the slope of the difference is looked at: so
wide that rounding of float32 (``2**-23``) over the step is 4e-6 at most, which hardly shows."""
_COMPLEX = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# Of torch's functions with such names these write, as do all whose names end in one underscore.
_WRITING = frozenset(
    f"__{name}__" for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow")
)


@dataclass(frozen=True, slots=True)
class Change:
    """What an output of the function in float64 does along a displacement.

    Attributes:
        whole: the change from its one end to the other.
        linear: what the change would be if the slope were that at the point throughout.
        bend: how far ``linear`` may be off by a kink exactly at the point, as ties are.
    """

    whole: torch.Tensor
    linear: torch.Tensor
    bend: torch.Tensor


@dataclass(frozen=True, slots=True)
class Float64Reference:
    """The function in float64.

    Attributes:
        subject: takes and gives float64.
        point: the same point, with the values that float64 gives there.
        original: the function as it was given.
        given: the point as it was given.
    """

    subject: PureFunction
    point: Point
    original: PureFunction
    given: Point

    def change_along(
        self, made: Mapping[int, torch.Tensor], ends: Sequence[Sequence[torch.Tensor]]
    ) -> list[Change] | None:
        """Return for each output what it does between two ends.

        Args:
            made: by how much each variable differs between both ends.
            ends: the values of all variables at both ends, in the type of the function.

        Returns:
            One for each output; None where the reference can't be evaluated.
        """
        near = [
            [
                value if variable not in made else value + sign * _NARROW * made[variable].double()
                for variable, value in enumerate(self.point.values)
            ]
            for sign in (1.0, -1.0)
        ]
        far = [[value.double() for value in end] for end in ends]
        produced = outputs_at(self.subject, self.point, [*far, *near])
        if produced is None:
            return None
        above, below, ahead, behind = produced
        changes = []
        for output, (one, two) in enumerate(zip(ahead, behind, strict=True)):
            centre = self.point.outputs[output].tensor
            changes.append(
                Change(
                    above[output] - below[output],
                    (one - two) / (2.0 * _NARROW),
                    (one + two - 2.0 * centre) / (2.0 * _NARROW),
                )
            )
        return changes

    def differs_by(
        self, direction: Mapping[int, torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> list[float]:
        """Return for each output how steep the difference of both functions is along a direction.

        Args:
            direction: how each variable moves for one unit of step.
            cotangents: what weighs the values of each output.

        Returns:
            The largest slope that was seen along steps of several widths, each without the next:
            infinite where the functions could be evaluated at none of them.
        """
        steepest = [math.inf] * len(self.point.outputs)
        for step in _WIDE:
            ends = [self._moved(direction, step), self._moved(direction, -step)]
            ours = outputs_at(self.original, self.given, ends)
            doubled = [[value.double() for value in end] for end in ends]
            theirs = outputs_at(self.subject, self.point, doubled)
            if ours is None or theirs is None:
                continue
            for output, cotangent in enumerate(cotangents):
                above, below = (
                    one[output].double() - two[output]
                    for one, two in zip(ours, theirs, strict=True)
                )
                finite = self.point.finite[output]
                apart = above - below
                apart = apart if finite is None else apart.where(finite, 0.0)
                slope = abs(inner_product(cotangent.double(), apart)) / (2.0 * step)
                if math.isfinite(slope):
                    known = steepest[output]
                    steepest[output] = slope if math.isinf(known) else max(known, slope)
        return steepest

    def _moved(self, direction: Mapping[int, torch.Tensor], step: float) -> list[torch.Tensor]:
        return [
            value
            if variable not in direction
            else torch.add(value, direction[variable], alpha=step)
            for variable, value in enumerate(self.given.values)
        ]


def float64_reference_of(context: ProbeContext, point: Point) -> Float64Reference | None:
    """Make the function in float64; None if it can't run so, or has other values there.

    Inputs, parameters and buffers are cast. Tensors of a coarser type that the function holds of
    its own are cast wherever one of torch's functions gets them together with float64 ones. A
    function that computes in float32 whatever it is given has no reference.
    """
    subject = context.subject
    try:
        values = tuple(value.double() for value in point.values)
        constants = [_doubled(constant.value) for constant in subject.constants]
        reference = subject.elsewhere(values=values, constants=constants).within(_Widening)
        found = [
            match_outputs(
                reference, point.outputs, evaluate(reference, values, recorded=point.recorded)
            )
            for _ in range(2)
        ]
    except Exception:  # noqa: BLE001 - the user's function need not take float64
        return None
    outputs: list[Output] = []
    for known, finite, first, second in zip(point.outputs, point.finite, *found, strict=True):
        if first.dtype is not torch.float64 or not torch.equal(first, second):
            return None
        if not _same(known.tensor, first, finite):
            return None
        outputs.append(replace(known, tensor=first))
    return Float64Reference(
        reference,
        replace(point, values=values, outputs=tuple(outputs), noise=tuple(None for _ in outputs)),
        subject,
        point,
    )


class _Widening(TorchFunctionMode):
    """Has torch's functions take float64 and coarser types together."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = (args, kwargs or {})
        if _has_double(given) and not _writes(func):
            given = _all_doubled(given)
        return func(*given[0], **given[1])


def _writes(function: object) -> bool:
    name = getattr(function, "__name__", "")
    return name in _WRITING or (name.endswith("_") and not name.endswith("__"))


def _has_double(given: object) -> bool:
    if isinstance(given, torch.Tensor):
        return given.dtype in {torch.float64, torch.complex128}
    if isinstance(given, dict):
        return any(map(_has_double, given.values()))
    return isinstance(given, (tuple, list)) and any(map(_has_double, given))


def _all_doubled(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return _doubled(given)
    if isinstance(given, dict):
        return {name: _all_doubled(value) for name, value in given.items()}
    if isinstance(given, (tuple, list)) and type(given) in {tuple, list}:
        return type(given)(map(_all_doubled, given))
    return given


def _doubled(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        return value.to(_COMPLEX.get(value.dtype, value.dtype))
    return value.double() if value.is_floating_point() else value


def _same(ours: torch.Tensor, theirs: torch.Tensor, finite: torch.Tensor | None) -> bool:
    if ours.dtype not in _SAME_VALUES:
        return False
    apart, size = ours.double() - theirs, theirs
    if finite is not None:
        apart, size = apart.where(finite, 0.0), size.where(finite, 0.0)
    most = _SAME_VALUES[ours.dtype] * float(torch.linalg.vector_norm(size))
    return float(torch.linalg.vector_norm(apart)) <= most


_FINE_ENOUGH = 2e-3
"""The relative tolerance from which on single probes need no reference: the ``target`` of float32,
at which they take no further steps."""
_LEAST = 1e-3
"""The relative error that counts: below are digits of constants, as of an approximated function,
and a float32 backward's rounding. Chosen: a constant of four digits is off by half of it at
most."""
_USEFUL = 5e-3
"""The relative error that a pass may hide, a tenth of what single float32 probes leave
(``resolution``). Chosen."""
_ALIKE = 1e-3
"""How steep the difference between function and reference may be, as a share of the gradient: as
much as the least error that counts, or it could be taken for one."""
_PROBES = 2
"""How many probes each gradient gets at once, as single probes in float64 do."""
_MORE_PROBES = 6
"""An error shows little along a direction in which the gradient is small by chance: where any
shows, this many probes decide together. A bound on cost."""
_FEWEST_FAILURES = 3
"""How many of these have to see the failure by themselves: half of them. Chosen."""
_CLEAN = _LEAST / 10.0
"""A gradient that deviates by less than this share in every probe gets no more of them: a tenth of
the least that counts."""
_FIRST_PROBE, _FIRST_BESIDE = 7500, 7600
"""Numbers of the first probes at the point and beside it; any do from which on no other probe is
numbered."""
_MIXED = replace(
    precision_of([torch.float64]),
    resolution=_USEFUL,
    rtol=_LEAST,
    target=_LEAST / 4.0,
    steps=tuple(2.0**-exponent for exponent in range(6, 20, 2)),
)
"""What is asked of float32 gradients by float64 differences. Steps end at ``2**-18``, where a kink
may lie on the other side of the point in float32: it has to be seen."""
_FEW = 8
"""Up to so many variables are measured one by one at once; of more, halves. A bound on cost."""
_SHARED = 0.5
"""The share of a deviation up to which the reference's own gradient may differ from the given one,
to say that it has the same error, which then is no rounding. Chosen: half of it."""
_BEYOND_ROUNDING = 16.0
"""Of what rounding within backward was seen to do, an error has to be this many times. Chosen, as
``accumulation.comparison.HEADROOM``: what was seen is the greatest of a few draws."""


def coarse_pairs(conclusions: Mapping[Pair, Conclusion]) -> set[Pair]:
    """Return the pairs that single float32 probes could not tell finely."""
    return {
        pair
        for pair, conclusion in conclusions.items()
        if conclusion.status != "fail"
        and not conclusion.meant
        and not conclusion.shown.non_finite
        and not conclusion.shown.lost_in_rounding
        and conclusion.shown.contributions[pair[1]] > 0.0
        and (
            conclusion.status == "inconclusive"
            or conclusion.shown.relative_tolerance > _FINE_ENOUGH
        )
    }


def conclusions_by_reference(
    context: ProbeContext, conclusions: Mapping[Pair, Conclusion], noise: UlpNoise
) -> dict[Pair, Conclusion]:
    """Conclude anew on the pairs that single probes could not tell finely.

    A failure has to show in every probe, at a point beside the given one as well, and has to be in
    the reference's own gradient too or be far beyond what rounding within backward does.

    Returns:
        Conclusions for those pairs alone that the reference decides; none where there is none.
    """
    coarse = {
        pair
        for pair in coarse_pairs(conclusions)
        # A function of steps has no slope that wider and smaller steps agree on.
        if not (conclusions[pair].shown.unchanged or conclusions[pair].shown.is_flat)
    }
    reference = float64_reference_of(context, context.point) if coarse else None
    if reference is None:
        return {}
    probes = _Probes(context, reference, coarse, _FIRST_PROBE)
    for probe in range(_PROBES):
        if context.deadline.passed:
            return {}
        probes.measure(probe, sorted({variable for _, variable in coarse}))
    probes.measure_again()
    found = probes.conclusions()
    failed = {pair for pair, conclusion in found.items() if conclusion.status == "fail"}
    confirmed = {pair for pair in failed if probes.is_certain(pair, noise)}
    confirmed &= _failing_beside(context, confirmed)
    return {pair: one for pair, one in found.items() if one.status == "pass" or pair in confirmed}


def _failing_beside(context: ProbeContext, pairs: Collection[Pair]) -> set[Pair]:
    beside = context.moved_point() if pairs else None
    reference = None if beside is None else float64_reference_of(context, beside)
    if reference is None:
        return set()
    probes = _Probes(context, reference, pairs, _FIRST_BESIDE)
    for variable in sorted({variable for _, variable in pairs}):
        for probe in range(_MORE_PROBES):
            probes.measure(probe, [variable])
    return {pair for pair, one in probes.conclusions().items() if one.status == "fail"}


class _Probes:
    """Probes of some pairs at one point."""

    def __init__(
        self,
        context: ProbeContext,
        reference: Float64Reference,
        pairs: Collection[Pair],
        first_probe: int,
    ) -> None:
        self._context = context
        self._reference = reference
        self._pairs = pairs
        self._first = first_probe
        self._gradients: dict[int, Gradients] = {}
        self._seen: dict[Pair, list[tuple[Ruling, Measurement, int]]] = defaultdict(list)

    def measure(self, probe: int, group: Sequence[int]) -> None:
        """Measure variables together, and those that this does not settle in smaller groups."""
        if not group:
            return
        point, reference = self._reference.given, self._reference
        cotangents = self._cotangents(probe)
        direction = {variable: self._direction(probe, variable) for variable in group}
        results = measure(
            reference.subject,
            reference.point,
            cotangents,
            self._differentiated(probe),
            {variable: along.double() for variable, along in direction.items()},
            precision=_MIXED,
            thorough=len(group) == 1,
        )
        steep = reference.differs_by(direction, cotangents)
        rest = []
        for variable in group:
            settled = True
            for output in range(len(point.outputs)):
                if (output, variable) not in self._pairs:
                    continue
                result = results[output]
                ruling = _ruling(result, variable, steep[output])
                if ruling == "pass" or len(group) == 1:
                    self._seen[output, variable].append((ruling, result, probe))
                else:
                    settled = False
            if not settled:
                rest.append(variable)
        parts = len(rest) if len(rest) <= _FEW else 2
        size = -(-len(rest) // max(1, parts))
        for start in range(0, len(rest), max(1, size)):
            self.measure(probe, rest[start : start + size])

    def measure_again(self) -> None:
        """Take more probes of every variable with a gradient that did not agree at once."""
        doubtful = {
            variable
            for (_, variable), seen in self._seen.items()
            if any(one.relative_deviation > _CLEAN for _, one, _ in seen)
            and all(ruling != "unresolved" for ruling, _, _ in seen)
        }
        for variable in sorted(doubtful):
            for probe in range(_PROBES, _MORE_PROBES):
                self.measure(probe, [variable])

    def conclusions(self) -> dict[Pair, Conclusion]:
        """Conclude on the pairs of which every probe says something."""
        found = {}
        for pair, seen in self._seen.items():
            rulings = [ruling for ruling, _, _ in seen]
            if len(seen) < _PROBES or not {"pass", "fail"}.issuperset(rulings):
                continue
            measurements = [measurement for _, measurement, _ in seen]
            off = _typical(one.deviation for one in measurements)
            size = _typical(one.contributions[pair[1]] for one in measurements)
            if off <= _LEAST / 2.0 * size:
                worst = max(measurements, key=lambda one: one.relative_tolerance)
                found[pair] = Conclusion("pass", worst, in_double=True)
            elif off > _LEAST * size and rulings.count("fail") >= _FEWEST_FAILURES:
                worst = max(measurements, key=lambda one: one.relative_deviation)
                found[pair] = Conclusion("fail", worst, in_double=True)
        return found

    def is_certain(self, pair: Pair, noise: UlpNoise) -> bool:
        """Return whether rounding within backward can't be what makes a gradient look wrong."""
        output, variable = pair
        _, result, probe = max(self._seen[pair], key=lambda one: one[1].relative_deviation)
        if self._is_shared(output, variable, probe, result):
            return True
        rounding = noise.of_backward(pair) * result.contribution
        return abs(result.deviation) > _BEYOND_ROUNDING * rounding

    def _is_shared(self, output: int, variable: int, probe: int, result: Measurement) -> bool:
        """Return whether the reference's own gradient is as wrong."""
        reference = self._reference
        along = self._direction(probe, variable).double()
        cotangents = [one.double() for one in self._cotangents(probe)]
        try:
            theirs = differentiate(reference.subject, reference.point, cotangents).rows[output][
                variable
            ]
        except Exception:  # noqa: BLE001 - the user's backward need not take float64
            return False
        ours = self._differentiated(probe).rows[output][variable]
        if theirs is None or ours is None:
            return theirs is ours
        apart = float(((theirs - ours.double()) * along).sum())
        return abs(apart) <= _SHARED * abs(result.deviation)

    def _cotangents(self, probe: int) -> tuple[torch.Tensor, ...]:
        return self._context.cotangents(self._reference.given, self._first + probe)

    def _direction(self, probe: int, variable: int) -> torch.Tensor:
        return self._context.direction(self._first + probe, variable)

    def _differentiated(self, probe: int) -> Gradients:
        if probe not in self._gradients:
            self._gradients[probe] = differentiate(
                self._context.subject, self._reference.given, self._cotangents(probe)
            )
        return self._gradients[probe]


def _typical(numbers: Iterable[float]) -> float:
    known = list(numbers)
    return math.sqrt(math.fsum(number * number for number in known) / len(known))


def _ruling(result: Measurement, variable: int, steep: float) -> Ruling:
    part = result.contributions[variable]
    if not steep <= _ALIKE * part or result.unchanged:
        return "unresolved"
    return judge(result, variable, _MIXED)
