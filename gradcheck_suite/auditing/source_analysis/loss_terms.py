"""The terms of the loss that a backward starts from: which carry a gradient, and what cut others.

A sum hides a term without a graph: backward runs, and the other terms train. The terms are read
from the source of the running functions, with what their variables hold.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor
from torch.nn import Parameter

from gradcheck_suite.auditing.call_sites import is_user_code, variables_of
from gradcheck_suite.auditing.source_analysis.abstract_values import (
    Kind,
    Part,
    Value,
    merged,
    parts_of,
    value_of_object,
    written,
)
from gradcheck_suite.auditing.source_analysis.interpretation import (
    Interpretation,
    ReachedCall,
    Scope,
    followed_from,
)
from gradcheck_suite.auditing.source_analysis.source import (
    Function,
    function_at,
    innermost,
    name_of,
    span_at,
    tree_of,
)
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FrameType

    from gradcheck_suite.auditing.source_analysis.flow_cut import Cut  # noqa: TC004 - text alone

__all__ = ["FollowedLoss", "LossTerm", "TermState", "left_out_of_derivative", "terms_of_loss"]

TermState: TypeAlias = Literal["live", "cut", "constant", "unknown"]

_TWO = 2
"""The fewest terms that a sum has."""
_CALLERS = 3
"""Functions that a loss is followed up through, from the one that calls backward."""
_STATES: dict[Kind, TermState] = {
    Kind.LIVE: "live",
    Kind.CUT: "cut",
    Kind.PLAIN: "constant",
    Kind.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A term of a loss.

    Attributes:
        text: how the user wrote it, shortened.
        location: where it is added.
        state: ``live`` if it carries a gradient, ``cut`` if it depends on what is trained and was
            cut off from it, ``constant`` if it does not depend on it; ``unknown`` otherwise.
        cut: what cut it off.
        factor: the product of the numbers it is multiplied by, if these are known.
        on_purpose: why it is no mistake that it is cut, if it is known to be none.
        doubts: what speaks against a mistake.
    """

    text: str
    location: Location
    state: TermState
    cut: Cut | None = None
    factor: float | None = None
    on_purpose: str | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowedLoss:
    """The terms of a loss, none where it could not be followed.

    ``begins_at_zero``: whether ``sum()`` was called on the way, which adds a zero to them;
    ``begins_at_numbers``: whether ``+=`` has added to a name, or to the items of one, that stood
    for nothing that is known to be trained.
    """

    terms: tuple[LossTerm, ...] = ()
    begins_at_zero: bool = False
    begins_at_numbers: bool = False


def terms_of_loss(frames: Sequence[FrameType], step: CodeType | None = None) -> FollowedLoss:
    """Return the terms of what a backward starts from, if its loss is a sum that can be followed.

    Args:
        frames: those that run, without torch's, Python's and our own, innermost first, while the
            backward is about to run.
        step: the function of the user's that a library has called last, if that is known: where the
            library calls backward, it has returned the loss.
    """
    first = next((i for i, frame in enumerate(frames) if is_user_code(frame.f_code)), 0)
    shared = Interpretation()
    try:
        reached = _call_of(frames[first:], shared, _CALLERS)
        parts = [] if reached is None else _parts(_roots(reached))
        if len(parts) < _TWO and step is not None:
            # The user's frame runs the whole training.
            libraries = takewhile(lambda frame: not is_user_code(frame.f_code), frames)
            parts = _parts([_loss_of_step(step, libraries, shared)])
        terms = tuple(_term(each, parts, shared) for each in parts if len(parts) >= _TWO)
        return FollowedLoss(terms, shared.begins_at_zero, shared.begins_at_numbers)
    finally:
        shared.close()


def left_out_of_derivative(frames: Sequence[FrameType]) -> dict[Cut, tuple[str, bool]]:
    """Return where recording was off for what ``autograd.grad`` is to differentiate by its inputs.

    Args:
        frames: as for ``terms_of_loss``, while ``autograd.grad`` runs.

    Returns:
        The lines that have switched recording off, with the variable of the input, and whether
        what is computed there depends on anything else that asks for gradients; of inputs that are
        no parameters: what is computed of weights without recording is mostly a target.
    """
    inputs = {
        id(thing): name
        for name, thing in variables_of(frames[0]).items()
        if issubclass(type(thing), Tensor) and not isinstance(thing, Parameter)
    }
    shared = Interpretation()
    try:
        call = _call_of(frames, shared, _CALLERS)
        if call is None or not inputs:
            return {}
        given = dict(zip(("outputs", "inputs"), call.given, strict=False)) | call.named
        root, by = given.get("outputs", Value()).whole(), given.get("inputs", Value()).whole()
        found: dict[Cut, set[int]] = {}
        for cut, source in root.unrecorded:
            found.setdefault(cut, set()).add(source)
        wanted = by.sources & set(inputs)
        return {
            cut: (inputs[min(sources & wanted)], not sources <= wanted)
            for cut, sources in sorted(found.items(), key=lambda each: each[0].line)
            if sources & wanted
        }
    finally:
        shared.close()


