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
    if store.loops[-1] not in backward.loops or _exclude_each_other(backward, store):
        return False
    forwards = through_all(backward.values)
    return (
        store.mode not in {GradMode.DISABLED, GradMode.UNKNOWN}
        and bool(store.stored)
        and all(
            value.cut is None
            and value.kind in _WITH_GRAPH
            and value.through & forwards
            and not _is_beside_loss(value)
            for value in store.stored
        )
    )


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
