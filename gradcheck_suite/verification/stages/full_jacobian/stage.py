"""The stage of a check that compares whole Jacobians: ``full=True``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.findings import JSON, Finding, Verdict, VerdictStatus
from gradcheck_suite.verification.diagnosis.function_source import gradient_place
from gradcheck_suite.verification.diagnosis.messages import measurement_evidence, place_of
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stage import StageResult
from gradcheck_suite.verification.stages.full_jacobian.compare import Comparison, compare_jacobians
from gradcheck_suite.verification.target.graph_walk import only

if TYPE_CHECKING:
    from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry
    from gradcheck_suite.verification.stage import CheckState

__all__ = ["compare_full_jacobians", "pattern_of"]

_FEW_UNDECIDED = 1e-2
"""The share of undecided entries from which on a Jacobian can't be called right. Chosen: kinks and
rounding leave single ones."""
_CLOSE = 1e-5
"""Up to this share of its largest entry a Jacobian may be off from the transposed one, to be called
transposed. Chosen; it names a failure and makes none."""


def compare_full_jacobians(state: CheckState) -> StageResult:
    """Compare every entry of every Jacobian.

    The verdicts take the place of those that the probes gave.
    """
    found = compare_jacobians(
        state.subject,
        state.context.point,
        precision=state.context.precision,
        max_memory=state.options.max_memory,
        deadline=state.deadline,
    )
    verdicts = []
    findings = []
    lines = []
    compared = 0
    for pair, comparison in found.items():
        compared += comparison.compared
        if not comparison.complete:
            total = comparison.shape[0] * comparison.shape[1]
            output, variable = state.context.names(pair)
            lines.append(
                f"{total - comparison.compared} of {total} entries of the Jacobian of "
                f"`{output}` with respect to `{variable}` were not "
                "compared before the time was up"
            )
        verdicts.append(_verdict(state, pair, comparison))
        conclusion = state.conclusions[pair]
        if comparison.wrong and conclusion.status != "fail" and not conclusion.meant:
            findings.append(_finding(state, pair, comparison))
    return StageResult(
        verdicts=tuple(verdicts),
        findings=tuple(findings),
        covered=(f"whole Jacobians: {compared:,} entries",),
        not_covered=tuple(lines),
    )


def pattern_of(comparison: Comparison) -> str | None:
    """Say which entries are wrong, where they have something in common."""
    outputs, inputs = comparison.shape
    if comparison.wrong in {0, outputs * inputs}:
        return "every entry" if comparison.wrong else None
    if comparison.wrong == 1:
        return "one entry"
    numeric, analytic = comparison.numeric, comparison.analytic
    if numeric is not None and analytic is not None and outputs == inputs:
        size = float(numeric.abs().max())
        if bool(((numeric.t() - analytic).abs() <= _CLOSE * size).all()):
            return "transposed"
    for name, mask in (("output", comparison.wrong_outputs), ("input", comparison.wrong_inputs)):
        places = torch.nonzero(mask).flatten()
        first, last, count = int(places[0]), int(places[-1]), places.numel()
        if count == 1:
            return f"all at entry {first} of the {name}"
        if count < mask.numel() and last - first + 1 == count:
            return f"all at entries {first} to {last} of the {name}"
    return "scattered"


def _verdict(state: CheckState, pair: tuple[int, int], comparison: Comparison) -> Verdict:
    conclusion = state.conclusions[pair]
    status: VerdictStatus = conclusion.status
    reason = conclusion.reason
    total = comparison.shape[0] * comparison.shape[1]
    if conclusion.meant:
        pass
    elif comparison.wrong:
        status, reason = "fail", f"{comparison.wrong} of {total} entries of the Jacobian differ"
    elif status == "fail":
        reason = "analytic and numeric gradient differ"
    elif not comparison.complete:
        pass
    elif comparison.undecided > _FEW_UNDECIDED * total:
        if status == "pass":
            status = "inconclusive"
            reason = f"{comparison.undecided} of {total} entries of the Jacobian can't be resolved"
    elif comparison.relative_bound <= state.context.precision.resolution:
        status, reason = "pass", None
    evidence = {**measurement_evidence(conclusion.shown), **_evidence(state, pair, comparison)}
    return Verdict(*state.context.names(pair), status, reason, evidence)


def _evidence(state: CheckState, pair: tuple[int, int], comparison: Comparison) -> dict[str, JSON]:
    jacobian: dict[str, JSON] = {
        "shape": list(comparison.shape),
        "compared": comparison.compared,
        "wrong": comparison.wrong,
        "undecided": comparison.undecided,
        "largest_difference": comparison.largest,
    }
    pattern = pattern_of(comparison)
    worst = _worst(state, pair, comparison)
    if pattern is not None and worst is not None:
        jacobian["pattern"] = pattern
        jacobian["wrong_inputs"] = worst.count
        jacobian["wrong_outputs"] = int(comparison.wrong_outputs.sum())
        jacobian["worst"] = {
            "input_index": list(worst.input_index),
            "output_index": list(worst.output_index or ()),
            "analytic": worst.analytic,
            "numeric": worst.numeric,
            "bound": worst.bound,
        }
    return {"jacobian": jacobian}


def _worst(state: CheckState, pair: tuple[int, int], comparison: Comparison) -> WrongEntry | None:
    """Return the worst entry, counted and under the indices of the user's own tensors."""
    worst = comparison.worst
    if worst is None:
        return None
    output, variable = state.context.point.outputs[pair[0]], state.subject.variables[pair[1]]
    place, entry = worst.output_index or (), worst.input_index
    return replace(
        worst,
        output_index=place[:-1] if output.representation.is_complex else place,
        input_index=entry[:-1] if variable.representation.is_complex else entry,
        count=int(comparison.wrong_inputs.sum()),
    )


def _finding(state: CheckState, pair: tuple[int, int], comparison: Comparison) -> Finding:
    worst = comparison.worst
    assert worst is not None
    outputs, variables = state.context.point.outputs, state.subject.variables
    row = place_of(
        outputs[pair[0]].name,
        worst.output_index or (),
        is_complex=outputs[pair[0]].representation.is_complex,
    )
    column = place_of(
        variables[pair[1]].name,
        worst.input_index,
        is_complex=variables[pair[1]].representation.is_complex,
    )
    output, variable = state.context.names(pair)
    path = RecordedCall.of(state.subject, state.context.point).path(*pair)
    function = only(path.functions)
    made = "" if function is None else f"; made by {function.__qualname__}.backward"
    place = gradient_place(function, path.argument)
    total = comparison.shape[0] * comparison.shape[1]
    return Finding.of(
        catalogue.WRONG_GRADIENT,
        f"gradient of `{output}` with respect to `{variable}`: {comparison.wrong} of {total} "
        f"entries of the Jacobian are wrong, worst d `{row}` / "
        f"d `{column}`: analytic {worst.analytic:.6g}, numeric "
        f"{worst.numeric:.6g} ± {worst.bound:.1g}{made}",
        detector="verify",
        location=place.location,
        related=place.related,
        evidence={
            "output": output,
            "input": variable,
            **_evidence(state, pair, comparison),
        },
    )
