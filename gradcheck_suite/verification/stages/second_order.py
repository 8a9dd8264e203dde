"""Check the gradients of the gradients with the same probes as the gradients.

The function ``(variables, cotangents) -> gradients`` is a subject like any other: its derivative is
what double backward computes. A backward may well not be differentiable; it then has to say so with
``once_differentiable``, or a gradient penalty trains on wrong numbers without a word.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.findings import JSON, Finding, Verdict
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.classify import ErrorKind, error_kind
from gradcheck_suite.verification.diagnosis.function_isolation import wrong_functions
from gradcheck_suite.verification.diagnosis.function_source import backward_place, lost_place
from gradcheck_suite.verification.diagnosis.messages import measurement_evidence, percent
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.derivative import draw_cotangents
from gradcheck_suite.verification.numerics.directions import generator_for
from gradcheck_suite.verification.numerics.evaluation_point import match_outputs
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.target.dense_views import PLAIN
from gradcheck_suite.verification.target.graph_walk import only, reachable
from gradcheck_suite.verification.target.pure_function import Given, PureFunction, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_suite.verification.numerics.decision import Conclusion, Pair

__all__ = ["check_second_order", "gradient_subject"]

_SECOND: Final = 2
"""The order of derivatives that is meant by ``order=2``."""
_COTANGENTS = 77
"""Stream of the cotangents; any number does. Variations have the same, of another function."""
_ON_PURPOSE = ("once_differentiable", "does not currently support double backward")
_LISTED = 5
"""How many further wrong gradients a message names; only its length depends on it."""
_ROUNDINGS = 64.0
"""A gradient that moves the output by no more than this many of its roundings (eps), along a
direction of the input's size, is rounding, and so is its derivative. Chosen."""
_ERROR_NODE = "torch::autograd::Error"


def check_second_order(state: CheckState) -> StageResult:
    """Check order 2 if it was asked for, or by itself where custom Functions are involved."""
    asked = state.options.order == _SECOND
    if state.options.order == 1 or not any(state.context.gradients.attached):
        return StageResult()
    functions = RecordedCall.of(state.subject, state.context.point).functions()
    if not (asked or functions):
        return StageResult()
    if not _with_gradients(state):
        return StageResult(not_covered=("order 2: there is no gradient beyond rounding",))
    if not state.clean:
        return StageResult(not_covered=("order 2: the gradients themselves are wrong",))
    if not asked and any(one.status != "pass" for one in state.conclusions.values()):
        return StageResult(not_covered=("order 2: not every gradient passed",))
    return _check(state, functions, asked=asked)


def _check(state: CheckState, functions: Sequence[type], *, asked: bool) -> StageResult:
    try:
        subject = gradient_subject(state)
        declared = _declared_once_differentiable(subject)
        outputs = [output for output in subject.first_call() if output.name not in declared]
        if not outputs:
            return StageResult(not_covered=("order 2: backward is marked once_differentiable",))
        context = ProbeContext(
            subject,
            outputs,
            precision=state.context.precision,
            seed=state.options.seed,
            deadline=state.deadline,
        )
    except Exception as error:  # noqa: BLE001 - whatever backward raises when it is recorded
        return _impossible(error, state, functions, asked=asked)
    measurement = GradientMeasurement(context, probes=context.precision.probes)
    conclusions = measurement.run()
    names = [_gradient_name(output.name) for output in context.point.outputs]
    variables = [variable.name for variable in subject.variables]
    verdicts = tuple(
        Verdict(
            names[output],
            variables[variable],
            conclusion.status,
            "analytic and numeric second-order gradient differ"
            if conclusion.status == "fail"
            else conclusion.reason,
            {"order": 2, **measurement_evidence(conclusion.shown)},
        )
        for (output, variable), conclusion in conclusions.items()
    )
    programmed = bool(set(RecordedCall.of(subject, context.point).functions()) - set(functions))
    if any(conclusion.status == "fail" for conclusion in conclusions.values()):
        functions = _to_blame(state, functions)
        if not (functions or asked):
            return StageResult(not_covered=(_OF_TORCH.format("wrong"),))
    failures = _Failures(names, variables, functions, certain=asked or programmed)
    return StageResult(
        verdicts=verdicts,
        findings=tuple(failures.findings(measurement, conclusions)),
        covered=("order 2",),
        not_covered=tuple(
            f"order 2: the {_gradient_name(name)} passes a backward marked once_differentiable"
            for name in sorted(declared)
        ),
    )


