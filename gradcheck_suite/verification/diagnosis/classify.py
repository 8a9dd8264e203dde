"""What kind of mistake a wrong gradient shows. Nothing is said that a probe does not bear out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gradcheck_suite.verification.diagnosis.evidence import Evidence
from gradcheck_suite.verification.diagnosis.regions import claim_on_a_region, claim_on_one_entry
from gradcheck_suite.verification.diagnosis.whole_gradient import (
    Claim,
    claim_on_a_term,
    claim_on_the_whole,
)
from gradcheck_suite.verification.numerics.derivative import differentiate
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import shifted_point
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.decision import Conclusion
    from gradcheck_suite.verification.numerics.derivative import Measurement
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Diagnosis", "ErrorKind", "diagnose", "error_kind", "first_look", "name_ratio"]

_LEAST_ERROR = 1e-9
"""The least that a ratio is taken to be uncertain by, however well its probes agree. Chosen: far
above the rounding of float64, far below what tells two named ratios apart."""
_FEW = 0.5
"""A share of all entries: where fewer are wrong, where they lie says more than what would make up
for them. Chosen; only the order of the two questions depends on it."""
_MANY = 48
"""One wrong entry of more entries than these is told by two probes and one of the others, in place
of all. A bound on cost, the same as the ``_SMALL`` of ``regions``, which looks at every entry of
fewer."""
_FEWEST_PROBES = 2
"""How many probes tell that one entry alone is wrong: two by independent draws, in place of the
eight of other claims. A bound on cost: each probe takes some ten evaluations."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of a wrong gradient.

    Attributes:
        kind: "missing" (None), "zero", "sign", "factor", "transposed", "flipped", "shifted",
            "conjugate", "missing reduction", "missing term", "stale", "region", "not zero" or
            "other".
        words: what follows "the gradient of a with respect to b", or None where the kind says
            all, or nothing is known.
        ratio: analytic over numeric gradient for "sign" and "factor".
        ratio_name: known numbers that the ratio equals.
        most: how many entries can be wrong at most, where that is known.
        circumstances: in which type, layout or output alone it is wrong.
        only: the names of these circumstances: "dtype", "layout", "output".
    """

    kind: str
    words: str | None = None
    ratio: float | None = None
    ratio_name: str = ""
    most: int | None = None
    conditions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def first_look(measurements: Sequence[Measurement]) -> Diagnosis:
    """Tell what the failed measurements show without any further one."""
    kind, ratio = error_kind(measurements)
    return Diagnosis(kind, ratio=ratio)


def diagnose(
    context: ProbeContext,
    conclusions: Mapping[tuple[int, int], Conclusion],
    pair: tuple[int, int],
    *,
    first: Diagnosis,
    entry: WrongEntry | None,
) -> Diagnosis:
    """Find out what kind of mistake made a gradient wrong.

    It takes some forty calls of the function where one entry of many is wrong, else a hundred and
    more.

    Args:
        context: gives the function, the point and random draws.
        conclusions: what it came to, for every pair.
        pair: the output and the variable.
        first: what the failed measurements show.
        entry: a wrong entry, if one is known.
    """
    output, variable = pair
    step = conclusions[pair].shown.estimate.step
    try:
        evidence, found = _one_of_many(context, pair, step, entry)
        if evidence is None or found is None:
            evidence = Evidence(context, output, variable, step)
            found = _kind_of_mistake(evidence, first, entry)
        conditions = conditions_of(evidence, conclusions)
    except Exception:  # noqa: BLE001 - the user's backward may refuse any other cotangent
        return first
    return replace(
        found,
        conditions=tuple(claim.words for claim in conditions),
        only=tuple(claim.kind for claim in conditions),
    )


def _one_of_many(
    context: ProbeContext, pair: tuple[int, int], step: float, entry: WrongEntry | None
) -> tuple[Evidence | None, Diagnosis | None]:
    """Say that one entry is wrong, where that is known and no factor explains it as well."""
    if entry is None or not entry.exact or entry.count > 1 or entry.total <= _MANY:
        return None, None
    evidence = Evidence(context, *pair, step, probes=_FEWEST_PROBES)
    if evidence.factor(lambda probe: probe.gradient) is not None:
        return None, None
    claim = claim_on_one_entry(evidence, entry)
    found = None if claim is None else Diagnosis(claim.kind, claim.words, most=claim.most)
    return evidence, found


def _kind_of_mistake(evidence: Evidence, first: Diagnosis, entry: WrongEntry | None) -> Diagnosis:
    if first.kind in {"missing", "zero"} or not evidence.sharp:
        return first
    fitted = evidence.factor(lambda probe: probe.gradient)
    if fitted is not None and abs(fitted[0]) <= fitted[1]:
        return Diagnosis("not zero", words="is not zero, as the numeric one is")
    if fitted is not None:
        factor, error = fitted
        ratio, error = 1.0 / factor, max(error / factor**2, _LEAST_ERROR)
        if abs(ratio + 1.0) <= error:
            return Diagnosis("sign", ratio=-1.0)
        context = evidence.context
        shapes = [
            (known.name, tuple(value.shape))
            for known, value in zip(context.subject.variables, context.point.values, strict=True)
        ]
        shapes += [(known.name, tuple(known.tensor.shape)) for known in context.point.outputs]
        name = name_ratio(ratio, error, shapes)
        return Diagnosis("factor", ratio=ratio, ratio_name=name)
    few = entry is not None and entry.count <= _FEW * entry.total
    claim: Claim | None = claim_on_the_whole(evidence)
    if claim is None and entry is not None and few:
        claim = claim_on_a_region(evidence, entry)
    claim = claim or claim_on_staleness(evidence) or claim_on_a_term(evidence)
    if claim is None and entry is not None and not few:
        claim = claim_on_a_region(evidence, entry)
    if claim is None:
        return Diagnosis("other")
    return Diagnosis(claim.kind, claim.words, ratio=claim.ratio, most=claim.most)


ErrorKind: TypeAlias = Literal["missing", "zero", "sign", "factor", "other"]

_SAME_RATIO = 1e-2
"""How uncertain the ratios of analytic to numeric gradient may be, as a share, to say that they are
all one: where a ratio is the same in every random direction, each entry has it. Beyond their own
errors they may differ by a thousandth of it. Chosen."""
_FEWEST_RATIOS = 2
"""How many probes must have the same ratio: one agrees with itself."""


def error_kind(measurements: Sequence[Measurement]) -> tuple[ErrorKind, float | None]:
    """Tell what the failed measurements of one pair have in common.

    Returns:
        The kind and, for "sign" and "factor", the ratio of analytic to numeric derivative.
    """
    if all(measurement.missing for measurement in measurements):
        return "missing", None
    if all(measurement.contribution == 0.0 for measurement in measurements):
        return "zero", None
    ratios = []
    for measurement in measurements:
        if measurement.numeric == 0.0:
            return "other", None
        ratios.append(measurement.analytic / measurement.numeric)
    middle = sorted(ratios)[len(ratios) // 2]
    slack = [
        _SAME_RATIO * 1e-3 + 2.0 * abs(m.tolerance / m.numeric) * abs(middle) for m in measurements
    ]
    same = all(abs(r - middle) <= s for r, s in zip(ratios, slack, strict=True))
    precise = all(s <= _SAME_RATIO * abs(middle) for s in slack)
    if len(ratios) < _FEWEST_RATIOS or not (same and precise):
        return "other", None
    return ("sign" if abs(middle + 1.0) <= max(slack) else "factor"), middle


_MOST_NAMES = 3
"""How many dimensions of a size a message names; only its length depends on it."""


def name_ratio(ratio: float, error: float, shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Name known numbers that a ratio equals within its error; empty if there is none.

    >>> name_ratio(0.25, 1e-9, [("x", (4, 5))])
    '1/4, and 4 is the size of dimension 0 of `x`'
    >>> name_ratio(-2 ** 0.5, 1e-9, [])
    '-sqrt(2)'
    >>> name_ratio(1.01, 1e-9, [])
    ''

    Args:
        ratio: analytic over numeric gradient.
        error: how far the ratio may be off, in the same unit.
        shapes: names and shapes of tensors whose sizes may be the factor.
    """
    sign = "-" if ratio < 0.0 else ""
    size = abs(ratio)
    sizes: dict[int, list[str]] = {}
    for count, origin in _sizes(shapes):
        sizes.setdefault(count, []).append(origin)
    for words, value, count in _known(sizes):
        if abs(size - value) <= max(error, 4e-16 * value):
            origins = sizes.get(count, [])[:_MOST_NAMES]
            if not origins:
                return f"{sign}{words}"
            return f"{sign}{words}, and {count} is {' or '.join(origins)}"
    return ""


