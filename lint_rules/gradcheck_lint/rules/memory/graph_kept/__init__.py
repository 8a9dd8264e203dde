"""GCS201: a loss that is kept with its graph from one iteration to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.callers import kept_by_caller
from gradcheck_lint.analyses.container_clearing import is_emptied
from gradcheck_lint.analyses.repeated_calls import (
    differentiated_later,
    is_training_step,
    kept_by_closure,
    kept_by_object,
    steps_for_others,
)
from gradcheck_lint.model.flow import Backward, Store
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.values import spent_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.memory.graph_kept.consumed_graph import spent_before
from gradcheck_lint.rules.memory.graph_kept.graph_proofs import (
    always_meets,
    makes_likely,
    proves_graph,
    records,
)
from gradcheck_lint.rules.memory.graph_kept.kept_by_callees import kept_by_callees
from gradcheck_lint.rules.memory.graph_kept.lifetime import consumes, escapes, is_let_go, keeps
from gradcheck_lint.rules.memory.graph_kept.messages import kept_by_store, kept_when_spent
from gradcheck_lint.rules.memory.graph_kept.stored_outputs import stored_outputs
from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GraphKept(Rule):
    """A loss is stored with its graph, which then lives as long as what it's stored in."""

    entry = catalogue.GRAPH_KEPT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every store of a value that ``backward()`` is called on in the same loop.

        And every output of a model that is stored with its graph and not differentiated.
        """
        yield from stored_outputs(function)
        is_near = function.module.near.has(function.scope, BACKWARD)
        if not is_near and not is_training_step(function):
            return
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        backwards.extend(differentiated_later(function))
        for store in events:
            if not isinstance(store, Store):
                continue
            if not store.loops:
                yield from _of_object(function, store, backwards)
                continue
            if (spent := spent_before(function, store)) is not None:
                is_kept = records(store, store.how) and keeps(store)
                if is_kept and not is_let_go(function, store):
                    yield kept_when_spent(function, store, spent)
                continue
            proofs = [
                backward
                for backward in backwards
                if proves_graph(backward, store, store.stored, store.how)
            ]
            certain = bool(proofs)
            if not proofs:
                proofs = makes_likely(function, backwards, store, store.stored, store.loop)
            if not proofs or not keeps(store) or is_let_go(function, store):
                continue
            if any(consumes(backward, store) for backward in backwards):
                continue
            if any(proof.retains_graph for proof in proofs) and escapes(function, store):
                continue
            yield kept_by_store(function, store, proofs, certain=certain)
        yield from kept_by_callees(function, backwards)


def _of_object(
    function: FunctionModel, store: Store, backwards: list[Backward]
) -> Iterator[Violation]:
    """Yield what a method that repeats keeps in its object."""
    spent = spent_by(store.stored)
    proofs = [
        backward
        for backward in backwards
        if not backward.retains_graph
        and proves_graph(backward, store, store.stored, store.how)
        and always_meets(backward, store)
    ]
    if (spent is None and not proofs) or not records(store, store.how):
        return
    is_kept = kept_by_object(function, store) or kept_by_closure(function, store)
    is_kept = (is_kept and not is_emptied(function, store)) or kept_by_caller(function, store)
    is_consumed = any(consumes(backward, store) for backward in backwards)
    if is_kept and not is_consumed:
        if spent is not None:
            yield kept_when_spent(function, store, spent)
        else:
            certain = not steps_for_others(function)
            yield kept_by_store(function, store, proofs, certain=certain)
