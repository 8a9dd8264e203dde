"""Show that a value has a graph: from the calls of backward() in the same loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import GradMode, StoreKind
from gradcheck_lint.model.values import Kind, Value, Values, implied_by_all, through_all

if TYPE_CHECKING:
    from gradcheck_lint.model.flow import Backward, Call, Store

_WITH_GRAPH = frozenset({Kind.UNKNOWN, Kind.HISTORY})


def proves_graph(backward: Backward, at: Store | Call, kept: Values, how: StoreKind) -> bool:
    """Tell whether ``backward`` is called, in one loop with ``at``, on what is kept there."""
    apart = (backward.loops or at.loops) and not set(backward.loops) & set(at.loops)
    if apart or _exclude_each_other(backward, at):
        return False
    if how is StoreKind.ACCUMULATE and at.mode in {GradMode.DISABLED, GradMode.UNKNOWN}:
        return False
    proven = frozenset[int]().union(*(value.implies for value in backward.values))
    proven |= implied_by_all(backward.values)
    return bool(kept) and all(value.carries & proven for value in kept)


def shares_forward(backward: Backward, store: Store) -> bool:
    """Tell whether what is kept comes from the forward that ``backward`` goes through.

    It has a graph then, unless the loss has its own from elsewhere.
    """
    if store.loop not in backward.loops or _exclude_each_other(backward, store):
        return False
    if store.mode in {GradMode.DISABLED, GradMode.UNKNOWN}:
        return False
    return _all_share(store.stored, through_all(backward.values))


def _all_share(kept: Values, forwards: frozenset[int]) -> bool:
    return bool(kept) and all(_shares(value, forwards) for value in kept)


def _shares(value: Value, forwards: frozenset[int]) -> bool:
    """Tell whether a value, or one in a tuple or dictionary, comes from one of these forwards."""
    if value.cut is not None or _is_beside_loss(value):
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
