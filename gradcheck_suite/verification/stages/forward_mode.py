"""Do forward mode and reverse mode agree?

For a random direction v and cotangent u, ``<u, J v>`` from forward mode and ``<J^T u, v>`` from
reverse mode are the same number. Which of the two is wrong follows from finite differences, and
whose forward mode it is from each custom Function by itself: some of torch's own operations drop
the tangent and do not say so.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import around_custom_functions, custom_function_class
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.diagnosis.function_isolation import FORWARD_MODE, wrong_functions
from gradcheck_suite.verification.diagnosis.function_source import returned_place
from gradcheck_suite.verification.first_order.piecewise_constant import is_quantized
from gradcheck_suite.verification.first_order.ulp_noise import UlpNoise
from gradcheck_suite.verification.numerics.comparison import noise_floors
from gradcheck_suite.verification.numerics.decision import CLEARLY, Pair
from gradcheck_suite.verification.numerics.derivative import SAFETY, Measurement, measure
from gradcheck_suite.verification.numerics.evaluation_point import match_outputs
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.target.graph_walk import (
    method_codes,
    method_location,
    only,
)
from gradcheck_suite.verification.target.tree import leaves_with_paths
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType, TracebackType

    from gradcheck_suite.verification.numerics.evaluation_point import Point

__all__ = ["compare_forward_mode"]

_MANY = 8
"""For how many variables a disagreement is looked at one by one. A bound on cost."""

_Wrong: TypeAlias = Literal["forward", "reverse", "either"]

_SO = {
    "forward": ", so forward mode is wrong",
    "reverse": ", so reverse mode is wrong",
    "either": ", which does not tell the wrong one",
}
_HINT = "jvp(ctx, *tangents) returns J v: check it term by term against backward, J^T g"


def compare_forward_mode(state: CheckState) -> StageResult:
    """Compare forward mode with reverse mode: all variables together, then each that differs."""
    if not state.context.deterministic:
        return StageResult(not_covered=("forward mode: the outputs are random",))
    with warnings.catch_warnings():
        # torch compiles decompositions with its own deprecated tools.
        warnings.simplefilter("ignore")
        return _compared(state)


def _compared(state: CheckState) -> StageResult:
    point = state.context.point
    directions = {
        variable: state.context.direction(0, variable) for variable in state.context.variables
    }
    last = _LastApplied()
    try:
        together = _pushed(state, point, directions, last)
    except Exception as error:  # noqa: BLE001 - an op without forward mode, or a wrong jvp
        return _refused(error, last)
    if not _differing(state, point, directions, together):
        return StageResult(covered=(f"{FORWARD_MODE} reverse mode",))
    comparison = _Comparison(state)
    for count, (variable, direction) in enumerate(directions.items()):
        if count >= _MANY or state.deadline.passed:
            comparison.stop(count, len(directions))
            break
        comparison.look_along(variable, direction)
    return comparison.result()


class _LastApplied:
    """The custom Function that was applied last, and where: its jvp runs right after its forward.

    Attributes:
        function: its class.
        place: the code that applied it, and the offset in there.
    """

    function: type | None = None
    place: tuple[CodeType, int] | None = None

    def note(self, function: type, _inputs: object, proceed: Callable[[], Any]) -> Any:
        """Run the forward of a Function; the frames around it tell who has applied it."""
        result = proceed()
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - tracebacks have no other
        while frame is not None and _is_between(frame):
            frame = frame.f_back
        self.function = function
        self.place = None if frame is None else (frame.f_code, frame.f_lasti)
        return result


def _pushed(
    state: CheckState, point: Point, directions: Mapping[int, torch.Tensor], last: _LastApplied
) -> list[float]:
    """Return ``<cotangent, J direction>`` of each output by forward mode.

    Variables without a direction get a tangent of zeros, so that every call takes the same way.
    """
    cotangents = state.context.cotangents(point, 0)
    with forward_ad.dual_level(), around_custom_functions(last.note):
        values = []
        for index, (variable, value) in enumerate(
            zip(state.subject.variables, point.values, strict=True)
        ):
            primal = variable.copy(value)
            tangent = directions[index] if index in directions else torch.zeros_like(primal)
            values.append(forward_ad.make_dual(primal, tangent))  # type: ignore[no-untyped-call]
        tensors = match_outputs(state.subject, point.outputs, state.subject(values))
        found = []
        for tensor, given in zip(tensors, cotangents, strict=True):
            tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
            # torch annotates it as a tensor; it is None where nothing moves the output.
            known_tangent: torch.Tensor | None = tangent
            found.append(
                0.0
                if known_tangent is None
                else float((known_tangent.double() * given.double()).where(given != 0, 0.0).sum())
            )
    return found


def _pulled(
    row: Sequence[torch.Tensor | None], directions: Mapping[int, torch.Tensor]
) -> tuple[float, float]:
    """Return ``<J^T cotangent, direction>`` of one output, and how large its terms are."""
    total, square = 0.0, 0.0
    for variable, direction in directions.items():
        part = row[variable]
        if part is not None:
            product = part.double() * direction.double()
            total += float(product.sum())
            square += float(product.square().sum())
    return total, math.sqrt(square)


def _differing(
    state: CheckState,
    point: Point,
    directions: Mapping[int, torch.Tensor],
    pushed: Sequence[float],
) -> list[int]:
    """Return the outputs whose derivatives by both modes differ by more than rounding."""
    context, precision = state.context, state.context.precision
    floors = noise_floors(point, context.cotangents(point, 0), precision)
    rows = context.differentiated(point, 0).rows
    found = []
    for output, forward in enumerate(pushed):
        reverse, size = _pulled(rows[output], directions)
        floor = sum(
            floors[output][variable] * float(torch.linalg.vector_norm(direction.double()))
            for variable, direction in directions.items()
        )
        allowed = precision.linearity * max(size, abs(forward), floor)
        if not abs(forward - reverse) <= allowed and math.isfinite(reverse):
            found.append(output)
    return found


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """An output and a variable of which the modes give two derivatives, and differences a third."""

    pair: Pair
    forward: float
    measured: Measurement

    @property
    def right(self) -> bool:
        """Return whether forward mode agrees with finite differences."""
        tolerance = self.measured.tolerance
        known = math.isfinite(tolerance)
        return known and abs(self.forward - self.measured.numeric) <= tolerance

    @property
    def wrong(self) -> _Wrong:
        """Tell which mode finite differences speak against, beyond doubt."""
        measured = self.measured
        clearly = CLEARLY * measured.tolerance
        if not math.isfinite(clearly):
            return "either"
        # NaN is wrong as well.
        if not abs(self.forward - measured.numeric) < clearly:
            return "forward"
        return "reverse" if self.right and abs(measured.deviation) >= clearly else "either"


class _Comparison:
    """What comes of looking along one variable after the other."""

    def __init__(self, state: CheckState) -> None:
        self._state = state
        self._call = RecordedCall.of(state.subject, state.context.point)
        self._noise = UlpNoise(state.context)
        self._findings: list[Finding] = []
        self._covered: list[str] = []
        self._not_covered: list[str] = []
        self._blamed: dict[tuple[type, ...], tuple[type, ...]] = {}

    def look_along(self, variable: int, direction: torch.Tensor) -> None:
        """Compare the modes where one variable moves alone."""
        context = self._state.context
        alone = {variable: direction}
        last = _LastApplied()
        try:
            pushed = _pushed(self._state, context.point, alone, last)
        except Exception as error:  # noqa: BLE001 - the user's function, which ran with all
            refused = _refused(error, last)
            self._findings += refused.findings
            self._not_covered += refused.not_covered
            return
        apart = _differing(self._state, context.point, alone, pushed)
        if not apart:
            return
        measured = measure(
            self._state.subject,
            context.point,
            context.cotangents(context.point, 0),
            context.gradients,
            alone,
            precision=context.precision,
            thorough=True,
        )
        for output in apart:
            shown = measured[output]
            if shown.is_flat and is_quantized(context, output, variable):
                shown = shown.of_steps()
            self._decide(_Disagreement((output, variable), pushed[output], shown))

    def stop(self, looked_at: int, of: int) -> None:
        """Note that only some of the variables were looked at."""
        self._not_covered.append(f"forward mode: looked at {looked_at} of {of} variables alone")

    def result(self) -> StageResult:
        """Return what was found; the first finding of each line."""
        if not (self._findings or self._covered or self._not_covered):
            self._not_covered.append(
                "forward mode: differs from reverse mode only where all variables move together"
            )
        return StageResult(
            findings=tuple(_first_of_each_place(self._findings)),
            covered=tuple(self._covered),
            not_covered=tuple(self._not_covered),
        )

    def _decide(self, apart: _Disagreement) -> None:
        """Hold a disagreement to finite differences, and to the custom Functions on the way."""
        conclusion = self._state.conclusions[apart.pair]
        output, variable = self._state.context.names(apart.pair)
        if apart.right and (conclusion.status == "fail" or conclusion.meant):
            self._covered.append(
                f"{FORWARD_MODE} finite differences on `{output}` along `{variable}`, "
                "where backward does not"
            )
            return
        functions = self._to_blame(apart.pair)
        if not functions:
            cause = conclusion.reason if conclusion.meant else _lost_tangent(self._state)
            self._not_covered.append(f"forward mode: {self._numbers(apart)}: {cause}")
        elif apart.wrong == "either" and (conclusion.status == "fail" or self._is_rounding(apart)):
            self._not_covered.append(f"forward mode: {self._numbers(apart)}{_SO['either']}")
        else:
            self._findings.append(self._mismatch(apart, functions))

    def _to_blame(self, pair: Pair) -> tuple[type, ...]:
        """Return the Functions on the way whose own forward mode is wrong, or all if unclear."""
        path = self._call.path(*pair)
        functions = tuple(one for one in path.functions if _defines_jvp(one))
        if not functions or path.alone:
            return functions
        if functions not in self._blamed:
            wrong = wrong_functions(self._state, functions, forward_mode=True)
            self._blamed[functions] = functions if wrong is None else tuple(wrong)
        return self._blamed[functions]

    def _is_rounding(self, apart: _Disagreement) -> bool:
        """Return whether rounding within backward moves it by as much as the modes differ."""
        noise = self._noise.of_backward(apart.pair) * apart.measured.contribution
        return abs(apart.forward - apart.measured.analytic) <= SAFETY * noise

    def _doubts(self, apart: _Disagreement) -> Iterator[str]:
        """Yield what speaks against a mistake."""
        conclusion = self._state.conclusions[apart.pair]
        if apart.wrong == "either":
            yield "finite differences do not tell which of the two is wrong"
            if self._agree_close_by(apart.pair):
                yield "both agree at a point close by: the function has a kink exactly here"
        elif conclusion.status == "inconclusive" and (conclusion.meant or apart.wrong == "reverse"):
            yield str(conclusion.reason)

    def _agree_close_by(self, pair: Pair) -> bool:
        output, variable = pair
        point = self._state.context.moved_point()
        if point is None:
            return False
        alone = {variable: self._state.context.direction(0, variable)}
        try:
            pushed = _pushed(self._state, point, alone, _LastApplied())
            return output not in _differing(self._state, point, alone, pushed)
        except Exception:  # noqa: BLE001 - the user's function may fail off the given point
            return False

    def _numbers(self, apart: _Disagreement) -> str:
        output, variable = self._state.context.names(apart.pair)
        measured = apart.measured
        return (
            f"derivative of `{output}` along `{variable}` is {apart.forward:.6g} by forward mode "
            f"and {measured.analytic:.6g} by reverse mode; finite differences give "
            f"{measured.numeric:.6g} ± {measured.tolerance:.1g}"
        )

    def _mismatch(self, apart: _Disagreement, functions: tuple[type, ...]) -> Finding:
        output, variable = self._state.context.names(apart.pair)
        function = only(functions)
        reverse = apart.wrong == "reverse"
        return Finding.of(
            catalogue.FORWARD_MODE_MISMATCH,
            self._numbers(apart)
            + _SO[apart.wrong]
            + (f"; {function.__qualname__} defines jvp" if function else ""),
            detector="verify",
            doubts=self._doubts(apart),
            location=returned_place(function, "backward" if reverse else "jvp").location,
            hint=_HINT,
            evidence={
                "output": output,
                "input": variable,
                "forward": apart.forward,
                "reverse": apart.measured.analytic,
                "numeric": apart.measured.numeric,
                "tolerance": apart.measured.tolerance,
                "wrong": apart.wrong,
                "functions": [one.__qualname__ for one in functions],
            },
        )


class _TangentWatch(TorchFunctionMode):
    """Notes the first of torch's functions whose result needs a gradient and has no tangent."""

    lost_by: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.lost_by is None and any(
            isinstance(part, torch.Tensor)
            and part.requires_grad
            and forward_ad.unpack_dual(part).tangent is None  # type: ignore[no-untyped-call]
            for _, part in leaves_with_paths(result, "")
        ):
            self.lost_by = getattr(func, "__name__", str(func))
        return result


