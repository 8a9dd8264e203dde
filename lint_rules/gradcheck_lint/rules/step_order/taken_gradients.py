"""Tell whether gradients are taken by hand, so that what clears them afterwards loses nothing.

Clipping for each sample, gradients of several losses that are merged, averages of gradients and
whoever measures them read ``.grad`` after a backward, or have a hook for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Call
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, last_word, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.nearness import Sought
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["takes_gradients"]


def takes_gradients(
    function: FunctionModel, events: Iterable[Event], *, or_measures: bool = True
) -> bool:
    """Return whether a function, or what it calls in these events, reads gradients by hand.

    Args:
        function: where the gradients are.
        events: what happens to them.
        or_measures: whether it is enough that their norm is read, as for a log.
    """
    if function.module.near.has(function.scope, _HOOKS) or _reads(function.scope, or_measures):
        return True
    seen = {id(function.scope)}
    waiting = [event for event in events if isinstance(event, Call)]
    while waiting:
        call = waiting.pop()
        if call.function is None:
            if _is_named_for_it(call, or_measures):
                return True
        elif id(call.function) not in seen:
            if _reads(call.function, or_measures):
                return True
            seen.add(id(call.function))
            called = function.module.function(call.function)
            waiting += [event for event in called.events() if isinstance(event, Call)]
    return False


_HOOKS: Final[Sought] = frozenset(
    {"register_hook", "register_post_accumulate_grad_hook"}
).__contains__
_GRADIENTS: Final = frozenset({"grad", "_grad"})
_CHANGING: Final = re.compile(r"zero|clip|clear|reset|none|enable|requires|scaler|checkpoint|no_")


_NORM: Final = "norm"


def _is_named_for_it(call: Call, or_measures: bool) -> bool:
    """Return whether a call that can't be looked into says that it is about gradients."""
    name = dotted_name(call.node.func) if type(call.node) is cst.Call else None
    word = last_word(name or call.method).lower()
    if _NORM in word and not or_measures:
        return False
    return "grad" in word and _CHANGING.search(word) is None


def _reads(scope: FunctionScope, or_measures: bool) -> bool:
    if _GRADIENTS.isdisjoint(scope.words):
        return False
    nodes = list(scope.nodes_with_lambdas)
    quiet = {id(quiet) for node in nodes for quiet in _written_or_compared(node)}
    if not or_measures:
        quiet |= {id(quiet) for node in nodes for quiet in _measured(node)}
    return any(
        type(node) is cst.Attribute and node.attr.value in _GRADIENTS and id(node) not in quiet
        for node in nodes
    )


def _written_or_compared(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what is written or compared alone: ``p.grad = None``, ``p.grad.data.zero_()``."""
    if type(node) is cst.Call:
        yield node.func
        if type(node.func) is cst.Attribute and node.func.attr.value.endswith("_"):
            yield from walk(node.func)
    elif type(node) is cst.Comparison:
        yield node.left
    elif type(node) in {cst.AugAssign, cst.Del}:
        yield node.target  # type: ignore[attr-defined]
    for target, value in assigned_pairs(node):
        yield target
        name = dotted_name(target)
        yield from (same for same in walk(value) if name and dotted_name(same) == name)


def _measured(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what a norm is of: ``p.grad.data.norm(2)``, ``torch.norm(p.grad)``."""
    if type(node) is cst.Call and _NORM in last_word(dotted_name(node.func)):
        yield from walk(node)