def _parts(roots: Iterable[Value]) -> list[Part]:
    return [part for root in roots for part in parts_of(root, root.text, root.path, root.line)]


def _loss_of_step(step: CodeType, frames: Iterable[FrameType], shared: Interpretation) -> Value:
    """Return the loss that the user's step returns to the library that runs these frames."""
    for frame in frames:
        for thing in _known_in(frame):
            receiver, function = thing, inspect.getattr_static(type(thing), step.co_name, None)
            if inspect.isfunction(thing):
                receiver, function = None, thing
            elif inspect.ismethod(thing):
                receiver, function = thing.__self__, thing.__func__
            if inspect.isfunction(function) and inspect.unwrap(function).__code__ is step:
                loss = followed_from(function, receiver, shared)
                items = loss.items or {}
                return items.get("loss", items.get(0, loss))
    return Value()


def _known_in(frame: FrameType) -> Iterator[object]:
    """Yield what a function of a library has in its variables, and what its object holds."""
    variables = variables_of(frame)
    yield from variables.values()
    yield from list(getattr(variables.get("self"), "__dict__", {}).values())


def _call_of(
    frames: Sequence[FrameType], shared: Interpretation, callers: int
) -> ReachedCall | None:
    """Return the call that the first of these frames is making, with what is given to it."""
    frame = frames[0]
    found = _definition(frame)
    if found is None:
        return None
    path, node = found
    variables = variables_of(frame)
    scope = Scope(shared, path, variables, frame.f_globals)
    if isinstance(node, ast.Module):
        scope.variables = frame.f_globals
    elif callers and len(frames) > 1 and frame.f_back is frames[1]:
        _bind_given(scope, node, _call_of(frames[1:], shared, callers - 1))
    scope.follow_to(node, span_at((frame.f_code, frame.f_lasti)), frame.f_lineno)
    return scope.reached


def _definition(frame: FrameType) -> tuple[str, ast.Module | Function] | None:
    code = frame.f_code
    tree = tree_of(code.co_filename)
    if tree is None or not is_user_code(code):
        return None
    if code.co_name == "<module>":
        return code.co_filename, tree
    node = innermost(tree, frame.f_lineno)
    return None if node is None or node.name != code.co_name else (code.co_filename, node)


def _bind_given(scope: Scope, node: Function, call: ReachedCall | None) -> None:
    """Let the parameters of a running function stand for what its caller has given."""
    if call is None or name_of(call.node) not in (node.name, "__call__", None):
        return
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    first = scope.variables.get(names[0]) if names else None
    is_method = call.owner is not None and first is not None and call.owner.thing is first
    given = call.given
    if is_method:
        names = names[1:]
    for name, value in [*zip(names, given, strict=False), *call.named.items()]:
        if name in scope.variables:
            seen = value_of_object(scope.variables[name], name)
            scope.names[name] = merged(value, seen)
            scope.aliases.add(name)


def _roots(call: ReachedCall) -> Iterable[Value]:
    """Return what a call that leads to backward starts it from."""
    owner = call.owner
    if owner is not None and name_of(call.node) == "backward" and owner.kind is not Kind.PLAIN:
        return [owner]
    given = [*call.given, *call.named.values()]
    with_graph = [value for value in given if value.whole().kind is Kind.LIVE][:1]
    return [
        each
        for value in with_graph
        for each in (value.items.values() if value.items is not None else [value])
    ]


def _term(part: Part, parts: Sequence[Part], shared: Interpretation) -> LossTerm:
    value = part.value
    location = Location(part.path, part.line, function=function_at(part.path, part.line))
    if value.kind is not Kind.CUT:
        return LossTerm(written(part.text), location, _STATES[value.kind], factor=part.factor)
    live = [each for each in parts if each.value.kind is Kind.LIVE]
    return LossTerm(
        written(part.text),
        location,
        "cut",
        value.cut,
        part.factor,
        _on_purpose(part, live, shared),
        tuple(_doubts(part, live)),
    )


def _on_purpose(part: Part, live: Sequence[Part], shared: Interpretation) -> str | None:
    """Return why a term is cut off for good reason, if that can be seen."""
    if part.factor == 0:
        return "it is multiplied by zero"
    beside = {each.value for each in live}
    made_of = part.value.ancestors
    if made_of & beside:
        return "its gradient passes straight through to the term that it is made of"
    if made_of & shared.differentiated or part.value in shared.differentiated:
        return "a backward of its own goes through it"
    return None


def _doubts(part: Part, live: Sequence[Part]) -> Iterable[str]:
    value = part.value
    if any(value.cut in each.value.cuts for each in live):
        yield "what was cut off there is a constant of a term with a gradient too, as a target is"
    sources = frozenset[int]().union(*(each.value.sources for each in live))
    if value.sources and sources and not value.sources & sources:
        yield "it depends on other parameters than the terms with a gradient"
    likes = [each for each in live if each.value.callee == value.callee is not None]
    if any(each.minus is not part.minus for each in likes):
        yield "it is subtracted from a value of its own kind, as a constant to compare with is"
