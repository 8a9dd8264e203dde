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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gradcheck_suite.verification.calling import Subject
from gradcheck_suite.verification.points import Point, evaluate, match_outputs, outputs_beside
from gradcheck_suite.verification.probes import inner_product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.calling import Output
    from gradcheck_suite.verification.survey import Survey

__all__ = ["Change", "Twin", "twin_of"]

# Values that differ by more than this share are another function's: constants with few digits,
# other random draws, a branch on the type.
_SAME_VALUES = {torch.float32: 2.0**-10, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
# A step that is small in float64 and as large as float32 can tell.
_NARROW = 2.0**-10
# The slope of the difference is looked at along these steps, where rounding hardly shows in it.
_WIDE = (2.0**-3, 2.0**-5)
_COMPLEX = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# Of torch's functions with such names these write, as do all whose names end in one underscore.
_WRITING = frozenset(
    f"__{name}__" for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow")
)


@dataclass(frozen=True, slots=True)
class Change:
    """What an output of the twin does along a displacement.

    Attributes:
        whole: the change from its one end to the other.
        linear: what the change would be if the slope were that at the point throughout.
        bend: how far ``linear`` may be off by a kink exactly at the point, as ties are.
    """

    whole: torch.Tensor
    linear: torch.Tensor
    bend: torch.Tensor


@dataclass(frozen=True, slots=True)
class Twin:
    """The function in float64.

    Attributes:
        subject: takes and gives float64.
        point: the same point, with the values that float64 gives there.
        original: the function as it was given.
        given: the point as it was given.
    """

    subject: Subject
    point: Point
    original: Subject
    given: Point

    def change_along(
        self, made: Mapping[int, torch.Tensor], ends: Sequence[Sequence[torch.Tensor]]
    ) -> list[Change] | None:
        """Return for each output what it does between two ends.

        Args:
            made: by how much each variable differs between both ends.
            ends: the values of all variables at both ends, in the type of the function.

        Returns:
            One for each output; None where the twin can't be evaluated.
        """
        near = [
            [
                value if variable not in made else value + sign * _NARROW * made[variable].double()
                for variable, value in enumerate(self.point.values)
            ]
            for sign in (1.0, -1.0)
        ]
        far = [[value.double() for value in end] for end in ends]
        produced = outputs_beside(self.subject, self.point, [*far, *near])
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
            ours = outputs_beside(self.original, self.given, ends)
            doubled = [[value.double() for value in end] for end in ends]
            theirs = outputs_beside(self.subject, self.point, doubled)
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


def twin_of(survey: Survey, point: Point) -> Twin | None:
    """Make the function in float64; None if it can't run so, or has other values there.

    Inputs, parameters and buffers are cast. Tensors of a coarser type that the function holds of
    its own are cast wherever one of torch's functions gets them together with float64 ones. A
    function that computes in float32 whatever it is given has no twin.
    """
    subject = survey.subject
    try:
        values = tuple(value.double() for value in point.values)
        constants = [_doubled(constant.value) for constant in subject.constants]
        twin = subject.elsewhere(values=values, constants=constants).within(_Widening)
        found = [
            match_outputs(twin, point.outputs, evaluate(twin, values, recorded=point.recorded))
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
    return Twin(
        twin,
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
