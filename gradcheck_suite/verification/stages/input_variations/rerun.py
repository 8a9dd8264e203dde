"""Try the gradients at another point, or for tensors that are arranged differently.

One probe decides where everything agrees. What looks wrong is measured as gradients at the given
point are, with the rules for kinks, rounding and noise, before it counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.diagnosis.findings import find_mistakes
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.decision import Pair, judge
from gradcheck_suite.verification.numerics.derivative import (
    Gradients,
    Measurement,
    differentiate,
    draw_cotangents,
    measure,
)
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.numerics.evaluation_point import Point, given_point
from gradcheck_suite.verification.stage import CheckState
from gradcheck_suite.verification.stages.contracts.backward_failures import explain_failure
from gradcheck_suite.verification.target.pure_function import PureFunction
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gradcheck_suite.verification.numerics.decision import Conclusion
    from gradcheck_suite.verification.target.pure_function import Output

__all__ = [
    "Trial",
    "VariationResult",
    "attempt",
    "attempt_non_finite",
    "extends",
    "matching_outputs",
]

_STREAM = 77
"""Stream of directions and cotangents; any number does. ``second_order`` has the same, of another
function."""
_FEW = 3
"""A group of undecided variables this small is measured one by one, a larger one together. A bound
on cost."""
_SAME = 1e-4
"""The relative difference up to which a function of more entries gives what it gave for those it
had: kernels for other sizes sum up in another order. Chosen: far above rounding in float32, far
below what a mean over more entries changes."""
_NONE = "no gradient is meant for a derivative"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one variation.

    ``status`` is "held", "failed", "undecided" (no error seen, and not every gradient resolved)
    or "refused" (the function can't be evaluated there as it can at the given point); ``reason``
    says why for the latter two. ``wrong`` are the pairs that failed.
    """

    status: Literal["held", "failed", "undecided", "refused"]
    reason: str | None = None
    wrong: frozenset[Pair] = frozenset()
    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class VariationResult:
    """Whether a variation was tried and held; findings, and sentences on what was not tried."""

    covered: bool
    findings: tuple[Finding, ...] = ()
    not_covered: tuple[str, ...] = ()


class _RelativeContext(ProbeContext):
    """A context whose directions keep every entry on its side of zero, whatever its size."""

    def direction(self, probe: int, variable: int) -> torch.Tensor:
        """Return how a variable moves per unit of step in a probe."""
        value = self.point.values[variable]
        generator = generator_for(self.seed, _STREAM, probe, variable)
        return _relative(value, self._scales[variable], generator)


def attempt(
    state: CheckState,
    subject: PureFunction,
    *,
    pairs: Iterable[Pair] | None = None,
    resized: bool = False,
) -> Trial:
    """Verify the gradients of a varied subject.

    Args:
        state: what was concluded at the given point.
        subject: the function with other values or another arrangement.
        pairs: the (output, variable) pairs that count; where None, all that did not fail at the
            given point and are meant for derivatives.
        resized: whether outputs may have other sizes than at the given point.
    """
    try:
        produced = subject.first_call()
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises here
        return Trial("refused", f"raises {one_line(error)}")
    outputs = matching_outputs(state, produced, resized=resized)
    if isinstance(outputs, str):
        return Trial("refused", outputs)
    counted = _counted(state) if pairs is None else frozenset(pairs)
    precision = state.context.precision
    try:
        point = given_point(subject, outputs, eps=precision.eps)
        cotangents = draw_cotangents(point, generator_for(state.options.seed, _STREAM))
        gradients = differentiate(subject, point, cotangents)
    except Exception as error:  # noqa: BLE001 - as above
        told = explain_failure(subject, outputs, error) if resized else ()
        return Trial("refused", f"backward raises {one_line(error)}", findings=tuple(told))
    unresolved, suspicious = _Probe(state, subject, point, cotangents, gradients).look(counted)
    if suspicious:
        return _confirm(state, subject, outputs, counted)
    return _held(state, unresolved) if counted else Trial("undecided", _NONE)


def _held(state: CheckState, unresolved: frozenset[Pair]) -> Trial:
    return Trial("undecided", _undecided(state, unresolved)) if unresolved else Trial("held")


def attempt_non_finite(state: CheckState, subject: PureFunction) -> Trial:
    """Look for NaN and Inf alone in the gradients of a varied subject, all of them at once."""
    try:
        outputs = matching_outputs(state, subject.first_call(), resized=False)
        if isinstance(outputs, str):
            return Trial("refused", outputs)
        point = given_point(subject, outputs, eps=state.context.precision.eps)
        cotangents = draw_cotangents(point, generator_for(state.options.seed, _STREAM))
        rows = differentiate(subject, point, cotangents).rows
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises here
        return Trial("refused", f"raises {one_line(error)}")
    broken = frozenset(
        (output, variable)
        for output, variable in _counted(state)
        if not _is_finite(rows[output][variable])
        and _is_finite(state.context.gradients.rows[output][variable])
    )
    if not broken:
        return Trial("held")
    trial = _confirm(state, subject, outputs, broken)
    findings = tuple(
        one for one in trial.findings if one.code == catalogue.NON_FINITE_GRADIENT.code
    )
    if trial.status == "failed" and not findings:
        return Trial("undecided", "something else than NaN or Inf is wrong there")
    return replace(trial, findings=findings)


