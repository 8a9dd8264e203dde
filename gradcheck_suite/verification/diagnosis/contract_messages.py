"""What a backward owes and does not keep, and the findings that tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.function_source import (
    Suspicion,
    error_place,
    gradient_place,
    returned_place,
    written_input_place,
)
from gradcheck_suite.verification.diagnosis.messages import functions_of, percent
from gradcheck_suite.verification.target.graph_walk import only
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import JSON
    from gradcheck_suite.verification.target.graph_walk import GraphPath

__all__ = [
    "Breach",
    "BreachKind",
    "blamed",
    "constant_output",
    "finding_of_breach",
    "grad_output_modified",
    "nondeterministic_gradient",
    "nonlinear_backward",
    "raises_without_output",
    "refused_gradient",
    "unmarked_write",
    "wrong_arity",
]

BreachKind: TypeAlias = Literal["nonlinear", "layout", "undefined", "written", "aliased", "spoilt"]


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that a backward owes and does not keep.

    Attributes:
        kind: what.
        words: under which incoming gradient, such as "strided".
        output: the number of the output whose incoming gradient shows it, or None for all.
        difference: of the gradients, relative to their size; None where backward raised.
        raised: what it raised.
    """

    kind: BreachKind
    words: str
    output: int | None
    difference: float | None = None
    raised: BaseException | None = None

    @property
    def error(self) -> str | None:
        """What it raised, as text."""
        return None if self.raised is None else one_line(self.raised)


