"""Which of several custom Functions made a gradient wrong: each is checked by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.randomness import RandomState

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradcheck_suite.verification.localization.recorder import Call
    from gradcheck_suite.verification.localization.subjects import Repeatable
    from gradcheck_suite.verification.survey import Survey

__all__ = ["wrong_functions"]

_MOST_CALLS = 64


def wrong_functions(survey: Survey, among: Collection[type]) -> tuple[type, ...]:
    """Return those custom Functions whose gradients are wrong at the inputs that they really get.

    The function is called once more and its calls of these Functions are recorded. A Function that
    is right by itself cannot be what is wrong. Empty where that could not be told of all of them.

    Args:
        survey: what was measured of the function.
        among: the Functions between the output and the input in question.
    """
    # At run time: localization is made of whole checks, of which this is a part.
    from gradcheck_suite.verification.check import check_gradients  # noqa: PLC0415 - as above
    from gradcheck_suite.verification.localization.recorder import (  # noqa: PLC0415 - as above
        Recorder,
    )
    from gradcheck_suite.verification.localization.subjects import (  # noqa: PLC0415 - as above
        repeatable,
    )

    calls: list[Repeatable] = []
    seen: set[type] = set()

    def visit(call: Call) -> None:
        if call.target not in among or not torch.is_grad_enabled():
            return
        again = repeatable(call, RandomState.capture())
        if again.values and len(calls) < _MOST_CALLS:
            calls.append(again)
            seen.add(call.target)

    try:
        with torch.enable_grad(), Recorder(None, frozenset({"function"}), visit).recording():
            survey.subject(survey.subject.leaves(survey.point.values))
        if seen != set(among):
            return ()
        wrong = {
            call.target
            for call in calls
            if not check_gradients(
                call.target, call.args, kwargs=call.kwargs, order=1, variations=()
            ).ok
        }
    except Exception:  # noqa: BLE001 - a Function may not be callable by itself
        return ()
    return tuple(function for function in among if function in wrong)
