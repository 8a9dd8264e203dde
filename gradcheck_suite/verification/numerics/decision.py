"""What a measurement says of a gradient: right, wrong, or nothing yet and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite.verification.numerics.derivative import Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.numerics.precision import Precision

__all__ = ["Conclusion", "Outcome", "Pair", "Ruling", "conclude", "judge", "why_unresolved"]

Pair: TypeAlias = tuple[int, int]
"""An output and a variable, by index."""

Ruling: TypeAlias = Literal["pass", "fail", "ambiguous", "unresolved"]

CLEARLY = 4.0
"""How many tolerances a deviation must span to count as a wrong gradient.

In two thousand probes of correct networks in float32, with kinks and without, none spanned more
than 0.42; in float64 wrong gradients made by hand span 9,700 and more.
"""

_AS_GOOD_AS_ZERO = 8.0
"""How many tolerances large a derivative may be to pass as zero, where it agrees and its tolerance
is next to nothing against the output (``Precision.zero``). Chosen: a larger one would have to be
resolved."""
_FEWEST_FAILURES = 2
"""Probes are independent; this many have to see a failure before it is told: what one sees by
chance with a small probability, two see with its square."""
_CONTRADICTS = 0.25
"""A pass speaks against a failure only if it would have seen an error of that size: one over
``CLEARLY``, the tolerances that a failure spans."""

_BROKEN_HERE = (
    "the analytic gradient holds NaN or Inf at the given point, where the function has a kink or a "
    "special case, and agrees with the numeric one at a point close by"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measurement's ruling on one (output, variable) pair.

    ``relative`` says that every entry was moved in proportion to itself.
    """

    ruling: Ruling
    measurement: Measurement
    moved: bool
    probe: int
    relative: bool = False


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What all measurements of one pair come to; ``shown`` is the one to quote.

    ``meant`` says that a custom Function on the way declares that it gives no derivative,
    ``in_double`` that differences were taken of a float32 function in float64, ``at_kink``
    that the gradient is NaN or Inf at a kink or a special case.
    """

    status: Literal["pass", "fail", "inconclusive"]
    shown: Measurement
    reason: str | None = None
    moved: bool = False
    meant: bool = False
    in_double: bool = False
    at_kink: bool = False


def judge(measurement: Measurement, variable: int, precision: Precision) -> Ruling:
    """Rule on the gradient with respect to one variable of the measurement's group.

    Within a group of several variables only a pass is certain, and only for those whose part is
    large against the tolerance; the others have to be measured by themselves.
    """
    tolerance = measurement.tolerance
    part = measurement.contributions[variable]
    alone = len(measurement.group) == 1
    if measurement.non_finite:
        size = max(
            precision.resolution * abs(measurement.numeric), precision.zero * measurement.magnitude
        )
        certain = alone and tolerance <= size and not measurement.masked
        return "fail" if certain else "unresolved"
    resolved = tolerance <= precision.resolution * part
    if measurement.z <= 1.0:
        vanishes = (
            alone
            and part <= _AS_GOOD_AS_ZERO * tolerance
            and tolerance <= precision.zero * measurement.magnitude
        )
        return "pass" if resolved or vanishes else "unresolved"
    if not alone or not math.isfinite(tolerance) or measurement.lost_in_rounding:
        return "unresolved"
    if abs(measurement.deviation) < precision.rtol * max(part, abs(measurement.numeric)):
        return "pass" if resolved else "unresolved"
    return "fail" if measurement.z >= CLEARLY else "ambiguous"


def conclude(outcomes: Sequence[Outcome], precision: Precision) -> Conclusion:
    """Conclude on one pair from everything that was measured.

    A wrong gradient is wrong in every probe and at the points around; one probe alone never makes
    a failure.
    """
    by_ruling: dict[Ruling, list[Outcome]] = {
        "pass": [],
        "fail": [],
        "ambiguous": [],
        "unresolved": [],
    }
    for outcome in outcomes:
        by_ruling[outcome.ruling].append(outcome)
    failed = by_ruling["fail"]
    if failed:
        return _conclude_on_failure(failed, by_ruling)
    doubtful, passed = by_ruling["ambiguous"], by_ruling["pass"]
    if doubtful and len(passed) <= len(doubtful):
        worst = max(doubtful, key=lambda outcome: outcome.measurement.z).measurement
        return Conclusion(
            "inconclusive",
            worst,
            f"numeric and analytic derivative differ by {worst.z:.1f} tolerances: more than one, "
            f"as a pass has, and less than {CLEARLY:g}, as a failure has",
        )
    if passed:
        here = [outcome for outcome in passed if not outcome.moved]
        broken = next((o for o in by_ruling["unresolved"] if _is_broken_here(o)), None)
        if broken is not None and not here:
            return Conclusion("inconclusive", broken.measurement, _BROKEN_HERE, at_kink=True)
        best = min(here or passed, key=lambda outcome: outcome.measurement.relative_tolerance)
        return Conclusion("pass", best.measurement, moved=best.moved)
    best = min(by_ruling["unresolved"], key=lambda outcome: outcome.measurement.relative_tolerance)
    return Conclusion("inconclusive", best.measurement, why_unresolved(best.measurement, precision))


def _is_broken_here(outcome: Outcome) -> bool:
    """Return whether a gradient holds NaN or Inf at the given point, where the output is finite."""
    shown = outcome.measurement
    return shown.non_finite and not shown.masked and not outcome.moved


def _conclude_on_failure(
    failed: Sequence[Outcome], by_ruling: Mapping[Ruling, Sequence[Outcome]]
) -> Conclusion:
    here = [outcome for outcome in failed if not outcome.moved]
    worst = max(here or failed, key=lambda outcome: outcome.measurement.z)
    # NaN and Inf are no derivative of anything, and other points have nothing to say on that.
    only_here = worst.measurement.non_finite and bool(here)
    passed = [
        outcome
        for outcome in by_ruling["pass"]
        if not (only_here and outcome.moved)
        and len(outcome.measurement.group) == 1
        and outcome.measurement.relative_tolerance
        < _CONTRADICTS * worst.measurement.relative_deviation
    ]
    agreeing = (outcome for kind in ("pass", "unresolved") for outcome in by_ruling[kind])
    if any(outcome.relative for outcome in agreeing):
        return Conclusion(
            "inconclusive",
            worst.measurement,
            "the gradient disagrees along steps of one length for all entries, and not along "
            "steps in proportion to each entry: near small entries the function may change faster "
            "than these steps can follow; dtype='float64' sees more",
        )
    if any(outcome.moved for outcome in passed) and not any(o.moved for o in failed):
        return Conclusion(
            "inconclusive",
            worst.measurement,
            "the gradient disagrees at the given point and agrees at a point close by: the "
            "function has a kink or a special case exactly here",
        )
    if len(failed) >= _FEWEST_FAILURES and len(failed) > len(passed):
        return Conclusion("fail", worst.measurement, moved=worst.moved)
    return Conclusion(
        "inconclusive",
        worst.measurement,
        _in_words(len(failed), len(passed)),
    )


def _in_words(failed: int, passed: int) -> str:
    """Say how many measurements speak against a gradient and how many for it."""
    if not passed:
        return (
            "along one random direction alone could the gradient be measured, and there it "
            f"disagrees; it takes {_FEWEST_FAILURES} for a failure"
        )
    against = f"{failed} random direction{'s disagree' if failed > 1 else ' disagrees'}"
    return f"{against} with the gradient and {passed} agree{'s' * (passed == 1)}"


def why_unresolved(measurement: Measurement, precision: Precision) -> str:
    """Say what kept a measurement from deciding."""
    if measurement.non_finite and measurement.masked:
        return "neither the output nor the gradient is finite everywhere"
    if not math.isfinite(measurement.tolerance) and not measurement.non_finite:
        return (
            f"the function {measurement.trouble}"
            if measurement.trouble
            else "too few steps could be evaluated"
        )
    if measurement.lost_in_rounding:
        return (
            "the output does not change, and the change that the gradient foretells is smaller "
            "than a rounding of numbers of the size of the input, so that it may be lost"
        )
    seen = measurement.relative_tolerance if measurement.size > 0.0 else math.inf
    unseen = f"an error below {100.0 * seen:.2g}% of the gradient" if seen <= 1.0 else "no error"
    unseen = f"{unseen} could {'not ' if seen <= 1.0 else ''}be seen"
    if measurement.non_finite:
        return "the analytic gradient is not finite, and no numeric one could be measured here"
    cause = {
        "kink": "kinks (relu, abs, max, ...) or coarse rounding lie within the smallest step",
        "rounding": "rounding or noise in the function's values hides its derivative",
        "truncation": "the numeric derivative does not settle as the step shrinks",
    }[measurement.estimate.main_error]
    advice = "" if precision.is_double else "; dtype='float64' sees more"
    return f"{cause}, so {unseen}{advice}"
