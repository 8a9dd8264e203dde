"""Check the gradients of a function or module."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._runtime.watchers import unwatched
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.findings import find_mistakes
from gradcheck_suite.verification.first_order.half_precision import HalfPrecisionMeasurement
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.compute_precision import (
    computes_in_float32,
    narrower_types,
)
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions, DTypeOption, chosen_variations
from gradcheck_suite.verification.progress import Deadline, report_progress, shown
from gradcheck_suite.verification.report import ReportBuilder
from gradcheck_suite.verification.reproduction.script import FailingCheck
from gradcheck_suite.verification.sharded.check import check_sharded, is_sharded_anywhere
from gradcheck_suite.verification.stage import CheckState, Stage
from gradcheck_suite.verification.stages.batched import compare_batched
from gradcheck_suite.verification.stages.compiled import compare_compiled
from gradcheck_suite.verification.stages.contracts.backward_failures import explain_failure
from gradcheck_suite.verification.stages.contracts.stage import probe_contracts
from gradcheck_suite.verification.stages.forward_mode import compare_forward_mode
from gradcheck_suite.verification.stages.full_jacobian.stage import compare_full_jacobians
from gradcheck_suite.verification.stages.input_variations.stage import vary_inputs
from gradcheck_suite.verification.stages.second_order import check_second_order
from gradcheck_suite.verification.target.arguments import split_arguments
from gradcheck_suite.verification.target.build import build_function
from gradcheck_suite.verification.target.random_state import preserved_randomness
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gradcheck_suite.findings import Report
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["check_gradients", "check_with"]

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
    (compare_forward_mode, "forward mode", lambda options: options.forward_mode),
    (compare_batched, "batched gradients", lambda options: options.batched),
    (compare_compiled, "compiled code", lambda options: options.compiled),
)
_IN_FLOAT32 = (
    "{} computes in float32, though it is given float64: its gradients were checked as float32 "
    "ones are, to as many digits"
)
_IN_PART = "{0} computes in {1} in part: its gradients were checked to as many digits as that has"


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
    with shown("Checking gradients"):
        return check_with(fn_or_module, inputs, kwargs, options)


def check_with(
    fn_or_module: Any, inputs: Any, kwargs: Mapping[str, Any] | None, options: CheckOptions
) -> Report:
    """Check gradients as :func:`check_gradients` does, with options that are validated."""
    chosen_variations(options.variations)
    deadline = Deadline.after(options.time_limit)
    with unwatched(), torch.inference_mode(mode=False), preserved_randomness():
        if is_sharded_anywhere(fn_or_module, inputs, kwargs):
            return check_sharded(fn_or_module, inputs, kwargs, options, _sorted_outputs)
        subject = build_function(fn_or_module, inputs, kwargs, options)
        try:
            report = _check(subject, options, deadline)
        finally:
            subject.restore()
    wrong = report.at_least(Severity.ERROR) or report.at_least(Severity.WARNING)
    if not wrong or options.examined:
        return report
    args, named = split_arguments(inputs, kwargs)
    failing = FailingCheck(fn_or_module, args, named, options, wrong[0], check_with)
    return replace(report, reproduction=failing)


def _check(subject: PureFunction, options: CheckOptions, deadline: Deadline) -> Report:
    outputs, unchecked = _sorted_outputs(subject, subject.first_call(), options)
    report = ReportBuilder(subject, options, unchecked)
    if not outputs:
        return report.report()
    precision, lines = _precision(subject, outputs, options)
    report.covered += lines
    report.probes = options.probes or precision.probes
    try:
        context = ProbeContext(
            subject, outputs, precision=precision, seed=options.seed, deadline=deadline
        )
    except Exception as error:
        _require_other_checkpoints(subject, error)
        findings = explain_failure(subject, outputs, error)
        if not findings:
            raise
        report.conclude_on_failure(outputs, findings)
        return report.report()
    kind = HalfPrecisionMeasurement if precision.is_half else GradientMeasurement
    measurement = kind(context, probes=report.probes)
    report_progress("first order", lambda: report.report_on_part(measurement))
    conclusions = measurement.run()
    report_progress("what is wrong", lambda: report.report("what is wrong with those that fail"))
    report.conclude(context, conclusions)
    state = CheckState(measurement, conclusions, options, check_with, deadline)
    report.findings = list(find_mistakes(state))
    report.cover(measurement, conclusions)
    for stage, doing, is_asked in () if precision.is_half else _LATER_STAGES:
        if not is_asked(options):
            continue
        if deadline.passed:
            limit = f"the time limit of {options.time_limit:g} s was reached"
            report.not_covered.append(f"{doing}: {limit}")
            continue
        report_progress(doing, functools.partial(report.report, doing))
        report.add(stage(replace(state, findings=tuple(report.findings))))
    return report.report()


def _require_other_checkpoints(subject: PureFunction, error: Exception) -> None:
    """Raise a UsageError if an error came of reentrant checkpoints."""
    if _REENTRANT in str(error):
        raise UsageError(
            f"{subject.title} uses reentrant checkpointing, which gives gradients to "
            "Tensor.backward() alone; check it with checkpoint(..., use_reentrant=False)"
        ) from error


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
