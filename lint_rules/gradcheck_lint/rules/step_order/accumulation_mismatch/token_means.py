"""Find means over varying numbers of items that are averaged over micro-batches as if all equal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.flow import Backward, Step
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    bound_names,
    dotted_name,
    keyword,
    last_word,
    plain_string,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["TokenMean", "token_means"]

_MOST_CALLS: Final = 3
_MEANS: Final = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
_ACCUMULATES: Final = re.compile("accum|micro")


class TokenMean(NamedTuple):
    """A loss that is divided by the number of micro-batches, and the mean that it is."""

    divided: cst.CSTNode
    number: str
    mean: cst.CSTNode
    is_likely: bool


def token_means(function: FunctionModel) -> Iterator[TokenMean]:
    """Yield what is differentiated in a loop over micro-batches and is such a mean."""
    for loop in function.loops():
        events = list(loop.body.events())
        differentiated = [
            event.node for event in events if isinstance(event, Backward) and not event.by_engine
        ]
        for divided, loss, count in _divisions(loop, function):
            if not any(_is_part_of(divided, node, loop) for node in differentiated):
                continue
            is_window = _ACCUMULATES.search(count.lower()) is not None
            is_whole = not any(isinstance(event, Step) for event in events) and _counts(count, loop)
            if not is_window and not is_whole:
                continue
            mean = _mean_in(loss, function, 0)
            if mean is not None:
                yield TokenMean(divided, count, mean, _is_of_sequences(mean, function))
                return


def _is_part_of(divided: cst.CSTNode, backward: cst.CSTNode, loop: Loop) -> bool:
    """Return whether a quotient is what backward() is called on, itself or by its name."""
    called = list(walk(backward))
    names = {dotted_name(divided.target)} if type(divided) is cst.AugAssign else set()
    for node in walk(loop.node):
        for target, value in assigned_pairs(node):
            if any(each is divided for each in walk(value)):
                names.add(dotted_name(target))
    return any(node is divided or dotted_name(node) in names - {None} for node in called)


def _counts(count: str, loop: Loop) -> bool:
    """Return whether this is how many micro-batches a loop goes through."""
    over = loop.node.iter if type(loop.node) is cst.For else None
    while type(over) is cst.Call and over.args and last_word(dotted_name(over.func)) in _PASSING:
        over = over.args[0].value
    name = dotted_name(over)
    return (name is not None and count == f"len({name})") or (
        type(over) is cst.Call and dotted_name(over.func) == "range" and count in _texts(over)
    )


_PASSING: Final = frozenset({"enumerate", "tqdm", "zip"})


def _texts(call: cst.Call) -> set[str]:
    return {dotted_name(argument.value) or "" for argument in call.args}


def _divisions(
    loop: Loop, function: FunctionModel
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, str]]:
    """Yield each division of a loss in a loop: where it is, of what, and by what."""
    text = function.module.text
    for node in walk(loop.node):
        if type(node) is cst.BinaryOperation and type(node.operator) is cst.Divide:
            yield node, node.left, text(node.right)
        elif type(node) is cst.AugAssign and type(node.operator) is cst.DivideAssign:
            yield node, node.target, text(node.value)


def _mean_in(node: cst.CSTNode, function: FunctionModel, depth: int) -> cst.CSTNode | None:
    """Return the mean over its own number of items that a loss is, through calls and names."""
    for each in walk(node):
        if _is_token_mean(each, function):
            return each
        found = None
        if type(each) is cst.Name and depth < _MOST_CALLS:
            for source in _given(each.value, function):
                is_other = not any(inner is node for inner in walk(source))
                found = found or (_mean_in(source, function, depth + 1) if is_other else None)
        elif type(each) is cst.Call and depth < _MOST_CALLS:
            found = _mean_in_callee(each, function, depth)
        if found is not None:
            return found
    return None


def _given(name: str, function: FunctionModel) -> Iterator[cst.BaseExpression]:
    """Yield what a name is given, also as one of several: ``out, loss = model(x)``."""
    for target, value in function.scope.assignments:
        if name in bound_names(target):
            yield value


def _mean_in_callee(call: cst.Call, function: FunctionModel, depth: int) -> cst.CSTNode | None:
    module = function.module
    scope = called_function(call, function)
    if scope is None:
        made = [module.scopes.classes.get(value.name) for value in _held(call, function)]
        forwards = [module.scopes.method(owner, "forward") for owner in made if owner is not None]
        scope = forwards[0] if len(forwards) == 1 else None
    if scope is None:
        return None
    called = module.function(scope)
    for node in scope.nodes_of(cst.Return):
        if node.value is not None:
            found = _mean_in(node.value, called, depth + 1)
            if found is not None:
                return found
    return None


def _held(call: cst.Call, function: FunctionModel) -> frozenset:  # type: ignore[type-arg]
    return function.bindings.get(dotted_name(call.func) or "", frozenset())


def _is_token_mean(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether this divides a sum by how many items are valid."""
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Divide:
        return _is_count(node.right, function) and _sums(node.left, function)
    if type(node) is not cst.Call:
        return False
    if _averages_valid(node):
        return last_word(dotted_name(node.func)) in {"cross_entropy", "nll_loss"}
    return last_word(dotted_name(node.func)) in _criteria(function)


