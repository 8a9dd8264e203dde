"""Show that a value has a graph: from the calls of backward() in the same loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.cuts import forwards_by_node
from gradcheck_lint.model.flow import GradMode, StoreKind
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Value,
    Values,
    all_are,
    implied_by_all,
    sites,
    through_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Backward, Call, Forward, Store
    from gradcheck_lint.model.module import FunctionModel

_WITH_GRAPH = frozenset({Kind.UNKNOWN, Kind.HISTORY})


def proves_graph(backward: Backward, at: Store | Call, kept: Values, how: StoreKind) -> bool:
    """Tell whether ``backward`` is called, in one loop with ``at``, on what is kept there."""
    apart = (backward.loops or at.loops) and not set(backward.loops) & set(at.loops)
    if apart or _exclude_each_other(backward, at):
        return False
    # What is differentiated in the same mode shows that it records.
    if how is StoreKind.ACCUMULATE and not records(at, how) and at.mode is not backward.mode:
        return False
    proven = frozenset[int]().union(*(value.implies for value in backward.values))
    proven |= implied_by_all(backward.values)
    return bool(kept) and all(value.carries & proven for value in kept)


def records(at: Store | Call, how: StoreKind) -> bool:
    """Tell whether what is made of a value with a graph has one there, too."""
    return how is StoreKind.APPEND or at.mode not in {GradMode.DISABLED, GradMode.UNKNOWN}


def makes_likely(
    function: FunctionModel, backwards: list[Backward], at: Store | Call, kept: Values, loop: int
) -> list[Backward]:
    """Return the backwards because of which what is kept in a loop should have a graph.

    It comes from the forward that one of them goes through, and has a graph unless the loss has
    its own from elsewhere; or from another forward of the model that is trained by it.
    """
    if at.mode in {GradMode.DISABLED, GradMode.UNKNOWN}:
        return []
    if kept and all(_is_returned_without_graph(function, value) for value in kept):
        return []
    beside = [
        backward
        for backward in backwards
        if loop in backward.loops and not _exclude_each_other(backward, at)
    ]
    found = [known for known in beside if _all_share(kept, through_all(known.values))]
    if found or not any(value.through for value in _within(kept)):
        return found
    forwards = forwards_by_node(function)
    return [known for known in beside if _all_share(kept, _of_same_models(known, forwards))]


def _is_returned_without_graph(function: FunctionModel, value: Value) -> bool:
    """Tell whether a model of the file returns this in a tuple, as a number or without a graph."""
    module = function.module
    forward = forwards_by_node(function).get(value.result_of)
    index = _place_of(function, value)
    if forward is None or index is None:
        return False
    scopes = module.scopes
    methods = [
        scopes.method(scopes.classes.get(model.name), "forward")
        if model.kind is Kind.INSTANCE
        else None
        for model in forward.values
    ]
    returned = [module.returned_by(method) if method is not None else NOTHING for method in methods]
    return bool(returned) and all(
        bool(values)
        and all(
            whole.kind is Kind.TUPLE
            and index < len(whole.parts)
            and all_are(whole.parts[index], Kind.NUMBER, Kind.PLAIN)
            for whole in values
        )
        for values in returned
    )


def _place_of(function: FunctionModel, value: Value) -> int | None:
    """Return which of several things that a call returns at once this is: 1 for ``b, c = f()``."""
    for node in function.scope.nodes_of(cst.Assign):
        target = node.targets[0].target
        if type(target) is cst.Tuple and value.node in target.elements:
            return next((at for at, one in enumerate(target.elements) if one is value.node), None)
    return None


def _of_same_models(backward: Backward, forwards: dict[int, Forward]) -> frozenset[int]:
    """Return every forward of the models that a backward goes through."""
    reached = [forwards[node] for node in through_all(backward.values) if node in forwards]
    trained = frozenset[int]().union(*(sites(forward.values) for forward in reached))
    return frozenset(node for node, forward in forwards.items() if sites(forward.values) <= trained)


def _within(kept: Values) -> Iterator[Value]:
    """Yield these values and those in the tuples or dictionaries among them."""
    for value in kept:
        yield value
        for part in (*value.parts, *(held for _, held in value.entries)):
            yield from part


def _all_share(kept: Values, forwards: frozenset[int]) -> bool:
    return bool(kept) and all(_shares(value, forwards) for value in kept)


def _shares(value: Value, forwards: frozenset[int]) -> bool:
    """Tell whether a value, or one in a tuple or dictionary, comes from one of these forwards."""
    # Whatever a model is given, its own parameters give its result a graph.
    if value.cut is not None and (value.result_of not in forwards or not value.certain):
        return False
    if _is_beside_loss(value):
        return False
    if value.kind in _WITH_GRAPH and value.through & forwards:
        return True
    within = (*value.parts, *(held for _, held in value.entries))
    return any(_all_share(part, forwards) for part in within)


def _is_beside_loss(value: Value) -> bool:
    """Tell whether this comes with a loss out of a call, as in ``loss, parts = criterion(out, y)``.

    What is meant for a log is mostly detached there already.
    """
    return isinstance(value.node, cst.BaseElement) and not value.result_of


def _exclude_each_other(left: Backward, right: Store | Call) -> bool:
    arms = dict(left.arms)
    return any(arms.get(branch, arm) != arm for branch, arm in right.arms)


def always_meets(backward: Backward, store: Store | Call) -> bool:
    """Tell whether ``backward`` is called on every path on which the value is stored."""
    return store.arms[: len(backward.arms)] == backward.arms
