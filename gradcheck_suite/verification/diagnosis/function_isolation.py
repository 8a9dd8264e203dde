"""Which of the custom Functions on the way made a gradient wrong: each is checked by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.target.call_recorder import CallRecorder
from gradcheck_suite.verification.target.call_replay import replayable
from gradcheck_suite.verification.target.random_state import RandomState
from gradcheck_suite.verification.target.tree import leaves_with_paths

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gradcheck_suite.findings import Finding, Report
    from gradcheck_suite.verification.stage import Checker, CheckState
    from gradcheck_suite.verification.target.call_recorder import Call
    from gradcheck_suite.verification.target.call_replay import ReplayableCall

__all__ = ["FORWARD_MODE", "wrong_functions"]

FORWARD_MODE = "forward mode: agrees with"
"""How the sentence begins that says that forward mode was looked at and held."""

_MOST_CALLS = 64
"""How many calls of custom Functions are checked by themselves. A bound on cost."""
_HALF = (torch.float16, torch.bfloat16)

_Outcome: TypeAlias = "Finding | Literal['right', 'unknown']"


def wrong_functions(
    state: CheckState,
    among: Collection[type],
    *,
    order: Literal[1, 2] = 1,
    forward_mode: bool = False,
) -> Mapping[type, Finding] | None:
    """Return those custom Functions whose gradients are wrong at the inputs that they really get.

    Each comes with what is wrong first when it is checked by itself.

    The function is called once more and its calls of these Functions are recorded. A Function that
    is right by itself cannot be what is wrong: that is a ``detach()`` beside it, a hook, or an
    operation of torch's.

    Args:
        state: what is known of the function, and how to check others.
        among: the Functions between the output and the input in question.
        order: whether the gradients were wrong, or the gradients of the gradients.
        forward_mode: whether forward mode was wrong, and gradients are not what is asked about.

    Returns:
        None where it could not be told of all of them.
    """
    if state.options.examined & set(among):
        return None
    calls: list[ReplayableCall] = []
    seen: set[type] = set()
    strange: list[Call] = []

    def visit(call: Call) -> None:
        if call.target not in among or not torch.is_grad_enabled():
            return
        again = replayable(call, RandomState.capture())
        if not _same_layout(call, again):
            strange.append(call)
        elif again.values and len(calls) < _MOST_CALLS:
            calls.append(again)
            seen.add(call.target)

    try:
        with torch.enable_grad(), CallRecorder(None, frozenset({"function"}), visit).recording():
            state.subject(state.subject.leaves(state.context.point.values))
        if seen != set(among) or strange:
            return None
        options = CheckOptions(
            order=order,
            variations=frozenset(),
            forward_mode=forward_mode,
            examined=state.options.examined | frozenset(among),
        )
        found: dict[type, list[_Outcome]] = {}
        for call in calls:
            found.setdefault(call.target, []).append(_outcome(call, state.check, options))
    except Exception:  # noqa: BLE001 - a Function may not be callable by itself
        return None
    wrong = {
        function: next(one for one in found[function] if not isinstance(one, str))
        for function in among
        if any(not isinstance(one, str) for one in found[function])
    }
    every = [one for outcomes in found.values() for one in outcomes]
    return wrong if wrong or all(one == "right" for one in every) else None


def _outcome(call: ReplayableCall, check: Checker, options: CheckOptions) -> _Outcome:
    if any(value.dtype in _HALF for value in call.values):
        # Half precision takes seconds to find what float64 finds at once.
        try:
            in_double = replace(options, cast=torch.float64)
            wrong = _judged(check(call.target, call.args, call.kwargs, in_double), options)
            if not isinstance(wrong, str):
                return wrong
        except Exception:  # noqa: BLE001 - a Function may take half precision only
            pass
    return _judged(check(call.target, call.args, call.kwargs, options), options)


def _judged(report: Report, options: CheckOptions) -> _Outcome:
    if options.forward_mode:
        code = catalogue.FORWARD_MODE_MISMATCH.code
        for finding in report.findings:
            if finding.code == code:
                return finding
        covered = report.summary["covered"]
        assert isinstance(covered, (list, tuple))
        return "right" if any(str(one).startswith(FORWARD_MODE) for one in covered) else "unknown"
    wrong = report.at_least(Severity.ERROR)
    if wrong:
        return wrong[0]
    passed = all(verdict.status == "pass" for verdict in report.verdicts)
    return "right" if passed and not report.findings else "unknown"


def _same_layout(call: Call, again: ReplayableCall) -> bool:
    """Return whether the copies lie in memory as the tensors do, gaps and overlaps included."""
    given = leaves_with_paths((call.args, dict(call.kwargs)), "")
    copied = leaves_with_paths((again.args, again.kwargs), "")
    return all(
        one.stride() == two.stride() and one.storage_offset() == two.storage_offset()
        for (_, one), (_, two) in zip(given, copied, strict=True)
        if isinstance(one, torch.Tensor) and one.layout is torch.strided
    )
