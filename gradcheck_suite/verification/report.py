"""The report of a check: what was concluded, found and covered, as it comes in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.findings import JSON, Finding, Report, Severity, Verdict, VerdictStatus
from gradcheck_suite.verification.diagnosis.messages import listed, measurement_evidence
from gradcheck_suite.verification.first_order.piecewise_constant import has_any_effect
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gradcheck_suite.verification.first_order.measure import GradientMeasurement
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.decision import Conclusion, Pair
    from gradcheck_suite.verification.options import CheckOptions
    from gradcheck_suite.verification.stage import StageResult
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["ReportBuilder"]

_TOOL = "gradcheck-suite verify"
_HALF_NOT_COVERED = (
    "in half precision only the slope over many pooled probes was compared, which shows errors of "
    "most of a gradient, not of single entries; variations of the inputs and order 2 need float32 "
    "or float64 (dtype='float64')"
)
_KEPT = (
    "the first call computes with `{0}` and later ones do not: what the first made of it is kept "
    "(a cache). Clear that at the start of each call, or check a function that does"
)
_RANDOM = (
    "{} gives different outputs for the same inputs and random state; what that noise hides is not "
    "covered"
)
_MANY = 3
"""From so many wrong gradients of a module on it is likely that one wrong call inside spoils what
lies before it, and the report names ``localize``. Chosen; only a hint depends on it."""
_INSIDE = "{} gradients are wrong; to find the call inside that makes them so:\n  {}"
_ON_REQUEST = {
    "full": "the whole Jacobian (full=True)",
    "forward_mode": "forward mode",
    "batched": "batched gradients",
    "compiled": "compiled code",
}


class ReportBuilder:
    """Collects what a check comes to.

    Attributes:
        probes: how many random probes each gradient gets.
        findings: each mistake that was found.
        covered: sentences on what was looked at and held.
        not_covered: sentences on what was not looked at, and why.
    """

    def __init__(
        self,
        subject: PureFunction,
        options: CheckOptions,
        unchecked: Sequence[tuple[Output, str]],
    ) -> None:
        self.probes = 0
        self.findings: list[Finding] = []
        self.covered: list[str] = []
        self.not_covered = [
            *subject.not_covered,
            *(f"output `{output.name}` {reason}" for output, reason in unchecked),
        ]
        self._subject = subject
        self._options = options
        self._verdicts = [
            Verdict(output.name, variable.name, "not covered", reason)
            for output, reason in unchecked
            for variable in subject.variables
        ]

    def report(self, left_out: str | None = None) -> Report:
        """Report what is known so far; ``left_out`` is what an interruption leaves out."""
        stopped = () if left_out is None else (_interrupted(left_out),)
        return self._report(self._verdicts, (*self.not_covered, *stopped), probes=self.probes)

    def report_on_part(self, measurement: GradientMeasurement) -> Report:
        """Report what an interrupted measurement had concluded."""
        context = measurement.context
        measured = measurement.conclusions_so_far()
        others = [
            Verdict(*context.names(pair), "not covered", "interrupted before it was measured")
            for pair in context.pairs
            if pair not in measured
        ]
        return self._report(
            (*_verdicts(context, measured), *others, *self._verdicts),
            (*self.not_covered, _interrupted("part of first order")),
            probes=0,
        )

    def conclude_on_failure(self, outputs: Sequence[Output], findings: Iterable[Finding]) -> None:
        """Add what kept every gradient from being computed."""
        self.findings += findings
        reason = "backward could not be run: see the findings"
        self._verdicts = [
            *(
                Verdict(output.name, variable.name, "fail", reason)
                for output in outputs
                for variable in self._subject.variables
            ),
            *self._verdicts,
        ]

    def conclude(self, context: ProbeContext, conclusions: Mapping[Pair, Conclusion]) -> None:
        """Add the verdicts on the gradients themselves."""
        self._verdicts = [*_verdicts(context, conclusions), *self._verdicts]
        self._verdicts += _empty_verdicts(context)

    def cover(
        self, measurement: GradientMeasurement, conclusions: Mapping[Pair, Conclusion]
    ) -> None:
        """Add what the measurement of the gradients looked at, and what it did not."""
        context = measurement.context
        self.covered += [*measurement.covered, *_independences(context, conclusions)]
        self.not_covered += [*_masked_outputs(context), *measurement.not_covered]
        if not context.deterministic:
            self.not_covered.append(_RANDOM.format(self._subject.title))
        if context.precision.is_half:
            self.not_covered += _not_in_half_precision(self._options)

    def add(self, result: StageResult) -> None:
        """Add what a stage has come to; its verdict on a pair takes the place of an earlier one."""
        self.findings += result.findings
        verdicts = (*self._verdicts, *result.verdicts)
        places = {(verdict.output, verdict.input): verdict for verdict in verdicts}
        self._verdicts = list(places.values())
        self.covered += result.covered
        self.not_covered += result.not_covered

    def _report(
        self, verdicts: Sequence[Verdict], not_covered: Sequence[str], *, probes: int
    ) -> Report:
        subject, options = self._subject, self._options
        summary: dict[str, JSON] = {
            "target": subject.title,
            "seed": options.seed,
            "dtype": _dtype_name(subject, options),
            "probes": probes,
            "evaluations": subject.evaluations,
            "verdicts": dict(Counter(verdict.status for verdict in verdicts)),
        }
        if self.covered:
            summary["covered"] = tuple(self.covered)
        return Report(
            tool=_TOOL,
            findings=tuple(_pointing_inside(self.findings, verdicts, subject, options)),
            verdicts=tuple(verdicts),
            summary=summary,
            not_covered=tuple(not_covered),
        )


def _interrupted(left_out: str) -> str:
    return f"interrupted: {left_out} was left out, and what comes after it"


def _not_in_half_precision(options: CheckOptions) -> Iterator[str]:
    yield _HALF_NOT_COVERED
    asked = [words for name, words in _ON_REQUEST.items() if getattr(options, name)]
    if asked:
        yield (
            f"{', '.join(asked)}: left out, as half precision can't resolve them; they need "
            "float32 or float64 (dtype='float64')"
        )


def _pointing_inside(
    findings: Sequence[Finding],
    verdicts: Sequence[Verdict],
    subject: PureFunction,
    options: CheckOptions,
) -> Iterator[Finding]:
    """Yield the findings; the first error names ``localize`` if much of a module is wrong."""
    wrong = {verdict.input for verdict in verdicts if verdict.status == "fail"}
    helps = len(wrong) >= _MANY and any(known.kind == "parameter" for known in subject.variables)
    for finding in findings:
        if options.localize_by and helps and finding.severity is Severity.ERROR:
            helps = False
            words = _INSIDE.format(len(wrong), options.localize_by)
            yield replace(finding, hint="\n".join(filter(None, (finding.hint, words))))
        else:
            yield finding


def _verdicts(context: ProbeContext, conclusions: Mapping[Pair, Conclusion]) -> Iterator[Verdict]:
    attached = context.gradients.attached
    for (output, variable), conclusion in conclusions.items():
        evidence = measurement_evidence(conclusion.shown)
        if conclusion.moved:
            evidence["measured_at"] = "a point close by, as a kink lies at the given one"
        if conclusion.in_double:
            evidence["differences_of"] = "the function in float64, which has its values"
        status: VerdictStatus = conclusion.status
        reason = conclusion.reason
        if status == "fail":
            reason = "analytic and numeric gradient differ"
        if (output, variable) in context.breaches.nonlinear:
            status, reason = "fail", "backward is not linear in the incoming gradient"
        if context.breaches.differs((output, variable)):
            status, reason = "fail", "two identical backwards give different gradients"
        values = context.subject.variables[variable].value
        broken = int(values.numel() - torch.isfinite(values).sum())
        if status == "pass" and broken:
            status = "inconclusive"
            reason = (
                f"{broken} of {values.numel()} values of the input "
                f"{'is' if broken == 1 else 'are'} not finite (NaN or Inf), where no derivative "
                "can be measured; the gradient at the others is right. Give finite inputs"
            )
        if status == "pass" and _is_kept(context, output, variable):
            status = "inconclusive"
            reason = _KEPT.format(context.subject.variables[variable].name)
        if status == "fail" and not attached[output] and any(attached):
            status, reason = "not covered", "does not require grad while other outputs do"
        yield Verdict(*context.names((output, variable)), status, reason, evidence)


def _is_kept(context: ProbeContext, output: int, variable: int) -> bool:
    """Return whether the first call computed an output of a variable and no later call does."""
    name = context.point.outputs[output].name
    gradient = context.gradients.rows[output][variable]
    return gradient is None and (name, variable) in context.subject.reached


def _masked_outputs(context: ProbeContext) -> Iterator[str]:
    for output, finite in zip(context.point.outputs, context.point.finite, strict=True):
        if finite is not None:
            count = int(finite.numel() - finite.sum())
            yield (
                f"{count} of {finite.numel()} values of `{output.name}` "
                f"{'is not finite and was' if count == 1 else 'are not finite and were'} left out"
            )


def _independences(context: ProbeContext, conclusions: Mapping[Pair, Conclusion]) -> Iterator[str]:
    """Say of which inputs an output does not depend, and that their gradients are rightly zero."""
    unneeded: dict[int, list[str]] = {}
    for (output, variable), conclusion in conclusions.items():
        gradient = context.gradients.rows[output][variable]
        if (
            conclusion.status == "pass"
            and (gradient is None or not bool(gradient.any()))
            and not context.deadline.passed
            and not has_any_effect(context, output, variable)
        ):
            name = context.subject.variables[variable].name
            unneeded.setdefault(output, []).append(name)
    for output, names in unneeded.items():
        yield (
            f"`{context.point.outputs[output].name}` does not depend on {listed(names)}: "
            "the gradient is zero, as it should be"
        )


def _empty_verdicts(context: ProbeContext) -> Iterator[Verdict]:
    for variable in context.subject.variables:
        if variable.value.numel() == 0:
            for output in context.point.outputs:
                yield Verdict(output.name, variable.name, "not covered", "has no elements")


def _dtype_name(subject: PureFunction, options: CheckOptions) -> str:
    if options.cast is not None:
        return short_name(options.cast)
    kinds = sorted({short_name(variable.dtype) for variable in subject.variables})
    return f"native ({', '.join(kinds)})"
