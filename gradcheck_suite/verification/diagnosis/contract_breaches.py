"""What a backward owes and does not keep, and the findings that tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.target.graph_walk import backward_location, only

if TYPE_CHECKING:
    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import JSON

__all__ = ["Breach", "BreachKind", "finding_of_breach"]

BreachKind: TypeAlias = Literal["nonlinear", "layout", "undefined", "written", "aliased", "spoilt"]


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that a backward owes and does not keep.

    Attributes:
        kind: what.
        words: under which incoming gradient, such as "strided".
        output: the number of the output whose incoming gradient shows it, or None for all.
        difference: of the gradients, relative to their size; None where backward raised.
        error: what it raised, as text.
    """

    kind: BreachKind
    words: str
    output: int | None
    difference: float | None = None
    error: str | None = None


_ENTRIES: dict[BreachKind, Entry] = {
    "nonlinear": catalogue.NONLINEAR_BACKWARD,
    "layout": catalogue.LAYOUT_DEPENDENT_GRADIENT,
    "aliased": catalogue.LAYOUT_DEPENDENT_GRADIENT,
    "undefined": catalogue.UNDEFINED_GRADIENT,
    "written": catalogue.GRAD_OUTPUT_MODIFIED,
    "spoilt": catalogue.NONDETERMINISTIC_GRADIENT,
}
_HINTS: dict[BreachKind, str] = {
    "nonlinear": (
        "a backward multiplies the incoming gradient by the local derivative: it may not ignore, "
        "clamp, normalise, round or thin it out; clip gradients after backward instead"
    ),
    "layout": (
        "begin backward with grad_output = grad_output.contiguous() if a kernel takes its pointer "
        "or .view() needs it"
    ),
    "aliased": "several outputs may be given one tensor: write to none of them",
    "undefined": (
        "treat None as zeros, `if grad is not None`, or leave ctx.set_materialize_grads alone, "
        "which hands zeros"
    ),
    "spoilt": (
        "backward may run again on the same graph (retain_graph=True): it may not change what "
        "forward saved, or count its calls on ctx"
    ),
    "written": "write to a new tensor: `grad = grad_output * mask`, not `grad_output.mul_(mask)`",
}


def finding_of_breach(
    breach: Breach, *, subject: str, output: str, functions: tuple[type, ...]
) -> Finding:
    """Turn a breach into a finding.

    Args:
        breach: what was seen.
        subject: whose backward it is.
        output: the name of the output that shows it.
        functions: the custom Functions that may be the cause; a single one is named and located.
    """
    function = only(functions)
    evidence: dict[str, JSON] = {"output": output, "incoming": breach.words}
    if breach.difference is not None:
        evidence["relative_difference"] = min(breach.difference, 1e300)
    if functions:
        evidence["functions"] = [found.__qualname__ for found in functions]
    return Finding.of(
        _ENTRIES[breach.kind],
        f"{subject} {_what(breach, output)}",
        detector="verify",
        location=backward_location(function),
        hint=_HINTS[breach.kind],
        evidence=evidence,
    )


def _what(breach: Breach, output: str) -> str:
    by = "" if breach.difference is None else f", by {_percent(breach.difference)}"
    plain = {
        "nonlinear": f"is not linear in the incoming gradient: {breach.words}{by}",
        "written": f"writes into the gradient it is given for {output}, which others may share",
        "spoilt": f"gives another gradient when it is run again on the same graph{by}",
    }
    if breach.kind in plain:
        return plain[breach.kind]
    if breach.kind == "undefined":
        where = (
            f"where {output} is not used"
            if breach.words == "left out"
            else f"for an undefined gradient of {output}"
        )
        if breach.error is not None:
            return f"raises {where}: {breach.error}"
        return f"gives another gradient {where} than for one of zeros{by}"
    if breach.error is not None:
        return f"raises for {breach.words} incoming gradient: {breach.error}"
    twin = "two of the same values" if breach.kind == "aliased" else "a contiguous one"
    return f"gives another gradient for {breach.words} incoming gradient than for {twin}{by}"


def _percent(share: float) -> str:
    if share < 1.0:
        return f"{100.0 * share:.2g}% of its size"
    return f"{share:.3g} times its size" if share < float("inf") else "NaN or Inf"
