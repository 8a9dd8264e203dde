"""GCS103: a tensor is overwritten after an operation has saved it for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, Event, GradMode, InPlace, Return, Save
from gradcheck_lint.model.reading import may_write
from gradcheck_lint.model.syntax import last_word, place_name
from gradcheck_lint.model.values import (
    Kind,
    Value,
    Values,
    aliased_by,
    all_are,
    carried_by_all,
    join_all,
    sites,
    through_all,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.overwriting_layers import written_by_layer
from gradcheck_lint.rules.in_place.recording import exclude, is_for_evaluation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class SavedTensorModified(Rule):
    """A tensor that backward needs is written to between forward and backward."""

    entry = catalogue.SAVED_TENSOR_MODIFIED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write to a saved tensor that a backward or the caller comes after."""
        if not may_write(function.scope, function.module.scopes):
            return
        events = list(map(written_by_layer, function.events()))
        saves = [
            (place, event)
            for place, event in enumerate(events)
            if isinstance(event, Save) and not event.expects_error
        ]
        yield from _pieces_written(function, events)
        if not saves:
            return
        for place, write in enumerate(events):
            if not isinstance(write, InPlace) or write.expects_error:
                continue
            written = _written(write)
            if not written or not _counts(write, written):
                continue
            for earlier, save in saves:
                if earlier >= place or save.node is write.node:
                    continue
                if _hits(save, write, written):
                    use = _use(events[place + 1 :], save, write, function)
                    if use is not None and not is_for_evaluation(function, write):
                        yield _violation(function, save, write, written, use)
                        break


def _pieces_written(function: FunctionModel, events: list[Event]) -> Iterator[Violation]:
    """Yield writes to one of several views that an operation returns together: torch forbids it."""
    makers = {
        id(node): node
        for node in function.scope.nodes_of(cst.Call)
        if _name_of(node) in _MAKES_PIECES
    }
    if not makers:
        return
    known = {value.site: value for bound in function.bindings.values() for value in bound}
    for write in events:
        if not isinstance(write, InPlace) or write.mode is GradMode.DISABLED:
            continue
        made = [
            makers[site]
            for value in write.values
            if isinstance(value.node, (cst.Element, cst.Subscript, cst.For, cst.CompFor))
            for site in value.mentions
            if site in makers
        ]
        has_graph = all(
            value.through or any(_requires_grad(known.get(site)) for site in value.aliases)
            for value in write.values
        )
        if made and has_graph and not write.expects_error:
            yield Violation(
                write.node,
                f"`{source_of(function.module, write.target or write.node)}` is one of several "
                f"views that {_name_of(made[0])}() returns together: torch "
                "raises where one of them is modified in place",
                Severity.WARNING,
                "make a new tensor in place of it",
                ((made[0], "made here"),),
            )


_MAKES_PIECES = frozenset({"chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit"})


def _name_of(call: cst.Call) -> str:
    func = call.func
    return func.attr.value if type(func) is cst.Attribute else last_word(place_name(func))


def _requires_grad(value: Value | None) -> bool:
    return value is not None and (value.kind in {Kind.LEAF, Kind.HISTORY} or bool(value.through))


def _written(write: InPlace) -> Values:
    """Return the tensors that are written to: `maps[i] += x` writes to an element of a list."""
    if not all_are(write.values, Kind.CONTAINER):
        return write.values
    node = write.node
    if type(node) is not cst.AugAssign or type(node.target) is not cst.Subscript:
        return frozenset()
    return join_all(value.parts[0] if value.parts else frozenset() for value in write.values)


def _counts(write: InPlace, written: Values) -> bool:
    """Tell whether this is a write to a tensor that torch lets happen."""
    if any(value.kind in {Kind.NUMBER, Kind.CONTAINER, Kind.TUPLE} for value in written):
        return False
    raises_here = any(value.kind in {Kind.LEAF, Kind.LEAF_VIEW} for value in written)
    return not raises_here or write.mode is GradMode.DISABLED


def _hits(save: Save, write: InPlace, written: Values) -> bool:
    """Tell whether what is written is what was saved, on whichever path."""
    if not (save.is_tensor or write.operation.endswith("()")) or exclude(save, write):
        return False
    saved = sites(save.values)
    return all(aliased_by(frozenset({value})) & saved for value in written)


def _use(
    later: Sequence[Event], save: Save, write: InPlace, function: FunctionModel
) -> Event | None:
    """Return the backward, or the return of a forward, that the saved tensor is needed for."""
    result = id(save.node)
    is_forward = _is_forward(function)
    for event in later:
        if exclude(save, event) or exclude(write, event) or event.expects_error:
            continue
        ends = isinstance(event, Backward) or (is_forward and isinstance(event, Return))
        if ends and _needs(event, result, in_loop=bool(save.loops) and save.loops == write.loops):
            return event
    return None


def _needs(event: Event, result: int, *, in_loop: bool) -> bool:
    """Tell whether what is differentiated or returned has the result of an operation in its graph.

    Where no iteration of the loop runs that makes it, nothing is written there, either.
    """
    assert isinstance(event, (Backward, Return))
    return result in carried_by_all(event.values) or (
        in_loop and result in through_all(event.values)
    )


def _is_forward(function: FunctionModel) -> bool:
    """Tell whether this is the forward of a module."""
    scope = function.scope
    return scope.name.endswith(".forward") and function.module.scopes.derives_from(
        scope.owner, "torch.nn."
    )


def _violation(
    function: FunctionModel, save: Save, write: InPlace, written: Values, use: Event
) -> Violation:
    module = function.module
    is_backward = isinstance(use, Backward)
    text = source_of(module, write.target or write.node)
    when = "before backward() runs" if is_backward else "before the caller can run backward()"
    by = write.operation if write.operation.endswith(("()", "`")) else f"{write.operation},"
    return Violation(
        write.node,
        f"`{text}` is modified in place by {by} after an operation saved it, and "
        f"{when}: torch raises in backward()",
        _severity(function, save, write, written, use),
        "make a new tensor in place of the old one, or write to a clone",
        (
            (save.node, "saved for backward here"),
            (use.node, "backward() needs it here" if is_backward else "returned here"),
        ),
    )


def _severity(
    function: FunctionModel, save: Save, write: InPlace, written: Values, use: Event
) -> Severity:
    """Return an error if the three events happen on every path, in eager code."""
    happens = all(
        set(event.arms) <= set(use.arms) and set(event.loops) <= set(use.loops)
        for event in (save, write)
    )
    exactly = sites(written) == sites(save.values) and len(written) == 1
    # Under autocast a layer may have saved a copy of its own.
    is_eager = not function.module.mentions(b"autocast")
    certain = isinstance(use, Backward) and happens and exactly and is_eager
    certain = certain and _needs(use, id(save.node), in_loop=False)
    return Severity.ERROR if certain else Severity.WARNING