def _lost_tangent(state: CheckState) -> str:
    """Say which operation of torch has no forward mode and does not raise.

    Where a variable both requires grad and has a tangent, so does all that depends on it.
    """
    context = state.context
    watch = _TangentWatch()
    try:
        with torch.enable_grad(), forward_ad.dual_level():
            values = [
                forward_ad.make_dual(leaf, context.direction(0, index))  # type: ignore[no-untyped-call]
                for index, leaf in enumerate(state.subject.leaves(context.point.values))
            ]
            with watch:
                state.subject(values)
    except Exception:  # noqa: BLE001 - the user's function, in modes that it need not know
        watch.lost_by = None
    name = f"`{watch.lost_by}`" if watch.lost_by else "an operation of torch on the way"
    return f"{name} hands no tangent on, or a wrong one, and does not raise"


def _refused(error: Exception, last: _LastApplied) -> StageResult:
    """Tell what has no forward mode, or can't go with it, from a jvp that fails."""
    failed = None if isinstance(error, NotImplementedError) else _failed_jvp(error, last)
    if failed is None:
        return StageResult(not_covered=(f"forward mode: {one_line(error)}",))
    function, line = failed
    name, text = function.__qualname__, one_line(error)
    location = method_location(function, "jvp")
    if location is not None and line is not None:
        location = replace(location, line=line)
    finding = Finding.of(
        catalogue.FORWARD_MODE_MISMATCH,
        f"torch refuses what jvp of {name} returns, and takes what its backward does: {text}"
        if line is None
        else f"jvp of {name} raises, where reverse mode does not: {text}",
        detector="verify",
        location=location,
        hint="jvp takes ctx and one tangent, or None, for each argument of forward, and returns "
        "one for each output, of its shape",
        evidence={"functions": [name]},
    )
    return StageResult(findings=(finding,))


