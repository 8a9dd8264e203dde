"""Find layers that are frozen between steps, whose gradients stay and are zero from then on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, Freeze
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, last_word, positional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["FrozenMidway", "frozen_midway"]


class FrozenMidway(NamedTuple):
    """Where layers are frozen in a loop that trains, and what leaves their gradients there."""

    node: cst.CSTNode
    zeroing: cst.CSTNode
    optimizer: cst.CSTNode


def frozen_midway(function: FunctionModel) -> Iterator[FrozenMidway]:
    """Yield what freezes layers under a condition in a loop that trains them before.

    An optimizer steps with a gradient of zero as well: by weight decay, and by its averages.
    """
    module = function.module
    if not module.may_freeze or not module.mentions(b"set_to_none") or module.matches(_DROPS):
        return
    zeroing = next(filter(_keeps_tensors, _calls(module)), None)
    optimizer = next((call for call in _calls(module) if _moves_all(call, module)), None)
    if zeroing is None or optimizer is None:
        return
    events = list(function.events())
    for event in events:
        if event.loops and event.arms and _freezes(event, function):
            inside = [each for each in events if event.loops[0] in each.loops]
            is_trained = any(_trains(each, function) for each in inside if each is not event)
            if is_trained and not any(_makes_anew(each, function) for each in inside):
                yield FrozenMidway(event.node, zeroing, optimizer)


_DROPS: Final = re.compile(rb"grad\s*=\s*None|set_to_none\s*=\s*True|del \w+\.grad|param_groups")


def _calls(module: ModuleModel) -> Iterator[cst.Call]:
    for scope in module.scopes.functions:
        yield from (node for node in scope.nodes_of(cst.Call))


def _keeps_tensors(call: cst.Call) -> bool:
    """Return whether this is ``zero_grad(set_to_none=False)``."""
    if last_word(dotted_name(call.func)) != "zero_grad":
        return False
    given = keyword(call, "set_to_none") or next(iter(positional(call)), None)
    return given is not None and boolean(given) is False


def _moves_all(call: cst.Call, module: ModuleModel) -> bool:
    """Return whether an optimizer of all of a model moves what has a gradient of zero."""
    if not module.makes_optimizer(call):
        return False
    given = next(iter(positional(call)), None)
    called = dotted_name(given.func) if type(given) is cst.Call and not given.args else None
    moves = any(
        (value := keyword(call, name)) is not None and module.text(value) not in {"0", "0.0"}
        for name in ("weight_decay", "momentum")
    )
    is_adaptive = "Adam" in last_word(dotted_name(call.func))
    return last_word(called) == "parameters" and (moves or is_adaptive)


def _freezes(event: Event, function: FunctionModel) -> bool:
    """Return whether an event turns gradients off, here or in the function that it calls."""
    if isinstance(event, Freeze):
        return event.wanted is False
    if not isinstance(event, Call) or event.function is None or event.is_constructor:
        return False
    called = function.module.function(event.function)
    return any(isinstance(each, Freeze) and each.wanted is not True for each in called.events())


def _trains(event: Event, function: FunctionModel) -> bool:
    if isinstance(event, Call):
        return event.function is not None and function.module.near.has(event.function, BACKWARD)
    return isinstance(event, Backward)


def _makes_anew(event: Event, function: FunctionModel) -> bool:
    """Return whether a call makes an optimizer, or may have one made."""
    if not isinstance(event, Call):
        return False
    if event.function is None:
        return function.module.makes_optimizer(event.node)
    return any(map(function.module.makes_optimizer, event.function.nodes_of(cst.Call)))
