"""Do compiled and eager gradients agree?"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.verification.numerics.comparison import noise_floors, row_differences
from gradcheck_suite.verification.numerics.derivative import Gradients, differentiate
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.stages.input_variations.rerun import attempt
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["compare_compiled"]


def compare_compiled(state: CheckState) -> StageResult:
    """Compile the function, differentiate it at the given point and compare with eager mode.

    A difference counts once finite differences of the compiled function say that its gradient is
    wrong: at ties it may choose another element than eager mode does.
    """
    unfit = _why_not(state)
    if unfit is not None:
        return StageResult(not_covered=(f"compiled code: {unfit}",))
    started = time.monotonic()
    with warnings.catch_warnings():
        # Importing the compiler warns of what it uses of torch itself.
        warnings.simplefilter("ignore")
        compiled = _compiled(state)
        if isinstance(compiled, str):
            return StageResult(not_covered=(f"compiled code: {compiled}",))
        subject, gradients, broken = compiled
        seconds = time.monotonic() - started
        apart, output, variable = _furthest(state, gradients)
        if apart > state.context.precision.linearity:
            return _differs(state, subject, (output, variable), apart)
    if broken is not None:
        line = f"compiled code: only parts of the function can be, and those agree ({broken})"
        return StageResult(not_covered=(line,))
    return StageResult(covered=(f"compiled code: agrees with eager ({seconds:.1f} s)",))


def _why_not(state: CheckState) -> str | None:
    if _compiler() is None:
        return "there is no C++ compiler (g++ or clang++)"
    if not state.context.deterministic or state.subject.draws_random_numbers():
        return "the function is random, and compiled code draws otherwise"
    return None


def _compiled(state: CheckState) -> tuple[PureFunction, Gradients, str | None] | str:
    """Compile in one graph, or in parts with the reason why not in one, or tell why not at all."""
    cotangents = state.context.cotangents(state.context.point, 0)
    broken = None
    for whole in (True, False):
        subject = state.subject.compiled(whole=whole)
        try:
            return subject, differentiate(subject, state.context.point, cotangents), broken
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises
            broken = one_line(error)
    return str(broken)


def _furthest(state: CheckState, gradients: Gradients) -> tuple[float, int, int]:
    """Return the largest relative difference from eager mode, and of which pair."""
    context, point = state.context, state.context.point
    floors = noise_floors(point, context.cotangents(point, 0), context.precision)
    return max(
        (apart, output, variable)
        for output, (row, other) in enumerate(
            zip(context.gradients.rows, gradients.rows, strict=True)
        )
        for variable, apart in enumerate(row_differences(row, other, floors[output]))
    )


def _differs(
    state: CheckState, subject: PureFunction, pair: tuple[int, int], apart: float
) -> StageResult:
    relative = min(apart, 1e300)
    if attempt(state, subject, pairs=[pair]).status != "failed":
        line = (
            f"compiled code: its gradients differ, by {relative:.2g}, and finite differences do "
            "not call them wrong"
        )
        return StageResult(not_covered=(line,))
    names = state.context.names(pair)
    finding = Finding.of(
        catalogue.COMPILED_GRADIENT_MISMATCH,
        f"gradient of `{names[0]}` with respect to `{names[1]}` of the compiled function differs "
        f"from that in eager mode by {relative:.2g} of its size, and finite differences agree "
        "with eager mode",
        detector="verify",
        hint="narrow it down with TORCHDYNAMO_REPRO_AFTER=aot, and leave that part out with "
        "torch.compiler.disable",
        evidence={"output": names[0], "input": names[1], "relative_difference": relative},
    )
    return StageResult(findings=(finding,))


def _compiler() -> str | None:
    """Return the C++ compiler that torch.compile would find."""
    chosen = os.environ.get("CXX")
    return shutil.which(chosen) if chosen else shutil.which("g++") or shutil.which("clang++")
