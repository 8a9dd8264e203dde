"""Put what was found into findings: what, where, expected against seen, next step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradcheck_suite import catalogue
from gradcheck_suite.findings import JSON, Finding
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.target.graph_walk import GraphPath, only
from gradcheck_suite.verification.target.non_derivatives import CTC, STRAIGHT_THROUGH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.verification.diagnosis.classify import Diagnosis
    from gradcheck_suite.verification.diagnosis.function_source import Place, Suspicion
    from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry
    from gradcheck_suite.verification.numerics.derivative import Measurement

__all__ = [
    "Broken",
    "detached_output",
    "functions_of",
    "listed",
    "measurement_evidence",
    "percent",
    "place_of",
    "suspicion_of",
    "wrong_gradient",
]

_WHOLE = 1e-3
"""By what share a ratio may miss one over a size of the input, to ask whether a mean is taken for a
sum. Chosen: sizes up to a thousand are further apart; only a hint depends on it."""
_ALL = 0.995
"""The share of a gradient's size from which on a deviation is written in times of it: two digits of
per cent would be written 1e+02 from here on."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The first entry of a gradient that is NaN or Inf, how many are, and of how many."""

    index: tuple[int, ...]
    count: int
    total: int


def measurement_evidence(measurement: Measurement) -> dict[str, JSON]:
    """Give the numbers of a measurement by name."""
    return {
        "numeric": measurement.numeric,
        "analytic": measurement.analytic,
        "tolerance": _finite(measurement.tolerance),
        "relative_error": measurement.relative_deviation,
        "relative_tolerance": _finite(measurement.relative_tolerance),
        "step": _finite(measurement.estimate.step),
    }


def wrong_gradient(
    *,
    output: str,
    variable: str,
    also: Sequence[str],
    shape: Sequence[int],
    shown: Measurement,
    diagnosis: Diagnosis,
    entry: WrongEntry | None,
    path: GraphPath,
    place: Place,
    unseen: str = "",
    at_kink: bool = False,
    broken: Broken | None = None,
    ends_early: bool = False,
    draws: bool = False,
    is_complex: tuple[bool, bool] = (False, False),
) -> Finding:
    """Report a gradient that differs from the numeric one, or is missing.

    ``also`` names other inputs and parameters whose gradients the same mistake can explain,
    ``unseen`` what forward does at the line of ``place`` that autograd does not see,
    ``broken`` tells which entries are NaN or Inf, ``at_kink`` that the function has slopes there,
    ``ends_early`` that the gradient is off by little and the function iterates: a warning, as the
    gradient of the limit may be what is meant; ``draws`` that backward draws random numbers.
    ``is_complex`` says of output and variable whether the last dimension of ``shape`` and of the
    indices in ``entry`` counts real and imaginary parts.
    """
    function = only(path.functions)
    kind, ratio = diagnosis.kind, diagnosis.ratio
    if entry is not None and diagnosis.most is not None and entry.count > diagnosis.most:
        entry = replace(entry, count=diagnosis.most)  # an estimate that is known to be too high
    nothing = kind in {"missing", "zero"}
    blamed = nothing and path.connected and bool(path.functions)
    subject = f"gradient of `{output}` with respect to `{variable}`"
    numbers = (
        f"(analytic {shown.analytic:.6g}, numeric {shown.numeric:.6g} ± {shown.tolerance:.1g} "
        "along a random direction)"
    )
    if shown.non_finite:
        message = f"{subject} holds NaN or Inf where "
        if at_kink:
            message += "the function has a kink, with a finite slope on either side of it"
        else:
            message += (
                f"the numeric derivative is finite ({shown.numeric:.6g} ± {shown.tolerance:.1g} "
                "along a random direction)"
            )
        chosen = catalogue.NON_FINITE_GRADIENT
    else:
        wrong = _what_is_wrong(diagnosis, shown.relative_deviation, path)
        message = f"{subject} {wrong} {numbers}"
        chosen = catalogue.NONE_GRADIENT if blamed else catalogue.WRONG_GRADIENT
    message += _where_broken(variable, broken, is_complex=is_complex[1])
    told = (*diagnosis.conditions, *((_ITERATES,) if ends_early else ()))
    message += "".join(f"; {words}" for words in told)
    shape = shape[:-1] if is_complex[1] else shape
    message += "".join(_details(output, variable, shape, entry, function, is_complex=is_complex))
    message += unseen
    if also:
        more = "one more gradient is" if len(also) == 1 else f"{len(also)} more gradients are"
        message += f"; {more} wrong with it: {listed(also)}"
    evidence: dict[str, JSON] = {
        "output": output,
        "input": variable,
        "shape": [int(size) for size in shape],
        "kind": "non-finite" if shown.non_finite else kind,
        **measurement_evidence(shown),
    }
    if also:
        evidence["also_wrong"] = list(also)
    if ratio is not None:
        evidence["ratio"] = ratio
    if diagnosis.ratio_name:
        evidence["ratio_name"] = diagnosis.ratio_name
    if diagnosis.only:
        evidence["only"] = list(diagnosis.only)
    if entry is not None:
        evidence["entry"] = {
            "input_index": [*_split(entry.input_index, is_complex[1])[0]],
            "output_index": None
            if entry.output_index is None
            else [*_split(entry.output_index, is_complex[0])[0]],
            "analytic": _finite(entry.analytic),
            "numeric": entry.numeric,
            "bound": entry.bound,
            "wrong": entry.count,
            "total": entry.total,
            "counted": entry.exact,
        }
    evidence.update(functions_of(path))
    hint = _hint(
        shown=shown,
        diagnosis=diagnosis,
        variable=variable,
        shape=shape,
        function=function,
        path=path,
        ends_early=ends_early,
        draws=draws,
    )
    return Finding.of(
        chosen,
        message,
        detector="verify",
        severity=Severity.WARNING if ends_early else None,
        location=place.location,
        related=place.related,
        hint=hint,
        evidence=evidence,
    )