def _failed_jvp(error: Exception, last: _LastApplied) -> tuple[type, int | None] | None:
    """Return the Function whose jvp an error comes of, and the line that raised.

    torch runs jvp right after forward, within ``apply``, which is no frame of Python's in each
    version. What is raised there and in no Python frame further in is what torch has to say of the
    tangents that jvp returned: no line raised.
    """
    entries = list(_entries(error.__traceback__))
    for number, (frame, _, _) in enumerate(entries):
        function = _runs_jvp(frame)
        inner = next((one for one in entries[number + 1 :] if not _is_of_torch(one[0])), None)
        if function is not None and inner is not None:
            return (function, inner[1]) if _is_jvp(function, inner[0]) else None
    innermost = next((one for one in reversed(entries) if not _is_between(one[0])), None)
    function = last.function
    if function is None or innermost is None or not _defines_jvp(function):
        return None
    return (function, None) if (innermost[0].f_code, innermost[2]) == last.place else None


def _entries(entry: TracebackType | None) -> Iterator[tuple[FrameType, int, int]]:
    """Yield frame, line and offset of each entry of a traceback, outermost first."""
    while entry is not None:
        yield entry.tb_frame, entry.tb_lineno, entry.tb_lasti
        entry = entry.tb_next


def _runs_jvp(frame: FrameType) -> type | None:
    """Return the custom Function whose jvp torch calls in this frame."""
    if not _is_of_torch(frame) or frame.f_code.co_name != "apply_jvp":
        return None
    return custom_function_class(frame.f_locals["self"])


def _is_jvp(function: type, frame: FrameType) -> bool:
    return frame.f_code in method_codes(function, "jvp")


def _is_between(frame: FrameType) -> bool:
    """Return whether a frame stands between who applies a Function and its forward."""
    return _is_of_torch(frame) or frame.f_globals.get("__name__") in _BETWEEN


_BETWEEN = (around_custom_functions.__module__, __name__)


def _is_of_torch(frame: FrameType) -> bool:
    """Return whether a frame runs what torch has between a Function's call and its methods."""
    return frame.f_globals.get("__name__") == "torch.autograd.function"


def _defines_jvp(function: type) -> bool:
    """Return whether a custom Function defines forward mode itself."""
    return getattr(function, "jvp", None) is not torch.autograd.Function.jvp


def _first_of_each_place(findings: list[Finding]) -> list[Finding]:
    """Keep one finding of each line, and all that have none."""
    seen = set()
    kept = []
    for finding in findings:
        if finding.location is None or finding.location not in seen:
            kept.append(finding)
            seen.add(finding.location)
    return kept
