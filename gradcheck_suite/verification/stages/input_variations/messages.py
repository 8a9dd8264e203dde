"""Put what a variation showed into findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.function_source import error_place, gradient_place
from gradcheck_suite.verification.numerics.comparison import difference
from gradcheck_suite.verification.target.graph_walk import graph_path, only
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from gradcheck_suite.findings import JSON
    from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.graph_walk import GraphPath

__all__ = [
    "as_layout_dependent",
    "backward_fails",
    "raises_alone",
    "under_variation",
    "wrong_alone",
]


def under_variation(
    findings: Iterable[Finding], *, kind: str, words: str, hint: str
) -> Iterator[Finding]:
    """Say in each finding that it holds only under a variation of the inputs.

    Where no custom Function is on the way, it is a warning: torch's own operations may be right
    only for what they are meant for, such as the absolute value in ``torch.polar``.
    """
    for finding in findings:
        yield replace(
            finding,
            severity=_severity(finding),
            message=f"only {words}: {finding.message}",
            hint=finding.hint or hint,
            evidence={**finding.evidence, "variation": kind, "seen": words},
        )


def as_layout_dependent(
    findings: Iterable[Finding], *, layout: str, names: Iterable[str]
) -> Iterator[Finding]:
    """Turn wrong gradients that only one layout of the inputs shows into GCS609."""
    shown = ", ".join(f"`{name}`" for name in names)
    words = f"{layout} inputs ({shown})"
    for finding in findings:
        evidence: dict[str, JSON] = {
            **finding.evidence,
            "variation": layout,
            "seen_as": finding.code,
        }
        yield Finding.of(
            catalogue.LAYOUT_DEPENDENT_GRADIENT,
            severity=_severity(finding),
            message=f"only for {words}, right for contiguous ones: {finding.message}",
            detector="verify",
            location=finding.location,
            related=finding.related,
            hint=(
                "call .contiguous() on what a kernel or .view() needs contiguous, in forward "
                "before it is saved and in backward; reproduce with "
                f"{_REPRODUCE[layout]}"
            ),
            evidence=evidence,
        )


def _severity(finding: Finding) -> Severity:
    """Call it a warning where nothing but torch's own operations is on the way."""
    if finding.evidence.get("functions") or finding.evidence.get("function"):
        return finding.severity
    return min(finding.severity, Severity.WARNING)


def backward_fails(
    error: BaseException, *, layout: str, names: Iterable[str], path: GraphPath
) -> Finding:
    """Report a backward that raises for one layout of the inputs, which forward takes."""
    shown = ", ".join(f"`{name}`" for name in names)
    return Finding.of(
        catalogue.LAYOUT_DEPENDENT_GRADIENT,
        f"backward raises for {layout} inputs ({shown}), which forward takes, and not for "
        f"contiguous ones: {one_line(error)}",
        detector="verify",
        severity=None if path.functions else Severity.WARNING,
        location=error_place(error, only(path.functions)).location,
        hint=f"use .reshape() or .contiguous(); reproduce with {_REPRODUCE[layout]}",
        evidence={"variation": layout, "functions": [f.__qualname__ for f in path.functions]},
    )


_REPRODUCE = {
    "strided": "x = torch.stack((y, x), -1)[..., 1]",
    "transposed": "x = x.mT.contiguous().mT",
    "offset": "x = torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape)",
    "expanded": "x = x[:1].expand_as(x)",
}


def raises_alone(error: BaseException, recording: RecordedCall, words: str) -> Finding:
    """Report a backward that raises where only some of the inputs require grad."""
    path = graph_path(recording.tensors[recording.attached[0]], None)
    function = only(path.functions)
    return Finding.of(
        catalogue.NONE_GRADIENT,
        f"backward raises where {words}, and not where all inputs do: {one_line(error)}"
        + (f"; raised by {function.__qualname__}.backward" if function else ""),
        detector="verify",
        severity=Severity.WARNING,  # whoever calls it so is told by torch
        location=error_place(error, function).location,
        hint=_HINT,
        evidence={"variation": "alone", "functions": [f.__qualname__ for f in path.functions]},
    )


def wrong_alone(
    state: CheckState,
    recording: RecordedCall,
    pair: tuple[int, int],
    gradients: tuple[torch.Tensor | None, torch.Tensor | None],
    words: str,
) -> Finding:
    """Report a gradient that is another one where only some of the inputs require grad."""
    output, variable = pair
    expected, found = gradients
    path = graph_path(recording.tensors[output], recording.leaves[variable])
    function = only(path.functions)
    nothing = found is None or not bool((found != 0).any())
    what = "is None" if found is None else "is zero" if nothing else "is another one"
    names = state.context.names(pair)
    place = gradient_place(function, path.argument, suspicion="alone")
    return Finding.of(
        catalogue.NONE_GRADIENT if nothing else catalogue.WRONG_GRADIENT,
        f"gradient of `{names[0]}` with respect to `{names[1]}` {what} where {words}; where all "
        "inputs do it is right"
        + (f"; made by {function.__qualname__}.backward" if function else ""),
        detector="verify",
        location=place.location,
        related=place.related,
        hint=_HINT,
        evidence={
            "variation": "alone",
            "output": names[0],
            "input": names[1],
            "relative_difference": min(difference(expected, found), 1e300),
            "functions": [f.__qualname__ for f in path.functions],
        },
    )


_HINT = (
    "ctx.needs_input_grad has one entry for each argument of forward after ctx; each gradient must "
    "be made under its own, whatever the others are"
)