_ENTRIES: dict[BreachKind, Entry] = {
    "nonlinear": catalogue.NONLINEAR_BACKWARD,
    "layout": catalogue.LAYOUT_DEPENDENT_GRADIENT,
    "aliased": catalogue.LAYOUT_DEPENDENT_GRADIENT,
    "undefined": catalogue.UNDEFINED_GRADIENT,
    "written": catalogue.GRAD_OUTPUT_MODIFIED,
    "spoilt": catalogue.NONDETERMINISTIC_GRADIENT,
}
_SUSPICIONS: dict[BreachKind, Suspicion] = {
    "nonlinear": "nonlinear",
    "layout": "layout",
    "aliased": "layout",
    "written": "written",
    "spoilt": "saved",
    "undefined": "undefined",
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
    place = (
        gradient_place(function, None, suspicion=_SUSPICIONS.get(breach.kind))
        if breach.raised is None
        else error_place(breach.raised, function)
    )
    return Finding.of(
        _ENTRIES[breach.kind],
        f"{subject} {_what(breach, output)}",
        detector="verify",
        location=place.location,
        related=place.related,
        hint=_HINTS[breach.kind],
        evidence=evidence,
    )


def nonlinear_backward(
    *, output: str, variable: str, difference: float, path: GraphPath
) -> Finding:
    """Report a backward that is not linear in the incoming gradient."""
    place = gradient_place(only(path.functions), path.argument, suspicion="nonlinear")
    return Finding.of(
        catalogue.NONLINEAR_BACKWARD,
        f"gradient of `{output}` with respect to `{variable}` is not linear in the incoming "
        "gradient: backward(-1024 * g) / -1024 differs from backward(g) by "
        f"{percent(difference)}{_made_by(path)}",
        detector="verify",
        location=place.location,
        related=place.related,
        hint=(
            "a backward multiplies the incoming gradient by the local derivative: it may not "
            "ignore, clamp, normalise or round it; clip gradients after backward instead"
        ),
        evidence={
            "output": output,
            "input": variable,
            "relative_difference": difference,
            **functions_of(path),
        },
    )


def nondeterministic_gradient(
    *, output: str, variable: str, difference: float, by_rounding: bool, path: GraphPath
) -> Finding:
    """Report two identical backwards that gave different gradients."""
    rounding = ", which is rounding alone" if by_rounding else ""
    place = gradient_place(only(path.functions), path.argument, suspicion="random")
    return Finding.of(
        catalogue.NONDETERMINISTIC_GRADIENT,
        f"gradient of `{output}` with respect to `{variable}` differs between two identical "
        f"backwards by {percent(difference)}{rounding}{_made_by(path)}",
        detector="verify",
        severity=Severity.NOTE if by_rounding else None,
        location=place.location,
        related=place.related,
        hint=(
            "torch.use_deterministic_algorithms(True) names ops that add in random order"
            if by_rounding
            else "look for state that backward changes, random draws in backward, and "
            "uninitialised memory (torch.empty)"
        ),
        evidence={
            "output": output,
            "input": variable,
            "relative_difference": difference,
            **functions_of(path),
        },
    )


def grad_output_modified(*, output: str, path: GraphPath) -> Finding:
    """Report a backward that writes into the gradient it was given."""
    place = gradient_place(only(path.functions), None, suspicion="written")
    return Finding.of(
        catalogue.GRAD_OUTPUT_MODIFIED,
        f"backward of `{output}` writes into the incoming gradient, which other parts of the "
        f"graph may share{_made_by(path)}",
        detector="verify",
        location=place.location,
        related=place.related,
        hint=_HINTS["written"],
        evidence={"output": output, **functions_of(path)},
    )


def wrong_arity(function: type, returned: int, needed: int) -> Finding:
    """Report a backward that returns too few or too many gradients."""
    return Finding.of(
        catalogue.BACKWARD_ARITY,
        f"{function.__qualname__}.backward returns {returned} gradient{'s' * (returned != 1)}, "
        f"forward takes {needed} arguments after ctx",
        detector="verify",
        location=returned_place(function, "backward").location,
        hint="return one value for each argument of forward, None for what needs no gradient",
        evidence={"function": function.__qualname__, "returned": returned, "needed": needed},
    )


def refused_gradient(function: type, text: str, argument: int | None) -> Finding:
    """Report a backward whose gradients are of a wrong shape, type or device.

    ``argument`` is that of forward whose gradient is refused, where it is known.
    """
    place = gradient_place(function, argument)
    return Finding.of(
        catalogue.WRONG_GRADIENT,
        f"{function.__qualname__}.backward returns what torch refuses: {text}",
        detector="verify",
        location=place.location,
        related=place.related,
        hint="each gradient needs the shape, type and device of its input",
        evidence={"function": function.__qualname__},
    )


def raises_without_output(function: type, text: str, error: BaseException) -> Finding:
    """Report a backward that needs a gradient of every output."""
    place = error_place(error, function)
    return Finding.of(
        catalogue.UNDEFINED_GRADIENT,
        f"{function.__qualname__}.backward raises where one of its outputs is not used, and not "
        f"for a gradient of zeros: {text}",
        detector="verify",
        location=place.location,
        hint=_HINTS["undefined"],
        evidence={"function": function.__qualname__},
    )


def unmarked_write(function: type, place: int, *, is_harmless: bool) -> Finding:
    """Report a forward that writes into an input without marking it dirty."""
    but = "; here every gradient is right all the same" if is_harmless else ""
    written = written_input_place(function, place)
    return Finding.of(
        catalogue.MISSING_MARK_DIRTY,
        f"{function.__qualname__}.forward writes into its input {place} in place and does not "
        f"say so: autograd keeps the gradient of what it was before{but}",
        detector="verify",
        severity=Severity.WARNING if is_harmless else None,
        location=written.location,
        related=written.related,
        hint=(
            "call ctx.mark_dirty(x) and return x, or work on x.clone(); an input that is a leaf "
            "can't be written at all"
        ),
        evidence={"function": function.__qualname__, "input": place},
    )


def constant_output(function: type, name: str, number: int) -> Finding:
    """Report an output, forward's of this number, that has no gradient and requires one."""
    place = returned_place(function, "forward", number)
    return Finding.of(
        catalogue.OUTPUT_WRONGLY_DIFFERENTIABLE,
        f"`{name}` of {function.__qualname__} holds whole numbers that do not change with the "
        "inputs and have no gradient, yet it requires grad",
        detector="verify",
        location=place.location,
        hint="call ctx.mark_non_differentiable(it) in forward",
        evidence={"output": name, "function": function.__qualname__},
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
    other = "two of the same values" if breach.kind == "aliased" else "a contiguous one"
    return f"gives another gradient for {breach.words} incoming gradient than for {other}{by}"


def _percent(share: float) -> str:
    if share < 1.0:
        return f"{100.0 * share:.2g}% of its size"
    return f"{share:.3g} times its size" if share < float("inf") else "NaN or Inf"


def blamed(finding: Finding) -> str | None:
    """Return the name of the one custom Function that a finding is about."""
    functions = finding.evidence.get("functions", finding.evidence.get("function"))
    if isinstance(functions, (list, tuple)):
        functions = functions[0] if len(functions) == 1 else None
    return functions if isinstance(functions, str) else None


def _made_by(path: GraphPath) -> str:
    function = only(path.functions)
    return "" if function is None else f"; made by {function.__qualname__}.backward"