def detached_output(
    *,
    output: str,
    variables: Sequence[str],
    shown: Measurement,
    path: GraphPath,
    place: Place,
    unseen: str,
    others_attached: bool,
) -> Finding:
    """Report an output that depends on inputs and does not require grad.

    Beside outputs that do carry a gradient it may be a metric, detached on purpose: a warning.
    """
    names = listed(variables)
    return Finding.of(
        catalogue.DETACHED_OUTPUT,
        f"`{output}` does not require grad, yet it depends on {names} (numeric derivative "
        f"{shown.numeric:.6g} ± {shown.tolerance:.1g} along a random direction): no gradient "
        f"flows through it{unseen}",
        detector="verify",
        severity=Severity.WARNING if others_attached else Severity.ERROR,
        location=place.location,
        related=place.related,
        hint=(
            "look for detach(), .data, no_grad, item() or mark_non_differentiable on the way to "
            f"it; if that is meant, as for a metric, pass skip_outputs=[{output!r}]"
        ),
        evidence={
            "output": output,
            "inputs": list(variables),
            **measurement_evidence(shown),
            **functions_of(path),
        },
    )


def _where_broken(variable: str, broken: Broken | None, *, is_complex: bool) -> str:
    if broken is None or not broken.index:
        return ""
    place = place_of(variable, broken.index, is_complex=is_complex)
    first = f", first `{place}`" if broken.count > 1 else f": `{place}`"
    return f"; {broken.count} of {broken.total} entries{first}"


def _what_is_wrong(diagnosis: Diagnosis, relative: float, path: GraphPath) -> str:
    kind, ratio = diagnosis.kind, diagnosis.ratio
    if diagnosis.words is not None:
        return diagnosis.words
    if kind == "missing":
        return "is None" if path.connected else "is missing: no path in the graph leads to it"
    if kind == "zero":
        return "is zero"
    if kind == "sign":
        return "has the wrong sign"
    if kind == "factor" and ratio is not None:
        return f"is {ratio:.6g} times the numeric one"
    return f"differs from the numeric one by {percent(relative)}"


def _details(
    output: str,
    variable: str,
    shape: Sequence[int],
    entry: WrongEntry | None,
    function: type | None,
    *,
    is_complex: tuple[bool, bool],
) -> Iterator[str]:
    if entry is not None:
        named = place_of(variable, entry.input_index, is_complex=is_complex[1])
        place = f"`{named}`" if entry.input_index else ""
        # Adding zero leaves no minus zero.
        derivative = f"analytic {entry.analytic + 0.0:.6g}, numeric {entry.numeric + 0.0:.6g}"
        if entry.output_index:
            named = place_of(output, entry.output_index, is_complex=is_complex[0])
            derivative = f"d `{named}`: {derivative}"
        if entry.count > 1 or entry.least:
            about = "at least " if entry.least else "" if entry.exact else "about "
            are = "are" if entry.count > 1 else "is"
            count = f"{about}{entry.count} of {entry.total} entries {are} wrong"
            yield f"; {count}, worst {place}: {derivative}" if place else f"; {count}"
        elif place:
            yield f"; wrong at {place} of shape {tuple(shape)}: {derivative}"
    if function is not None:
        yield f"; made by {function.__qualname__}.backward"


def place_of(name: str, index: Sequence[int], *, is_complex: bool) -> str:
    """Write one entry of a tensor as code; of a complex one the part that was looked at.

    >>> place_of("z", (3, 1), is_complex=True)
    'z[3].imag'
    """
    indices, part = _split(index, is_complex)
    return f"{name}[{', '.join(map(str, indices))}]{part}" if indices else f"{name}{part}"