def _averages_valid(call: cst.Call) -> bool:
    if last_word(dotted_name(call.func)) not in _MEANS or keyword(call, "ignore_index") is None:
        return False
    reduction = keyword(call, "reduction")
    return type(reduction) is not cst.SimpleString or plain_string(reduction) == "mean"


def _is_of_sequences(mean: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether a mean is one of a mask, or over the items of sequences laid side by side."""
    if type(mean) is not cst.Call:
        return True
    scope = next(
        known for known in function.module.scopes.functions if any(n is mean for n in known.nodes)
    )
    given = [argument.value for argument in mean.args]
    for value in list(given):
        if type(value) is cst.Name:
            given += sources_of(scope).get(value.value) or ()
    return any(
        type(node) is cst.Name and node.value in _FLAT for value in given for node in walk(value)
    )


_FLAT: Final = frozenset(
    {"flatten", "view", "reshape", "transpose", "permute", "mT", "T", "movedim"}
)


def _criteria(function: FunctionModel) -> frozenset[str]:
    """Return the last words of what the file calls its losses that leave labels out."""
    memo = function.module.memo
    if "losses that ignore labels" not in memo:
        memo["losses that ignore labels"] = frozenset(
            last_word(dotted_name(target))
            for other in function.module.functions()
            for target, value in other.scope.assignments
            if type(value) is cst.Call and _averages_valid(value)
        ) - {""}
    known: frozenset[str] = memo["losses that ignore labels"]
    return known


def _is_count(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this is the sum of a mask, kept from zero or not."""
    if type(node) is cst.Name:
        sources = sources_of(function.scope).get(node.value) or ()
        return (
            len(sources) == 1
            and type(sources[0]) is not cst.Name
            and _is_count(sources[0], function)
        )
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Add:
        return _is_count(node.left, function)
    if type(node) is not cst.Call:
        return False
    name = node.func.attr.value if type(node.func) is cst.Attribute else dotted_name(node.func)
    inner = node.func.value if type(node.func) is cst.Attribute else node
    if name in {"clamp", "clamp_min", "float", "to", "max"} and inner is not node:
        return _is_count(inner, function)
    if name != "sum":
        return False
    words = " ".join(each.value for each in walk(node) if type(each) is cst.Name).lower()
    is_test = any(type(each) is cst.Comparison for each in walk(node))
    return is_test or _VALID.search(words) is not None


_VALID: Final = re.compile("mask|valid|keep|token|length|label|pad")


def _sums(node: cst.BaseExpression, function: FunctionModel) -> bool:
    if type(node) is cst.Name:
        sources = sources_of(function.scope).get(node.value) or ()
        return len(sources) == 1 and _sums(sources[0], function)
    return any(type(each) is cst.Name and each.value == "sum" for each in walk(node)) or any(
        type(each) is cst.SimpleString and plain_string(each) == "sum" for each in walk(node)
    )