def extends(state: CheckState, larger: PureFunction) -> bool:
    """Return whether a subject with more entries gives what it gave before for those it had."""
    outputs = matching_outputs(state, larger.first_call(), resized=True)
    if isinstance(outputs, str):
        return False
    for before, now in zip(state.context.point.outputs, outputs, strict=True):
        if any(new < old for new, old in zip(now.tensor.shape, before.tensor.shape, strict=True)):
            return False
        part = now.tensor[tuple(slice(size) for size in before.tensor.shape)]
        if not torch.allclose(part, before.tensor, rtol=_SAME, atol=0.0, equal_nan=True):
            return False
    return True


def _is_finite(gradient: torch.Tensor | None) -> bool:
    return gradient is None or bool(torch.isfinite(gradient).all())


@dataclass(frozen=True, slots=True)
class _Probe:
    """One look at all gradients of a point, along one direction."""

    state: CheckState
    subject: PureFunction
    point: Point
    cotangents: Sequence[torch.Tensor]
    gradients: Gradients

    def look(self, counted: frozenset[Pair]) -> tuple[frozenset[Pair], bool]:
        """Return the pairs that stay undecided, and whether something looks wrong."""
        open_pairs = frozenset(pair for pair in counted if self.point.values[pair[1]].numel() > 0)
        group = sorted({variable for _, variable in open_pairs})
        scales = scales_of(self.point.values)
        directions = {
            variable: _relative(
                self.point.values[variable],
                scales[variable],
                generator_for(self.state.options.seed, _STREAM, 0, variable),
            )
            for variable in group
        }
        groups = [group] if group else []
        for _ in range(2):
            for members in groups:
                passed, suspicious = self._measured(members, directions, open_pairs)
                if suspicious:
                    return open_pairs, True
                open_pairs -= passed
            rest = sorted({variable for _, variable in open_pairs})
            groups = [[one] for one in rest] if len(rest) <= _FEW else [rest]
            if groups == [group]:
                break
        return open_pairs, False

    def _measured(
        self,
        group: Sequence[int],
        directions: Mapping[int, torch.Tensor],
        open_pairs: frozenset[Pair],
    ) -> tuple[frozenset[Pair], bool]:
        results = measure(
            self.subject,
            self.point,
            self.cotangents,
            self.gradients,
            {variable: directions[variable] for variable in group},
            precision=self.state.context.precision,
            thorough=len(group) == 1,
        )
        passed = set()
        for result in results:
            concerned = [v for v in group if (result.output, v) in open_pairs]
            for variable in concerned:
                ruling = judge(result, variable, self.state.context.precision)
                if ruling == "pass":
                    passed.add((result.output, variable))
                elif ruling != "unresolved" or result.non_finite or _differs(result):
                    return frozenset(passed), True
        return frozenset(passed), False


def _differs(result: Measurement) -> bool:
    return result.z > 1.0 and result.tolerance < float("inf")


def _confirm(
    state: CheckState, subject: PureFunction, outputs: Sequence[Output], counted: frozenset[Pair]
) -> Trial:
    try:
        measurement = GradientMeasurement(
            _RelativeContext(
                subject, outputs, precision=state.context.precision, seed=state.options.seed
            ),
            probes=1,
        )
        conclusions = {
            pair: conclusion for pair, conclusion in measurement.run().items() if pair in counted
        }
    except Exception as error:  # noqa: BLE001 - the user's function, further off the point
        return Trial("refused", f"raises {one_line(error)}")
    wrong = frozenset(pair for pair, found in conclusions.items() if found.status == "fail")
    findings = tuple(
        find_mistakes(replace(state, measurement=measurement, conclusions=conclusions))
    )
    if findings:
        return Trial("failed", wrong=wrong, findings=findings)
    unresolved = frozenset(
        pair for pair, found in conclusions.items() if found.status == "inconclusive"
    )
    if unresolved:
        return Trial("undecided", _undecided(state, unresolved, conclusions))
    return Trial("held")


def matching_outputs(
    state: CheckState, produced: Sequence[Output], *, resized: bool
) -> list[Output] | str:
    """Find the outputs of the given point among these; a reason where they are not as usable."""
    tensors = {output.name: output for output in produced}
    found = []
    for expected, finite in zip(
        state.context.point.outputs, state.context.point.finite, strict=True
    ):
        output = tensors.get(expected.name)
        if output is None or output.tensor.dtype != expected.tensor.dtype:
            return f"does not return `{expected.name}`"
        same = output.tensor.shape == expected.tensor.shape
        if not same and not resized:
            return f"returns `{expected.name}` in another shape"
        if output.tensor.dim() != expected.tensor.dim() or output.tensor.numel() == 0:
            return f"returns `{expected.name}` in another shape"
        now = torch.isfinite(output.tensor)
        if not bool((now if finite is None or not same else now | ~finite).all()):
            return f"gives NaN or Inf in `{expected.name}`"
        found.append(output)
    return found


def _counted(state: CheckState) -> frozenset[Pair]:
    return frozenset(
        pair
        for pair, conclusion in state.conclusions.items()
        if conclusion.status != "fail" and not conclusion.meant
    )


def _undecided(
    state: CheckState, pairs: Iterable[Pair], conclusions: Mapping[Pair, Conclusion] | None = None
) -> str:
    first = min(pairs)
    output, variable = state.context.names(first)
    reason = conclusions[first].reason if conclusions else None
    text = f"the gradient of `{output}` with respect to `{variable}` could not be decided"
    return f"{text}: {reason}" if reason else text


def _relative(value: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
    size = torch.where(value == 0, torch.full_like(value, scale), value.abs())
    # What is not finite is never moved.
    return (random_signs(value, generator) * size).where(torch.isfinite(value), 0.0)
