"""Tell whether what a value is stored in outlives the iteration, and who uses it later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.container_clearing import is_emptied
from gradcheck_lint.model.flow import Call, Return, StoreKind
from gradcheck_lint.model.values import Kind, Origin, Values, mentioned_by, sites

if TYPE_CHECKING:
    from gradcheck_lint.model.flow import Backward, Store
    from gradcheck_lint.model.module import FunctionModel


def keeps(store: Store) -> bool:
    """Tell whether what it's stored in surely outlives the iteration."""
    if not store.target_values:
        return False
    own = sites(store.target_values)
    begun = store.beginning.sites
    for value in store.target_values:
        if value.site in begun:
            continue
        if value.origin is Origin.BOUNDED or value.kind in {Kind.OPTIMIZER, Kind.MODULE}:
            return False
        if value.kind is Kind.INSTANCE:
            return False
        if store.loop in value.loops and not _continues(value.mentions, own, value.site):
            return False
    return any(store.loop not in value.loops for value in store.target_values)


def is_known_container(store: Store) -> bool:
    """Tell whether it is surely a sum or a container, not what another file made."""
    if store.how is StoreKind.ACCUMULATE:
        return True
    return all(value.kind is Kind.CONTAINER for value in store.target_values)


def is_let_go(function: FunctionModel, store: Store) -> bool:
    """Tell whether what it's stored in is of this iteration, or is emptied as often."""
    return _is_of_this_iteration(function, store) or is_emptied(function, store)


def _is_of_this_iteration(function: FunctionModel, store: Store) -> bool:
    """Tell whether the loop itself makes the object whose attribute it's stored in."""
    root, _, attribute = store.target.partition(".")
    return bool(attribute) and any(
        store.loop in value.loops for value in function.bindings.get(root, ())
    )


def _continues(mentions: frozenset[int], own: frozenset[int], site: int) -> bool:
    """Tell whether a value made in the loop is the sum so far, with one more term."""
    return site in mentions or bool(mentions & (own - {site}))


def consumes(backward: Backward, store: Store) -> bool:
    """Tell whether backward may be called on the container or sum itself."""
    return bool(mentioned_by(backward.values) & _sites_of_sum(store.target_values, store))


def _sites_of_sum(values: Values, store: Store) -> frozenset[int]:
    return (sites(values) - store.beginning.sites) | {id(store.node)}


def escapes(function: FunctionModel, store: Store) -> bool:
    """Tell whether the container or sum is handed to a call or returned."""
    wanted = _sites_of_sum(store.target_values, store)
    for event in function.events():
        if isinstance(event, Call) and event.mentions & wanted:
            return True
        if isinstance(event, Return) and mentioned_by(event.values) & wanted:
            return True
    return False
