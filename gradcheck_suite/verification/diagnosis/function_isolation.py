"""Which of the custom Functions on the way made a gradient wrong: each is checked by itself."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from gradcheck_suite.verification.target.random_state import RandomState
from gradcheck_suite.verification.target.tree import leaves_with_paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gradcheck_suite.verification.first_order.measure import Survey
    from gradcheck_suite.verification.target.call_recorder import Call
    from gradcheck_suite.verification.target.call_replay import ReplayableCall

__all__ = ["is_examined", "wrong_functions"]

_MOST_CALLS = 64
_HALF = (torch.float16, torch.bfloat16)

_Told: TypeAlias = Literal["right", "unknown", "wrong"]

_examined: ContextVar[frozenset[type]] = ContextVar("examined", default=frozenset())
"""The Functions that are being checked by themselves: they are what is to blame there."""


def wrong_functions(
    survey: Survey, among: Collection[type], *, order: Literal[1, 2] = 1
) -> tuple[type, ...] | None:
    """Return those custom Functions whose gradients are wrong at the inputs that they really get.

    The function is called once more and its calls of these Functions are recorded. A Function that
    is right by itself cannot be what is wrong: that is a ``detach()`` beside it, a hook, or an
    operation of torch's.

    Args:
        survey: what was measured of the function.
        among: the Functions between the output and the input in question.
        order: whether the gradients were wrong, or the gradients of the gradients.

    Returns:
        None where it could not be told of all of them.
    """
    if _examined.get() & set(among):
        return None
    # At run time: localization is made of whole checks, of which this is a part.
    from gradcheck_suite.verification.target.call_recorder import (  # noqa: PLC0415 - as above
        CallRecorder,
    )
    from gradcheck_suite.verification.target.call_replay import (  # noqa: PLC0415 - as above
        replayable,
    )

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
            survey.subject(survey.subject.leaves(survey.point.values))
        if seen != set(among) or strange:
            return None
        with _examining(among):
            found: dict[type, set[_Told]] = {}
            for call in calls:
                found.setdefault(call.target, set()).add(_verdict(call, order))
    except Exception:  # noqa: BLE001 - a Function may not be callable by itself
        return None
    wrong = tuple(function for function in among if "wrong" in found[function])
    return wrong if wrong or all(told == {"right"} for told in found.values()) else None


def is_examined() -> bool:
    """Say whether this check is one of a Function by itself, of which only its outcome counts."""
    return bool(_examined.get())


@contextmanager
def _examining(functions: Collection[type]) -> Iterator[None]:
    token = _examined.set(_examined.get() | set(functions))
    try:
        yield
    finally:
        _examined.reset(token)


def _verdict(call: ReplayableCall, order: Literal[1, 2]) -> _Told:
    # At run time: see above.
    from gradcheck_suite.verification.check import check_gradients  # noqa: PLC0415 - as above

    def check(**options: Any) -> Any:
        return check_gradients(
            call.target, call.args, kwargs=call.kwargs, order=order, variations=(), **options
        )

    if any(value.dtype in _HALF for value in call.values):
        # Half precision takes seconds to find what float64 finds at once.
        try:
            if not check(dtype="float64").ok:
                return "wrong"
        except Exception:  # noqa: BLE001 - a Function may take half precision only
            pass
    report = check()
    if not report.ok:
        return "wrong"
    passed = all(verdict.status == "pass" for verdict in report.verdicts)
    return "right" if passed and not report.findings else "unknown"


def _same_layout(call: Call, again: ReplayableCall) -> bool:
    """Say whether the copies lie in memory as the tensors do, gaps and overlaps included."""
    given = leaves_with_paths((call.args, dict(call.kwargs)), "")
    copied = leaves_with_paths((again.args, again.kwargs), "")
    return all(
        one.stride() == two.stride() and one.storage_offset() == two.storage_offset()
        for (_, one), (_, two) in zip(given, copied, strict=True)
        if isinstance(one, torch.Tensor) and one.layout is torch.strided
    )
