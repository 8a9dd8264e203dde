"""Read what is passed in a call, and record calls of which no more is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.elements import element_of
from gradcheck_lint.model.expressions import read
from gradcheck_lint.model.flow import Call, GradMode
from gradcheck_lint.model.knowledge import BACKWARD_BY_ENGINE, words
from gradcheck_lint.model.nearness import MODE
from gradcheck_lint.model.returning import as_seen_by_caller
from gradcheck_lint.model.syntax import dotted_name, last_word, place_name, walk
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    carrying,
    cut_of,
    flowing_from,
    held_by,
    join_all,
    mentioned_by,
    sites,
    through_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope


@dataclass(slots=True)
class Arguments:
    """What is passed in a call, read once; nobody changes it, as with ``Value``."""

    positional: tuple[Values, ...]
    keywords: dict[str, Values]
    everything: Values

    @property
    def named(self) -> tuple[tuple[int | str, Values], ...]:
        """Return what is passed, by position or by name."""
        return (*enumerate(self.positional), *self.keywords.items())


def read_arguments(reading: Reading, node: cst.Call) -> Arguments:
    """Read the arguments of a call in order; functions that are handed on count as called."""
    ordered: list[Values] = []
    keywords: dict[str, Values] = {}
    for argument in node.args:
        values = read(reading, argument.value)
        if argument.keyword is not None:
            keywords[argument.keyword.value] = values
        elif argument.star:
            ordered.append(element_of(reading, values, argument))
        else:
            ordered.append(values)
        for value in values:
            if value.function is not None:
                _note_reference(reading, argument, value.function)
    if not keywords and len(ordered) < 2:  # noqa: PLR2004 - nothing to join
        everything = ordered[0] if ordered else NOTHING
    else:
        everything = join_all((*ordered, *keywords.values()))
    return Arguments(tuple(ordered), keywords, everything)


def _note_reference(reading: Reading, node: cst.CSTNode, function: FunctionScope) -> None:
    reading.recorder.event(Call, node, reading.state.mode, function=function, referenced=True)


def only_function(values: Values) -> FunctionScope | None:
    """Return the one function of this file that is held, or None."""
    if len(values) == 1:
        (only,) = values
        return only.function
    functions = {value.function for value in values}
    return functions.pop() if len(functions) == 1 else None


def record_call(
    reading: Reading,
    node: cst.Call,
    arguments: Arguments,
    *,
    function: FunctionScope | None = None,
    method: str | None = None,
    receiver: Values = NOTHING,
    harmless: bool = False,
    callee: Values = NOTHING,
    owner: Values = NOTHING,
    is_constructor: bool = False,
) -> Values:
    """Record a call of which only the arguments are known; ``callee`` is a model that is called."""
    recorder, mode, everything = reading.recorder, reading.state.mode, arguments.everything
    mentions, handed, through, cut = flowing_from(everything)
    if receiver:
        mentions, handed = mentions | mentioned_by(receiver), handed | held_by(receiver)
    named_as_loss = is_loss(node)
    if mode is GradMode.DISABLED or (function is not None and _only_declares_numbers(function)):
        through = NO_SITES
    else:
        if callee:
            through |= sites(callee)
        if method is not None:
            through |= through_all(receiver) | through_all(owner)
    cut = cut or (cut_of(owner) if method is not None and not through else None)
    # By place, which takes half as long: most events are calls.
    call = Call(
        node,
        mode,
        recorder.loops,
        recorder.arms,
        recorder.expects_error,
        function,
        method,
        handed,
        mentions,
        harmless or (function is None and _leaves_gradients_alone(node)),
        False,
        arguments.named if function is not None or method in reading.scopes.by_name else (),
        held_by(owner or receiver),
        is_constructor,
        reading.statement_value is not node,
    )
    recorder.block.items.append(call)
    if named_as_loss and mode is GradMode.DISABLED:
        cut = recorder.cut_by_mode(node)
        plain = recorder.value(
            Kind.PLAIN, node, origin=Origin.CALL, mentions=mentions, cut=cut, certain=False
        )
        return frozenset({plain})
    returned = NOTHING
    given: dict[int, Values] = {}
    if function is not None:
        surroundings = reading.surroundings
        if surroundings.returns_no_graph(function):
            cut = recorder.cut_by_mode(node)
            plain = recorder.value(Kind.PLAIN, node, mentions=mentions, cut=cut)
            call.result = frozenset({plain})
            return call.result
        if surroundings.returns_optimizer(function):
            return frozenset({recorder.value(Kind.OPTIMIZER, node)})
        if not is_constructor and _is_one_result(node):
            given = parameters_given(function, arguments.named, is_method=method is not None)
            returned = surroundings.returned_by(function, given)
    own = frozenset((id(node),))
    made = Value(
        Kind.UNKNOWN,
        id(node),
        node,
        recorder.loops,
        Origin.CALL,
        "",
        own,
        own,
        mentions,
        own,
        through=through,
        cut=cut,
    )
    result = frozenset((made,))
    if function is not None and returned:
        may_record = reading.surroundings.near.has(function, MODE)
        result = as_seen_by_caller(reading, node, made, returned, given, may_record=may_record)
        call.result = result
    if named_as_loss:
        return carrying(result, *arguments.positional[:1])
    return result


def _only_declares_numbers(function: FunctionScope) -> bool:
    """Tell whether a method is there to be overridden, and is said to return numbers.

    Where it returns something itself, that tells more than what it's said to return.
    """
    node = function.node
    if isinstance(node, cst.Module) or node.returns is None:
        return False
    named = {inner.value for inner in walk(node.returns) if type(inner) is cst.Name}
    if not named & _NUMBERS or not named <= _NUMBERS | _CONTAINERS:
        return False
    return not any(inner.value is not None for inner in function.nodes_of(cst.Return))


_NUMBERS = words("float int bool str ndarray")
_CONTAINERS = words(
    "list List tuple Tuple dict Dict Sequence Iterable Iterator Generator Optional np numpy"
)


def parameters_given(
    function: FunctionScope, arguments: Iterable[tuple[int | str, Values]], *, is_method: bool
) -> dict[int, Values]:
    """Return what the parameters of a function of the file stand for in a call."""
    node = function.node
    if isinstance(node, cst.Module):
        return {}
    ordered = [*node.params.posonly_params, *node.params.params]
    if is_method:
        ordered = ordered[1:]
    named = {
        parameter.name.value: parameter for parameter in (*ordered, *node.params.kwonly_params)
    }
    given: dict[int, Values] = {}
    for place, values in arguments:
        parameter = (
            (ordered[place] if place < len(ordered) else None)
            if isinstance(place, int)
            else named.get(place)
        )
        if parameter is not None:
            given[id(parameter)] = values
    return given


def _is_one_result(node: cst.Call) -> bool:
    """Tell whether all arguments are given one by one, so that it's known which is which."""
    return not any(argument.star for argument in node.args)


