"""A quick look at one call: is the derivative along one random direction what autograd says?

All tensors that require grad move together, scaled by their root mean square, on a short ladder of
steps (as ``numerics/derivative.py`` does). What does not clearly agree is left to the thorough
check, so that a quick look alone never calls anything wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from gradcheck_suite.verification.numerics.derivative import SAFETY
from gradcheck_suite.verification.numerics.directions import generator_for, scales_of
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.target.dense_views import dense
from gradcheck_suite.verification.target.tree import leaves_with_paths

__all__ = ["QuickResult", "floating_outputs", "quick_check"]

Evaluate: TypeAlias = Callable[[Sequence[torch.Tensor]], object]
"""Makes the call with these tensors in place of those that require grad."""

_STEPS = {
    torch.float64: (2.0**-13, 2.0**-15, 2.0**-17, 2.0**-10, 2.0**-20),
    torch.float32: (2.0**-5, 2.0**-6, 2.0**-4, 2.0**-8, 2.0**-10),
}
"""Half widths in units of the input's scale, in the order in which they are tried. The first two
decide where the function is smooth: between the root of third order of eps, best for one
difference, and that of fifth order, best for two extrapolated. Smaller ones follow for kinks,
larger ones for rounding."""
_PAIR = 2
"""How many steps make one extrapolated slope: after more of them a disagreement is left to the
thorough check."""
_FLOOR = 2.0**-10
"""The least scale of a tensor as a share of the typical one, as in ``numerics.directions``."""
_SCALE = -1024.0
"""What cotangents are multiplied by to see whether backward is linear, as
``comparison.REVERSED_AND_SCALED``."""
_SHARE = 0.05
"""A quick look is content with a tolerance of this share of what the thorough check resolves: an
error of that size then spans 20 tolerances. Chosen."""
_DIRECTION, _COTANGENT = 7101, 7102
"""Streams of directions and cotangents; any numbers do that no other stream uses."""
_DRAWN = 8191
"""How many numbers are drawn and then repeated for large tensors. A bound on cost; a prime, so that
no row of a tensor is as long."""


@dataclass(frozen=True, slots=True)
class QuickResult:
    """What a quick look came to.

    ``status`` is "doubtful" where the thorough check has to decide, "nothing" where no output
    requires grad. ``error`` is the deviation in units of its tolerance, ``tolerance`` the
    tolerance relative to the derivative.
    """

    status: Literal["pass", "doubtful", "nothing"]
    error: float = 0.0
    tolerance: float = 0.0


def floating_outputs(tree: object) -> list[torch.Tensor]:
    """Return the floating-point and complex tensors in what a call returned."""
    return [
        leaf
        for _, leaf in leaves_with_paths(tree, "output")
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]


def quick_check(
    evaluate: Evaluate,
    values: Sequence[torch.Tensor],
    seed: int,
    *,
    contracts: bool = False,
    jointly: bool = False,
) -> QuickResult:
    """Compare one directional derivative of a call.

    Args:
        evaluate: makes the call; may be called any number of times.
        values: the tensors that require grad.
        seed: for direction and cotangents.
        contracts: whether backward is run once more, to see that it is linear in the incoming
            gradient and only reads it.
        jointly: whether to be content with the sum of all gradients, where the tolerance hides
            those of single tensors.
    """
    known = {value.dtype for value in values} <= _STEPS.keys()
    if not known or any(value.layout is not torch.strided for value in values):
        return QuickResult("doubtful")
    with torch.enable_grad():
        leaves = [value.detach().clone().requires_grad_() for value in values]
        outputs = floating_outputs(evaluate(leaves))
    attached = [index for index, output in enumerate(outputs) if output.requires_grad]
    if not attached:
        return QuickResult("nothing")
    if any(output.dtype not in _STEPS or output.layout is not torch.strided for output in outputs):
        return QuickResult("doubtful")
    check = _QuickCheck(evaluate, values, leaves, outputs=outputs, attached=attached, seed=seed)
    if contracts and not check.keeps_contracts():
        return QuickResult("doubtful")
    return check.result(jointly=jointly)


class _QuickCheck:
    def __init__(
        self,
        evaluate: Evaluate,
        values: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        *,
        outputs: Sequence[torch.Tensor],
        attached: Sequence[int],
        seed: int,
    ) -> None:
        self._evaluate = evaluate
        self._values = [value.detach() for value in values]
        self._attached = attached
        self._count = len(outputs)
        self._cotangents = [
            _spread(outputs[index], generator_for(seed, _COTANGENT, index)) for index in attached
        ]
        self._magnitude = math.sqrt(
            sum(
                float(torch.linalg.vector_norm(cotangent * outputs[index].detach())) ** 2
                for index, cotangent in zip(attached, self._cotangents, strict=True)
            )
        )
        self._given = [cotangent.clone() for cotangent in self._cotangents]
        gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [outputs[index] for index in attached],
            list(leaves),
            self._given,
            allow_unused=True,
        )
        self._gradients: list[torch.Tensor | None] = [
            None if gradient is None else dense(gradient) for gradient in gradients
        ]
        self._directions = [
            _spread(value, generator_for(seed, _DIRECTION, index)).mul_(scale)
            for index, (value, scale) in enumerate(
                zip(self._values, _scales(self._values), strict=True)
            )
        ]
        self._parts = [
            0.0 if gradient is None else float(torch.linalg.vector_norm(gradient * direction))
            for gradient, direction in zip(self._gradients, self._directions, strict=True)
        ]
        dtypes = [*(value.dtype for value in values), *(output.dtype for output in outputs)]
        self._precision = precision_of(dtypes)
        self._steps = _STEPS[torch.float64 if self._precision.is_double else torch.float32]

    def keeps_contracts(self) -> bool:
        """Run backward on the cotangents times -1024: a power of two, which rounds nothing."""
        if any(
            not torch.equal(given, meant)
            for given, meant in zip(self._given, self._cotangents, strict=True)
        ):
            return False
        with torch.enable_grad():
            leaves = [value.clone().requires_grad_() for value in self._values]
            outputs = floating_outputs(self._evaluate(leaves))
        again = torch.autograd.grad(
            [outputs[index] for index in self._attached],
            leaves,
            [cotangent * _SCALE for cotangent in self._cotangents],
            allow_unused=True,
        )
        for first, second in zip(self._gradients, again, strict=True):
            if first is None or second is None:
                continue
            allowed = self._precision.linearity * float(first.abs().max()) if first.numel() else 0.0
            if not bool(((dense(second) / _SCALE - first).abs() <= allowed).all()):
                return False
        return True

    def result(self, *, jointly: bool) -> QuickResult:
        everything = list(range(len(self._values)))
        error, tolerance = self._compare(everything, thorough=False)
        worst, widest = error, self._relative(everything, tolerance)
        if not error <= 1.0:
            return QuickResult("doubtful", worst, widest)
        if jointly:
            fine = widest <= self._precision.resolution
            return QuickResult("pass" if fine else "doubtful", worst, widest)
        for index in everything:
            if self._is_resolved(index, tolerance, alone=False) or not self._values[index].numel():
                continue
            alone, width = self._compare([index], thorough=True)
            worst = max(worst, alone)
            if not alone <= 1.0 or not self._is_resolved(index, width, alone=True):
                return QuickResult("doubtful", worst, widest)
        return QuickResult("pass", worst, widest)

    def _relative(self, group: Sequence[int], tolerance: float) -> float:
        size = math.sqrt(sum(self._parts[index] ** 2 for index in group))
        return tolerance / size if size > 0.0 else tolerance

    def _is_resolved(self, index: int, tolerance: float, *, alone: bool) -> bool:
        if tolerance <= _SHARE * self._precision.resolution * self._parts[index]:
            return True
        return alone and tolerance <= self._precision.zero * self._magnitude

    def _compare(self, group: Sequence[int], *, thorough: bool) -> tuple[float, float]:
        """Return the deviation in units of its tolerance, and that tolerance."""
        best = math.inf, math.inf
        size = math.sqrt(sum(self._parts[index] ** 2 for index in group))
        previous: tuple[float, float] | None = None
        for count, step in enumerate(self._steps, start=1):
            slope = self._deviation(group, step)
            if slope is None:
                previous = None
                continue
            if previous is not None and previous[0] != step:
                ratio = (previous[0] / step) ** 2
                value = slope + (slope - previous[1]) / (ratio - 1.0)
                rounding = self._precision.eps * (self._magnitude / step + size)
                spread = max(abs(value - slope), abs(slope - previous[1]) / 4.0)
                tolerance = SAFETY * (spread + rounding)
                if tolerance < best[1]:
                    best = (abs(value) / tolerance if tolerance > 0.0 else 0.0), tolerance
            previous = step, slope
            settled = best[0] <= 1.0 and all(
                self._is_resolved(index, best[1], alone=len(group) == 1) for index in group
            )
            if settled or (count > _PAIR and best[0] > 1.0 and not thorough):
                break
        return best

    def _deviation(self, group: Sequence[int], step: float) -> float | None:
        ahead = [
            value if index in group else value.clone() for index, value in enumerate(self._values)
        ]
        behind = list(ahead)
        expected = 0.0
        for index in group:
            shift = step * self._directions[index]
            ahead[index] = self._values[index] + shift
            behind[index] = self._values[index] - shift
            gradient = self._gradients[index]
            if gradient is not None:
                expected += _product(gradient, ahead[index] - behind[index])
        try:
            high, low = self._outputs(ahead), self._outputs(behind)
        except Exception:  # noqa: BLE001 - whatever the user's function raises around the point
            return None
        if len(high) != self._count or len(low) != self._count:
            return None
        seen = 0.0
        for index, cotangent in zip(self._attached, self._cotangents, strict=True):
            seen += _product(cotangent, high[index] - low[index])
        slope = (seen - expected) / (2.0 * step)
        return slope if math.isfinite(slope) else None

    def _outputs(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return floating_outputs(self._evaluate(values))


def _product(one: torch.Tensor, two: torch.Tensor) -> float:
    """Return the inner product, summed up in double precision."""
    return float((one * two).sum(dtype=torch.float64))


def _spread(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw signs times magnitudes from 1/2 to 3/2, quickly.

    Large tensors get the same draw again and again, each time with a random sign.
    """
    size = like.numel()
    drawn = torch.empty(min(size, _DRAWN), dtype=like.dtype)
    drawn.uniform_(-1.0, 1.0, generator=generator)
    drawn.add_(drawn.sign(), alpha=0.5)
    if size > _DRAWN:
        signs = torch.empty(-(-size // _DRAWN), 1, dtype=like.dtype)
        signs.uniform_(-1.0, 1.0, generator=generator).sign_()
        drawn = (signs * drawn).flatten()[:size]
    return drawn.view(like.shape).to(like.device)


def _scales(values: Sequence[torch.Tensor]) -> list[float]:
    """Return the root mean square of each tensor; the median of the others' for zeros."""
    sizes = [
        float(torch.linalg.vector_norm(value)) / math.sqrt(value.numel()) if value.numel() else 0.0
        for value in values
    ]
    if not all(map(math.isfinite, sizes)):
        return scales_of(values)
    known = sorted(size for size in sizes if size > 0.0)
    typical = known[len(known) // 2] if known else 1.0
    return [max(size, typical * _FLOOR) if size > 0.0 else typical for size in sizes]