def _known(sizes: Iterable[int]) -> Iterator[tuple[str, float, int]]:
    yield "1", 1.0, 1
    for count in dict.fromkeys((2, *sizes, 3, 4)):
        yield str(count), float(count), count
        yield f"1/{count}", 1.0 / count, count
    for count in dict.fromkeys((2, *sizes)):
        yield f"sqrt({count})", math.sqrt(count), count
        yield f"1/sqrt({count})", 1.0 / math.sqrt(count), count
    for count in sizes:
        yield f"{count - 1}/{count}", (count - 1) / count, count
        if count > 1:
            yield f"{count}/{count - 1}", count / (count - 1), count
    for words, value in (("pi", math.pi), ("2*pi", 2.0 * math.pi), ("ln(2)", math.log(2.0))):
        yield words, value, 0
        yield f"1/{words}" if "*" not in words else f"1/({words})", 1.0 / value, 0


def _sizes(shapes: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[int, str]]:
    for name, shape in shapes:
        for dim, size in enumerate(shape):
            if size > 1:
                yield size, f"the size of dimension {dim} of `{name}`"
        total = math.prod(shape)
        if len(shape) > 1 and total > 1:
            yield total, f"the number of elements of `{name}`"


_STREAM = 9101
"""Seed of the draws that move inputs; any number does that no other stream uses."""