def _split(index: Sequence[int], is_complex: bool) -> tuple[list[int], str]:
    """Take apart the index into pairs of real and imaginary parts."""
    if not is_complex:
        return list(index), ""
    return list(index[:-1]), (".real", ".imag")[index[-1]]


_LITTLE = 1e-3
"""The relative deviation under which a message asks whether something approximates on purpose.
Chosen; only a hint depends on it."""
_DRAWS = (
    "backward draws random numbers of its own: save in forward what forward drew (a mask, noise), "
    "and use that"
)
_ITERATES = "the function makes more or fewer operations for other values: it iterates"
_APPROXIMATE = (
    "if forward or backward approximates on purpose (an ODE solver, an iteration that ends early), "
    "this is how far it is off: check it with a tighter tolerance or more iterations"
)


def _hint(*, shown: Measurement, path: GraphPath, draws: bool, **others: Any) -> str | None:
    if path.log_probabilities is False:
        return f"{CTC}: put log_softmax before it"
    if draws:
        return _DRAWS
    return None if shown.non_finite else _hint_of_kind(shown=shown, path=path, **others)


def _hint_of_kind(
    *,
    shown: Measurement,
    diagnosis: Diagnosis,
    variable: str,
    shape: Sequence[int],
    function: type | None,
    path: GraphPath,
    ends_early: bool,
) -> str | None:
    kind, ratio = diagnosis.kind, diagnosis.ratio
    if kind == "not zero" or shown.numeric == 0.0 or shown.unchanged:
        return (_without_effect if kind == "no effect" else _straight_through)(function)
    if kind == "missing" and not path.connected:
        return f"look for detach(), .data, no_grad or item() between `{variable}` and the output"
    if kind in {"missing", "zero", "sign"} and function is not None:
        return (_reverses if kind == "sign" else _must_return)(function, variable)
    size = _inverse(ratio)
    if kind == "factor" and size in {*shape, math.prod(shape)} - {1}:
        return f"1/{size}: is a mean taken where forward takes a sum?"
    if ratio is not None and " and " in diagnosis.ratio_name:
        return f"{ratio:.6g} is {diagnosis.ratio_name}".replace(
            f"{ratio:.6g} is {ratio:.6g}, and ", ""
        )
    return _APPROXIMATE if ends_early or shown.relative_deviation < _LITTLE else None


def _reverses(function: type, _variable: str) -> str:
    return (
        "if it reverses the gradient on purpose (domain-adversarial training), say so: write "
        f"`{STRAIGHT_THROUGH} = True` in the body of {function.__name__}, and what comes through "
        "it is not held to be a derivative"
    )


def _must_return(function: type, variable: str) -> str:
    return (
        f"{function.__name__}.backward must return, in the place of `{variable}`, a gradient of "
        "its shape; needs_input_grad counts the arguments of forward after ctx"
    )


def _without_effect(function: type | None) -> str:
    if function is None:
        return (
            "if detach() keeps the value as it is on purpose (a surrogate loss), its gradient is "
            "no derivative and can't be checked"
        )
    return f"{function.__name__}.backward must return None for what the output does not depend on"


def _straight_through(function: type | None) -> str:
    if function is None:
        return (
            "the function does not change here; if it rounds on purpose (a straight-through "
            "estimator), its gradient is no derivative and can't be checked"
        )
    return (
        "if it rounds on purpose and passes the gradient on (a straight-through estimator), say "
        f"so: write `{STRAIGHT_THROUGH} = True` in the body of {function.__name__}, and what comes "
        "through it is not held to be a derivative"
    )


def percent(share: float) -> str:
    """Write a deviation as a share of what it deviates from."""
    if share < _ALL:
        return f"{100.0 * share:.2g}% of its size"
    return f"{share:.3g} times its size"


def suspicion_of(diagnosis: Diagnosis, *, draws: bool, varied: str | None) -> Suspicion | None:
    """Return what is known of a wrong gradient that points to a line of backward."""
    if draws:
        return "random"
    if "layout" in (varied, *diagnosis.only):
        return "layout"
    if varied == "sizes":
        return "sizes"
    if diagnosis.kind in {"missing", "zero"}:
        return "ignored"
    return "mean" if diagnosis.kind == "factor" and _inverse(diagnosis.ratio) > 1 else None


def _inverse(ratio: float | None) -> int:
    """Return the whole number whose inverse a ratio equals; 0 if there is none."""
    size = round(1.0 / ratio) if ratio else 0
    return size if size > 0 and ratio and abs(ratio * size - 1.0) < _WHOLE else 0


def functions_of(path: GraphPath) -> dict[str, JSON]:
    """Name the custom Functions in question as evidence, where there are any."""
    names: list[JSON] = [function.__qualname__ for function in path.functions]
    return {"functions": names} if names else {}


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the names in backquotes, separated by commas; of many, the first and a number."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
