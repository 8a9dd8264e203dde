"""Check the gradients of a function or module."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import JSON, Finding, Report, Severity, Verdict, VerdictStatus
from gradcheck_suite.verification.diagnosis import messages
from gradcheck_suite.verification.diagnosis.findings import find_mistakes
from gradcheck_suite.verification.first_order.half_precision import HalfPrecisionMeasurement
from gradcheck_suite.verification.first_order.measure import Survey
from gradcheck_suite.verification.first_order.piecewise_constant import has_any_effect
from gradcheck_suite.verification.numerics.compute_precision import (
    computes_in_float32,
    narrower_types,
)
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions, DTypeOption, chosen_variations
from gradcheck_suite.verification.progress import Deadline, report_progress
from gradcheck_suite.verification.stage import Known, Stage
from gradcheck_suite.verification.stages.batched import check_batched
from gradcheck_suite.verification.stages.compiled import check_compiled
from gradcheck_suite.verification.stages.contracts.backward_failures import explain_failure
from gradcheck_suite.verification.stages.contracts.stage import probe_contracts
from gradcheck_suite.verification.stages.forward_mode import check_forward_mode
from gradcheck_suite.verification.stages.full_jacobian.stage import compare_full_jacobians
from gradcheck_suite.verification.stages.input_variations.stage import vary_inputs
from gradcheck_suite.verification.stages.second_order import check_second_order
from gradcheck_suite.verification.target.build import build_function
from gradcheck_suite.verification.target.random_state import preserved_randomness
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gradcheck_suite.verification.numerics.decision import Conclusion, Pair
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["check_gradients", "check_with"]

_TOOL = "gradcheck-suite verify"
_REENTRANT = "use_reentrant=True"
_CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# In this order, each with its name and whether the options ask for it at all.
_LATER_STAGES: tuple[tuple[Stage, str, Callable[[CheckOptions], bool]], ...] = (
    (probe_contracts, "contract of backward", lambda _: True),
    (
        vary_inputs,
        "variations of the inputs",
        lambda options: bool(chosen_variations(options.variations)),
    ),
    (check_second_order, "order 2", lambda options: options.order != 1),
    (compare_full_jacobians, "whole Jacobian", lambda options: options.full),
    (check_forward_mode, "forward mode", lambda options: options.forward_mode),
    (check_batched, "batched gradients", lambda options: options.batched),
    (check_compiled, "compiled code", lambda options: options.compiled),
)


_HALF_NOT_COVERED = (
    "in half precision only the slope over many pooled probes was compared, which shows errors of "
    "most of a gradient, not of single entries; variations of the inputs and order 2 need float32 "
    "or float64 (dtype='float64')"
)


_KEPT = (
    "the first call computes with `{0}` and later ones do not: what the first made of it is kept "
    "(a cache). Clear that at the start of each call, or check a function that does"
)


_IN_FLOAT32 = (
    "{} computes in float32, though it is given float64: its gradients were checked as float32 "
    "ones are, to as many digits"
)


_IN_PART = "{0} computes in {1} in part: its gradients were checked to as many digits as that has"


# One wrong call inside of a module spoils what lies before it: from here on that is likely.
_MANY = 3
_INSIDE = "{} gradients are wrong; to find the call inside that makes them so:\n  {}"


_ON_REQUEST = {
    "full": "the whole Jacobian (full=True)",
    "forward_mode": "forward mode",
    "batched": "batched gradients",
    "compiled": "compiled code",
}


def check_gradients(
    fn_or_module: Any,
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    parameters: bool = True,
    dtype: DTypeOption = "native",
    probes: int | None = None,
    seed: int = 0,
    skip_outputs: Collection[str] = (),
    order: int | None = None,
    full: bool = False,
    variations: Collection[str] | None = None,
    forward_mode: bool = False,
    batched: bool = False,
    compiled: bool = False,
    time_limit: float | None = None,
    max_memory: int = 2**30,
) -> Report:
    """Compare every gradient with central differences and report which are wrong.

    Directional derivatives along random directions are measured on a ladder of steps and
    extrapolated; the tolerance is the error of that measurement, so there are no ``eps``,
    ``atol`` and ``rtol`` to choose. Nothing of the user's is modified: tensors, ``.grad``,
    buffers and random number generators are afterwards as they were.

    >>> import torch
    >>> x = torch.tensor([0.5, -1.0], requires_grad=True)
    >>> report = check_gradients(torch.sin, x)
    >>> [(verdict.input, verdict.status) for verdict in report.verdicts]
    [('inputs[0]', 'pass')]

    Args:
        fn_or_module: a function, a module, a bound method of a module, or an
            ``autograd.Function`` class.
        inputs: a tensor; a tuple or list of positional arguments; or a dict of keyword
            arguments. Tensors may lie in tuples, lists, dicts and dataclasses. Those that require
            grad are checked, the others are held constant.
        kwargs: further keyword arguments.
        parameters: whether the parameters of a module are checked as well.
        dtype: "native" checks in the types given; "float32" and "float64" (or the torch types)
            cast copies of inputs, parameters and buffers.
        probes: how many random probes each gradient gets; by default 2 in float64 and 4 in
            float32.
        seed: seeds the probes and the random draws of the function. The same seed gives the same
            report.
        skip_outputs: names of outputs that are not checked, as the report spells them
            (``"output[1]"``).
        order: 2 checks the gradients of the gradients as well, 1 does not; by default they are
            checked where custom Functions are involved and order 1 is right.
        full: whether the whole Jacobian is compared as well, entry by entry.
        variations: names of the variations of the inputs to try; all by default, ``()`` for none.
        forward_mode: whether forward-mode derivatives are compared as well.
        batched: whether batched gradients (vmap of backward) are compared as well.
        compiled: whether the gradients of the compiled function are compared as well.
        time_limit: seconds after which nothing further is begun; what was left out is told.
        max_memory: bytes that the comparison of a whole Jacobian may take at a time.

    Returns:
        A report with a verdict for each output and input or parameter, and findings for what is
        wrong. ``report.raise_for_findings()`` raises if there is one.

    Raises:
        UsageError: there is nothing to check, or the options make no sense.
    """
    options = CheckOptions.validated(
        dtype=dtype,
        parameters=parameters,
        probes=probes,
        seed=seed,
        skip_outputs=skip_outputs,
        order=order,
        full=full,
        variations=variations,
        forward_mode=forward_mode,
        batched=batched,
        compiled=compiled,
        time_limit=time_limit,
        max_memory=max_memory,
        localize_by="gs.localize(model, inputs)",
    )
    return check_with(fn_or_module, inputs, kwargs, options)


def check_with(
    fn_or_module: Any, inputs: Any, kwargs: Mapping[str, Any] | None, options: CheckOptions
) -> Report:
    """Check gradients as :func:`check_gradients` does, with options that are validated."""
    chosen_variations(options.variations)
    deadline = Deadline.after(options.time_limit)
    with torch.inference_mode(mode=False), preserved_randomness():
        subject = build_function(fn_or_module, inputs, kwargs, options)
        try:
            return _check(subject, options, deadline)
        finally:
            subject.restore()


def _check(subject: PureFunction, options: CheckOptions, deadline: Deadline) -> Report:
    outputs, not_covered = _sorted_outputs(subject, subject.first_call(), options)
    verdicts = [
        Verdict(output.name, variable.name, "not covered", reason)
        for output, reason in not_covered
        for variable in subject.variables
    ]
    lines = [
        *subject.not_covered,
        *(f"output `{output.name}` {reason}" for output, reason in not_covered),
    ]
    findings: list[Finding] = []
    covered: list[str] = []
    probes = 0

    def so_far(left_out: str | None) -> Report:
        stopped = () if left_out is None else (_interrupted(left_out),)
        return _report(
            subject,
            options,
            probes=probes,
            findings=findings,
            verdicts=verdicts,
            not_covered=(*lines, *stopped),
            covered=covered,
        )

    if outputs:
        precision, words = _precision(subject, outputs, options)
        covered += words
        probes = options.probes or precision.probes
        try:
            kind = HalfPrecisionMeasurement if precision.is_half else Survey
            survey = kind(
                subject,
                outputs,
                precision=precision,
                seed=options.seed,
                probes=probes,
                deadline=deadline,
            )
        except Exception as error:
            if _REENTRANT in str(error):
                raise UsageError(
                    f"{subject.title} uses reentrant checkpointing, which gives gradients to "
                    "Tensor.backward() alone; check it with checkpoint(..., use_reentrant=False)"
                ) from error
            findings = explain_failure(subject, outputs, error)
            if not findings:
                raise
            verdicts = [*_unmeasured(subject, outputs), *verdicts]
            return so_far(None)
        report_progress(
            "first order",
            lambda: _interrupted_survey(subject, survey, options, verdicts, lines),
        )
        conclusions = survey.run()
        report_progress("what is wrong", lambda: so_far("what is wrong with those that fail"))
        verdicts = [*_verdicts(survey, conclusions), *verdicts]
        findings = list(find_mistakes(survey, conclusions))
        verdicts += _empty_verdicts(survey)
        covered += [*survey.covered, *_independences(survey, conclusions)]
        lines += [*_masked_outputs(survey), *survey.not_covered]
        if not survey.deterministic:
            lines.append(
                f"{subject.title} gives different outputs for the same inputs and random state; "
                "what that noise hides is not covered"
            )
        known = Known(subject, survey, conclusions, options, deadline, tuple(findings))
        if precision.is_half:
            lines += _not_in_half_precision(options)
        asked = [(stage, name) for stage, name, is_asked in _LATER_STAGES if is_asked(options)]
        for stage, doing in () if precision.is_half else asked:
            if deadline.passed:
                lines.append(f"{doing}: the time limit of {options.time_limit:g} s was reached")
                continue
            report_progress(doing, functools.partial(so_far, doing))
            result = stage(known)
            findings += result.findings
            verdicts = _renewed(verdicts, result.verdicts)
            covered += result.covered
            lines += result.not_covered
            known = replace(known, findings=tuple(findings))
    return so_far(None)


def _precision(
    subject: PureFunction, outputs: Sequence[Output], options: CheckOptions
) -> tuple[Precision, list[str]]:
    """Return what differences can tell of a function, and what there is to say of that."""
    types = [
        *(variable.value.dtype for variable in subject.variables),
        *(output.tensor.dtype for output in outputs),
    ]
    precision = precision_of(types)
    if precision.is_half:
        return precision, []
    if precision.is_double and computes_in_float32(subject, outputs, options.seed):
        return precision_of([torch.float32]), [_IN_FLOAT32.format(subject.title)]
    narrower = narrower_types(subject, types, options.seed)
    if narrower:
        names = " and ".join(sorted(map(short_name, narrower)))
        return precision_of([*types, *narrower]), [_IN_PART.format(subject.title, names)]
    return precision, []


def _not_in_half_precision(options: CheckOptions) -> Iterator[str]:
    yield _HALF_NOT_COVERED
    asked = [words for name, words in _ON_REQUEST.items() if getattr(options, name)]
    if asked:
        yield (
            f"{', '.join(asked)}: left out, as half precision can't resolve them; they need "
            "float32 or float64 (dtype='float64')"
        )


def _unmeasured(subject: PureFunction, outputs: Sequence[Output]) -> list[Verdict]:
    """Conclude where something kept every gradient from being computed."""
    return [
        Verdict(output.name, variable.name, "fail", "backward could not be run: see the findings")
        for output in outputs
        for variable in subject.variables
    ]


def _renewed(known: list[Verdict], new: Sequence[Verdict]) -> list[Verdict]:
    """Add verdicts; one on a pair that has a verdict takes its place."""
    places = {(verdict.output, verdict.input): verdict for verdict in [*known, *new]}
    return list(places.values())


def _report(
    subject: PureFunction,
    options: CheckOptions,
    *,
    probes: int,
    findings: Sequence[Finding],
    verdicts: Sequence[Verdict],
    not_covered: Sequence[str],
    covered: Sequence[str] = (),
) -> Report:
    summary: dict[str, JSON] = {
        "target": subject.title,
        "seed": options.seed,
        "dtype": _dtype_name(subject, options),
        "probes": probes,
        "evaluations": subject.evaluations,
        "verdicts": dict(Counter(verdict.status for verdict in verdicts)),
    }
    if covered:
        summary["covered"] = tuple(covered)
    return Report(
        tool=_TOOL,
        findings=tuple(_pointing_inside(findings, verdicts, subject, options)),
        verdicts=tuple(verdicts),
        summary=summary,
        not_covered=tuple(not_covered),
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


def _interrupted_survey(
    subject: PureFunction,
    survey: Survey,
    options: CheckOptions,
    verdicts: Sequence[Verdict],
    lines: Sequence[str],
) -> Report:
    """Report what an interrupted survey had concluded."""
    measured = survey.conclusions_so_far()
    others = [
        Verdict(
            survey.point.outputs[output].name,
            subject.variables[variable].name,
            "not covered",
            "interrupted before it was measured",
        )
        for output, variable in survey.pairs
        if (output, variable) not in measured
    ]
    return _report(
        subject,
        options,
        probes=0,
        findings=(),
        verdicts=(*_verdicts(survey, measured), *others, *verdicts),
        not_covered=(*lines, _interrupted("part of first order")),
    )


def _interrupted(left_out: str) -> str:
    return f"interrupted: {left_out} was left out, and what comes after it"


def _sorted_outputs(
    subject: PureFunction, produced: list[Output], options: CheckOptions
) -> tuple[list[Output], list[tuple[Output, str]]]:
    """Split the outputs into those to check and those not, with why."""
    names = {output.name for output in produced}
    unknown = sorted(options.skip_outputs - names)
    if unknown:
        raise UsageError(
            f"skip_outputs names {unknown[0]!r}, but {subject.title} returns "
            f"{', '.join(sorted(names))}"
        )
    checked: list[Output] = []
    others: list[tuple[Output, str]] = []
    for output in produced:
        reason = _why_not_checked(output, options)
        if reason is None:
            checked.append(output)
        else:
            others.append((output, reason))
    if all(_is_discrete(output.tensor) for output in produced):
        kinds = ", ".join(sorted({short_name(output.tensor.dtype) for output in produced}))
        raise UsageError(
            f"{subject.title} returns only {kinds} tensors, which have no gradient; return the "
            "floating-point tensors to check"
        )
    return checked, others


def _why_not_checked(output: Output, options: CheckOptions) -> str | None:
    tensor = output.tensor
    if output.name in options.skip_outputs:
        return "was left out by skip_outputs"
    if _is_discrete(tensor):
        return f"is {short_name(tensor.dtype)}, which has no gradient"
    if tensor.layout != torch.strided or tensor.dtype not in _CHECKED:
        strange = tensor.dtype if tensor.layout == torch.strided else tensor.layout
        return f"is {short_name(strange)}, which can't be checked"
    if tensor.numel() == 0:
        return "has no elements"
    try:
        some_finite = bool(torch.isfinite(tensor).any())
    except Exception:  # noqa: BLE001 - whatever a subclass of Tensor refuses
        return f"is a {type(tensor).__name__}, whose values can't be read one by one"
    return None if some_finite else "has no finite value at the given point"


def _is_discrete(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _verdicts(survey: Survey, conclusions: Mapping[Pair, Conclusion]) -> Iterator[Verdict]:
    attached = survey.gradients.attached
    for (output, variable), conclusion in conclusions.items():
        evidence = messages.measurement_evidence(conclusion.shown)
        if conclusion.moved:
            evidence["measured_at"] = "a point close by, as a kink lies at the given one"
        if conclusion.in_double:
            evidence["differences_of"] = "the function in float64, which has its values"
        status: VerdictStatus = conclusion.status
        reason = conclusion.reason
        if status == "fail":
            reason = "analytic and numeric gradient differ"
        if (output, variable) in survey.breaches.nonlinear:
            status, reason = "fail", "backward is not linear in the incoming gradient"
        if survey.breaches.differs((output, variable)):
            status, reason = "fail", "two identical backwards give different gradients"
        values = survey.subject.variables[variable].value
        broken = int(values.numel() - torch.isfinite(values).sum())
        if status == "pass" and broken:
            status = "inconclusive"
            reason = (
                f"{broken} of {values.numel()} values of the input "
                f"{'is' if broken == 1 else 'are'} not finite (NaN or Inf), where no derivative "
                "can be measured; the gradient at the others is right. Give finite inputs"
            )
        if status == "pass" and _is_kept(survey, output, variable):
            status = "inconclusive"
            reason = _KEPT.format(survey.subject.variables[variable].name)
        if status == "fail" and not attached[output] and any(attached):
            status, reason = "not covered", "does not require grad while other outputs do"
        yield Verdict(
            survey.point.outputs[output].name,
            survey.subject.variables[variable].name,
            status,
            reason,
            evidence,
        )


def _is_kept(survey: Survey, output: int, variable: int) -> bool:
    """Say whether the first call computed an output of a variable and no later call does."""
    name = survey.point.outputs[output].name
    gradient = survey.gradients.rows[output][variable]
    return gradient is None and (name, variable) in survey.subject.reached


def _masked_outputs(survey: Survey) -> Iterator[str]:
    for output, finite in zip(survey.point.outputs, survey.point.finite, strict=True):
        if finite is not None:
            count = int(finite.numel() - finite.sum())
            yield (
                f"{count} of {finite.numel()} values of `{output.name}` "
                f"{'is not finite and was' if count == 1 else 'are not finite and were'} left out"
            )


def _independences(survey: Survey, conclusions: Mapping[Pair, Conclusion]) -> Iterator[str]:
    """Say of which inputs an output does not depend, and that their gradients are rightly zero."""
    unneeded: dict[int, list[str]] = {}
    for (output, variable), conclusion in conclusions.items():
        gradient = survey.gradients.rows[output][variable]
        if (
            conclusion.status == "pass"
            and (gradient is None or not bool(gradient.any()))
            and not survey.deadline.passed
            and not has_any_effect(survey, output, variable)
        ):
            name = survey.subject.variables[variable].name
            unneeded.setdefault(output, []).append(name)
    for output, names in unneeded.items():
        yield (
            f"`{survey.point.outputs[output].name}` does not depend on {messages.listed(names)}: "
            "the gradient is zero, as it should be"
        )


def _empty_verdicts(survey: Survey) -> Iterator[Verdict]:
    for variable in survey.subject.variables:
        if variable.value.numel() == 0:
            for output in survey.point.outputs:
                yield Verdict(output.name, variable.name, "not covered", "has no elements")


def _dtype_name(subject: PureFunction, options: CheckOptions) -> str:
    if options.cast is not None:
        return short_name(options.cast)
    kinds = sorted({short_name(variable.dtype) for variable in subject.variables})
    return f"native ({', '.join(kinds)})"