def gradient_subject(state: CheckState) -> PureFunction:
    """Make a subject that gives the gradients, of the variables and the cotangents."""
    inner, context = state.subject, state.context
    outputs = [
        output
        for output, attached in zip(context.point.outputs, context.gradients.attached, strict=True)
        if attached
    ]
    attached = replace(
        context.point,
        outputs=tuple(outputs),
        finite=tuple(
            finite
            for finite, on in zip(context.point.finite, context.gradients.attached, strict=True)
            if on
        ),
    )
    drawn = draw_cotangents(attached, generator_for(state.options.seed, _COTANGENTS))
    wanted = _with_gradients(state)
    count = len(inner.variables)

    def gradients(given: Given) -> dict[str, torch.Tensor]:
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            values = [
                value if value.requires_grad else value.detach().requires_grad_()
                for value in given.values
            ]
            tensors = match_outputs(inner, outputs, inner(values[:count]))
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(
                tensors,
                [values[index] for index in wanted],
                values[count:],
                create_graph=create_graph,
                allow_unused=True,
            )
        return {
            inner.variables[index].name: part.to_dense() if part.is_sparse else part
            for index, part in zip(wanted, found, strict=True)
            if part is not None
        }

    return PureFunction(
        title=f"the gradient of {inner.title}",
        call=gradients,
        variables=(
            *(replace(variable, representation=PLAIN) for variable in inner.variables),
            *(
                Variable(f"cotangent of {output.name}", cotangent, "input")
                for output, cotangent in zip(outputs, drawn, strict=True)
            ),
        ),
        not_covered=(),
        seed=state.options.seed,
        cast=None,
    )


def _with_gradients(state: CheckState) -> list[int]:
    """Return the indices of the variables that have entries and a gradient worth the name.

    One that is as small as the rounding of the output, such as that of a saturated softmax, is
    what rounding left of larger terms, and has no derivative.
    """
    return [
        index
        for index, variable in enumerate(state.subject.variables)
        if variable.value.numel()
        and any(row[index] is not None for row in state.context.gradients.rows)
        and not _is_rounding(state, index)
    ]


def _is_rounding(state: CheckState, variable: int) -> bool:
    shown = [one.shown for (_, of), one in state.conclusions.items() if of == variable]
    return all(
        0.0
        < one.contributions.get(variable, math.inf)
        <= _ROUNDINGS * state.context.precision.eps * one.magnitude
        for one in shown
    )


def _declared_once_differentiable(subject: PureFunction) -> set[str]:
    """Name the gradients that once_differentiable lets nobody differentiate.

    It leaves a node in their graph that raises; asked for gradients of leaves alone, autograd goes
    around that node and returns None.
    """
    with torch.enable_grad():
        gradients = subject(subject.leaves([variable.value for variable in subject.variables]))
    return {
        gradient.name
        for gradient in gradients
        if gradient.tensor.grad_fn is not None
        and any(node.name() == _ERROR_NODE for node in reachable(gradient.tensor.grad_fn))
    }


def _to_blame(state: CheckState, functions: Sequence[type]) -> Sequence[type]:
    """Return those custom Functions whose own second order is wrong; all where that is unclear."""
    call = RecordedCall.of(state.subject, state.context.point)
    pairs = itertools.product(range(len(state.context.point.outputs)), _with_gradients(state))
    if not functions or all(call.path(*pair).alone for pair in pairs):
        return functions
    wrong = wrong_functions(state, functions, order=_SECOND)
    return functions if wrong is None else tuple(wrong)


def _gradient_name(output: str) -> str:
    """Name a gradient by its variable: the subject's outputs are entries of a dict of names."""
    return f"gradient of {output.removeprefix('output[').removesuffix(']')[1:-1]}"


def _impossible(
    error: Exception, state: CheckState, functions: Sequence[type], *, asked: bool
) -> StageResult:
    """Report a double backward that raises: out loud, so that nobody trains on it."""
    text = str(error)
    if any(words in text for words in _ON_PURPOSE):
        return StageResult(not_covered=(f"order 2: {text.splitlines()[0]}",))
    cause = f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    functions = _to_blame(state, functions)
    if not (functions or asked):
        return StageResult(not_covered=(f"{_OF_TORCH.format('not to be had')}: {cause}",))
    finding = Finding.of(
        catalogue.WRONG_SECOND_ORDER,
        f"the gradient can't be differentiated again: {cause}{_made_by(functions)}",
        detector="verify",
        severity=Severity.ERROR if asked else Severity.WARNING,
        location=backward_place(only(functions)).location,
        hint=_ONCE if functions else None,
        evidence={"order": 2},
    )
    return StageResult(findings=(finding,), not_covered=(f"order 2: {cause}",))


