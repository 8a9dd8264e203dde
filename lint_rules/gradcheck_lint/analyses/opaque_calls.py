"""Judge what a call that can't be looked into may have done to a training step.

Such a call bounds what may be claimed where it stands, and nothing else. Whoever finds that
something is *not* done asks here how likely the call does it, lowers the severity and says so.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, last_word, place_name
from gradcheck_lint.model.training_calls import names_optimizer
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_lint.model.flow import Call
    from gradcheck_lint.model.module import FunctionModel


class Doubt(IntEnum):
    """How likely it is that a call does what nobody else is seen to do."""

    NONE = 0
    SLIGHT = 1
    """Its name is about something else, or it is only given the model to compute a value."""
    GRAVE = 2
    """It is given the optimizer, or its result is not wanted."""
    CERTAIN = 3
    """Its name says that it does it, or it hands control to whoever does."""


ZEROES: Final = re.compile(r"zero|reset|clear|clean|flush")
DIFFERENTIATES: Final = re.compile(r"backward|grad|train|learn|fit|optim|update|step|closure|run")
STEPS: Final = re.compile(r"step|update|optim|train|learn|fit")
UNSCALES: Final = re.compile(r"scale|clip|update|step|optim")

_ABOUT_ELSE: Final = re.compile(
    r"eval|valid|test|predict|infer|sampl|demo|score|accura|metric|save|load|log|print|plot|visual"
    r"|report|checkpoint|ckpt|(?:^|_)lr(?:_|$)|rate|schedul|warm_?up|anneal|decay|(?:^|_)ema(?:_|$)"
    r"|average|count|summar|loss|forward|comput|criter|(?:^|_)get|wrap|freeze|sync|reduce"
)


def doubt_of(call: Call, act: re.Pattern[str]) -> Doubt:
    """Return how likely it is that a call which is handed what is trained does this as well."""
    name = _name_of(call)
    if act.search(name) is not None and _ABOUT_ELSE.search(name) is None:
        return Doubt.CERTAIN
    if call.suspends or name == "setattr":
        return Doubt.CERTAIN  # a generator hands control to whoever does it, `setattr` may be it
    if "backward" in name:
        return Doubt.GRAVE
    if _ABOUT_ELSE.search(name) is not None:
        return Doubt.SLIGHT
    return Doubt.GRAVE if _is_given_optimizer(call) or not call.is_used else Doubt.SLIGHT


def worst(calls: Iterable[Call], act: re.Pattern[str]) -> Doubt:
    """Return how likely it is that one of these calls does this."""
    return max((doubt_of(call, act) for call in calls), default=Doubt.NONE)


def lowered(severity: Severity, doubt: Doubt) -> Severity:
    """Return the severity of what is not sure because of calls that can't be looked into."""
    if doubt is Doubt.NONE or severity is Severity.NOTE:
        return severity
    return Severity.WARNING if doubt is Doubt.SLIGHT else Severity.NOTE


def reservation(calls: Sequence[Call], function: FunctionModel) -> str:
    """Return what to add to a message, "" if nothing stands in the way."""
    if not calls:
        return ""
    call = calls[0]
    assert type(call.node) is cst.Call
    name = function.module.text(call.node.func)
    return f"; `{name}()` can't be looked into: this holds if it leaves the gradients alone"


def _is_given_optimizer(call: Call) -> bool:
    if type(call.node) is not cst.Call:
        return True
    given = [last_word(place_name(argument.value)) for argument in call.node.args]
    return any(map(names_optimizer, given)) or (call.method is not None and bool(call.on))


def _name_of(call: Call) -> str:
    name = call.method
    if type(call.node) is cst.Call:
        name = name or dotted_name(call.node.func)
    return _last_part(name or "")


@lru_cache(maxsize=4096)
def _last_part(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2]).lower()