def _leaves_gradients_alone(node: cst.Call) -> bool:
    """Tell by its name whether a function only reads, saves or copies what it is handed."""
    func = node.func
    if type(func) is cst.Attribute:
        before = func.value
        owner = before.value if type(before) is cst.Name else last_word(place_name(before))
        return _leaves_alone(owner, func.attr.value)
    return _leaves_alone("", dotted_name(func) or "")


@lru_cache(maxsize=4096)
def _leaves_alone(owner: str, name: str) -> bool:
    if owner:
        owner = owner.lower()
        if BACKWARD_BY_ENGINE.search(owner) is not None:
            return _CHANGING_NAME.search(name) is None
        if _WATCHER.search(owner) is not None and not name.endswith("step"):
            return True
    return _READING_NAME.search(name.lower()) is not None


_WATCHER = re.compile(
    r"(?:^|_)(?:ema|swa|logger|writer|meters?|metrics?|wandb|tracker|checkpointer|timer|profiler)"
    r"(?:_|$)"
)
"""The names of objects that average, count or note, and leave what they are handed as it is."""
_CHANGING_NAME = re.compile("backward(?!_sync)|step|(?<!clip_)grad|prepare|launch|run")
_READING_NAME = re.compile(
    r"(?:^|_)(?:save|log|print|plot|visuali[sz]e|report|dump|summary|polyak|soft_update|hard_update"
    r"|ema|count|noise|toggle|untoggle)(?:_|$)"
)


def is_loss(node: cst.Call) -> bool:
    """Tell whether what is called is named as a loss."""
    func = node.func
    if type(func) is cst.Name:
        return _names_loss(func.value)
    # Few are, so that what stands before the last word is not looked at for all.
    return (
        type(func) is cst.Attribute
        and _names_loss(func.attr.value)
        and dotted_name(func) is not None
    )


@lru_cache(maxsize=4096)
def _names_loss(name: str) -> bool:
    last = name.lower()
    return last.endswith("loss") or last.startswith("criter")


def method_of(reading: Reading, receiver: Values, method: str) -> FunctionScope | None:
    """Return the method of a class of this file that is called on a receiver, or None."""
    if len(receiver) == 1:
        (only,) = receiver
        is_own = only.kind is Kind.INSTANCE or only.kind is Kind.OPTIMIZER
        return reading.method(only.name, method) if is_own else None
    found = {
        reading.method(value.name, method)
        if value.kind is Kind.INSTANCE or value.kind is Kind.OPTIMIZER
        else None
        for value in receiver
    }
    return found.pop() if len(found) == 1 else None


def called_by(
    reading: Reading, callee: Values, method: str | None
) -> tuple[FunctionScope | None, str | None]:
    """Return the function of this file that a call of ``callee`` runs, and as which method.

    That is a function, a method that was taken from its object, or ``__call__`` of an object.
    """
    function = only_function(callee)
    if function is not None:
        return function, method if function.owner is not None else None
    function = method_of(reading, callee, "__call__")
    return function, method if function is None else "__call__"