_OF_TORCH = (
    "order 2: the gradients of the gradients are {}, which is no custom Function's doing; order=2 "
    "tells more"
)
_ONCE = (
    "if no second derivative is meant, say so: put @once_differentiable (from "
    "torch.autograd.function) between @staticmethod and `def backward`"
)
_LOST = (
    "backward reads something that autograd can't follow back to the inputs: an intermediate "
    "saved in forward, .data, detach() or NumPy. Save inputs or outputs and compute the rest from "
    "them in backward, or put @once_differentiable above it"
)


def _kind(measurement: GradientMeasurement, pair: Pair) -> tuple[ErrorKind, float | None]:
    """Tell what the failed measurements of a second-order gradient have in common."""
    return error_kind(
        [one.measurement for one in measurement.outcomes(pair) if one.ruling == "fail"]
    )


def _made_by(functions: Sequence[type]) -> str:
    if not functions:
        return ""
    return f"; made by {', '.join(function.__qualname__ for function in functions)}.backward"


@dataclass(frozen=True, slots=True)
class _Failures:
    """Puts failures of order 2 into at most two findings: by what is wrong.

    ``certain`` says whether a second derivative is meant to be right: it was asked for, or backward
    calls a custom Function of its own for it. Otherwise backward is made of torch's operators,
    whose derivatives are right, and fails only by taking something for a constant: it is not made
    to be differentiated again, and does not say so.
    """

    names: Sequence[str]
    variables: Sequence[str]
    functions: Sequence[type]
    certain: bool

    def findings(
        self, measurement: GradientMeasurement, conclusions: Mapping[Pair, Conclusion]
    ) -> list[Finding]:
        """Return a finding for each way in which second-order gradients are wrong."""
        wrong = {pair: one for pair, one in conclusions.items() if one.status == "fail"}
        attached = measurement.context.gradients.attached
        cut = {pair: one for pair, one in wrong.items() if not attached[pair[0]]}
        differing = {pair: one for pair, one in wrong.items() if attached[pair[0]]}
        found = []
        if cut:
            found.append(self._finding(measurement, cut, cut=True))
        if differing:
            found.append(self._finding(measurement, differing, cut=False))
        return found

    def _hint(self, *, cut: bool, lost: bool) -> str | None:
        if not self.functions:
            return None
        if cut:
            return _ONCE
        return _LOST if lost or not self.certain else None

    def _finding(
        self, measurement: GradientMeasurement, wrong: Mapping[Pair, Conclusion], *, cut: bool
    ) -> Finding:
        pair = max(wrong, key=lambda pair: wrong[pair].shown.relative_deviation)
        shown = wrong[pair].shown
        what, variable = self.names[pair[0]], self.variables[pair[1]]
        numbers = (
            f"(analytic {shown.analytic:.6g}, numeric {shown.numeric:.6g} ± {shown.tolerance:.1g} "
            "along a random direction)"
        )
        kind, ratio = _kind(measurement, pair)
        lost = shown.missing or shown.analytic == 0.0
        if cut:
            said = (
                f"the {what} is cut off from autograd, so it can't be differentiated again, yet it "
                f"depends on `{variable}` {numbers}"
            )
        elif lost:
            said = (
                f"the {what} is right, but its own gradient with respect to `{variable}` is "
                f"{'None' if shown.missing else 'zero'} {numbers}: double backward silently loses "
                "it"
            )
        else:
            how = f"is off by {percent(shown.relative_deviation)}"
            if kind == "sign":
                how = "has the wrong sign"
            elif kind == "factor":
                how = f"is {ratio:.6g} times the numeric one"
            said = (
                f"the {what} is right, but its own gradient with respect to `{variable}` {how} "
                f"{numbers}"
            )
        more = [f"`{self.names[o]}` by `{self.variables[v]}`" for o, v in wrong if (o, v) != pair]
        if more:
            rest = f" and {len(more) - _LISTED} more" if len(more) > _LISTED else ""
            said += f"; wrong as well: {', '.join(more[:_LISTED])}{rest}"
        evidence: dict[str, JSON] = {
            "order": 2,
            "output": what,
            "input": variable,
            "kind": kind,
            **measurement_evidence(shown),
        }
        if ratio is not None:
            evidence["ratio"] = ratio
        if self.functions:
            evidence["functions"] = [function.__qualname__ for function in self.functions]
        # Where all of it is cut off, what is missing stands above the def.
        place = (backward_place if cut else lost_place)(only(self.functions))
        return Finding.of(
            catalogue.WRONG_SECOND_ORDER,
            said + _made_by(self.functions),
            detector="verify",
            severity=Severity.ERROR if self.certain else Severity.WARNING,
            location=place.location,
            related=place.related,
            hint=self._hint(cut=cut, lost=lost),
            evidence=evidence,
        )