def conditions_of(
    evidence: Evidence, conclusions: Mapping[tuple[int, int], Conclusion]
) -> tuple[Claim, ...]:
    """Return what else is known of when the gradient is wrong and when right."""
    found = (_only_this_dtype(evidence), _only_this_layout(evidence))
    only = _only_this_output(evidence, conclusions)
    return tuple(claim for claim in (*found, only) if claim is not None)


def claim_on_staleness(evidence: Evidence) -> Claim | None:
    """See whether the gradient stays the same at other values, where the derivative does not."""
    context = evidence.context
    if not evidence.sharp:
        return None
    offsets = [
        0.25 * value.abs() * random_signs(value, generator_for(_STREAM, index))
        for index, value in enumerate(context.point.values)
    ]
    moved = shifted_point(context.subject, context.point, offsets)
    probe = evidence.probes[0]
    if moved is None or not bool((probe.gradient != 0.0).any()):
        return None
    cotangents = [torch.zeros_like(known.tensor) for known in moved.outputs]
    cotangents[evidence.output] = probe.cotangent.to(moved.outputs[evidence.output].tensor.dtype)
    row = differentiate(context.subject, moved, cotangents).rows[evidence.output]
    there = row[evidence.variable]
    if there is None or not torch.equal(there.double(), probe.gradient):
        return None
    result = evidence.deviation(probe.direction, probe.cotangent, point=moved)
    change = abs(result.numeric - probe.numeric)
    if not change > 4.0 * (result.tolerance + probe.tolerance):
        return None
    return Claim(
        "stale",
        "is the same for other inputs, and the numeric one is not: it is kept from another call, "
        "or leaves the inputs out",
    )


def _only_this_dtype(evidence: Evidence) -> Claim | None:
    point, subject = evidence.context.point, evidence.context.subject
    dtype = point.values[evidence.variable].dtype
    if dtype == torch.float64 or not evidence.sharp:
        return None
    constants = [
        constant.value.double() if constant.value.is_floating_point() else constant.value
        for constant in subject.constants
    ]
    values = [value.double() for value in point.values]
    if _is_right_there(evidence, subject.elsewhere(values=values, constants=constants), values):
        shown = short_name(dtype)
        return Claim("dtype", f"only in {shown}: in float64 it is right")
    return None


def _only_this_layout(evidence: Evidence) -> Claim | None:
    point, subject = evidence.context.point, evidence.context.subject
    if all(value.is_contiguous() for value in point.values) or not evidence.sharp:
        return None
    values = [value.contiguous() for value in point.values]
    if _is_right_there(evidence, subject.elsewhere(values=values), values):
        return Claim("layout", "only in this layout: for contiguous inputs it is right")
    return None


def _is_right_there(
    evidence: Evidence, subject: PureFunction, values: Sequence[torch.Tensor]
) -> bool:
    """Return whether the analytic gradient of the function elsewhere agrees with every probe."""
    outputs = evidence.context.point.outputs
    place = replace(evidence.context.point, values=tuple(values))

    def gradient(cotangent: torch.Tensor) -> torch.Tensor:
        cotangents = [torch.zeros_like(known.tensor) for known in outputs]
        cotangents[evidence.output] = cotangent
        part = differentiate(subject, place, cotangents).rows[evidence.output][evidence.variable]
        return torch.zeros_like(evidence.value) if part is None else part.double()

    try:
        return evidence.holds(lambda probe: gradient(probe.cotangent))
    except Exception:  # noqa: BLE001 - the user's function may refuse these tensors
        return False


def _only_this_output(
    evidence: Evidence, conclusions: Mapping[tuple[int, int], Conclusion]
) -> Claim | None:
    """Say so if the other outputs' gradients with respect to the same variable pass."""
    others = {
        output: conclusion.status
        for (output, variable), conclusion in conclusions.items()
        if variable == evidence.variable and output != evidence.output
    }
    if not others or set(others.values()) != {"pass"}:
        return None
    names = [f"`{evidence.context.point.outputs[output].name}`" for output in sorted(others)]
    shown = names[0] if len(names) == 1 else f"the {len(names)} other outputs"
    return Claim("output", f"only for this output: that of {shown} is right")
