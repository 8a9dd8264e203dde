"""Find calls that hand a value with its graph to a function or a meter that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.container_clearing import is_emptied_anywhere
from gradcheck_lint.model.values import spent_by
from gradcheck_lint.rules.memory.graph_kept.containers import keepers
from gradcheck_lint.rules.memory.graph_kept.graph_proofs import (
    always_meets,
    makes_likely,
    proves_graph,
    records,
)
from gradcheck_lint.rules.memory.graph_kept.messages import kept_by_callee

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Backward
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules._rule import Violation
    from gradcheck_lint.rules.memory.graph_kept.containers import Keeper

__all__ = ["kept_by_callees"]


def kept_by_callees(function: FunctionModel, backwards: list[Backward]) -> Iterator[Violation]:
    """Yield the calls that hand a value with its graph to what keeps it."""
    for keeper in keepers(function):
        if (spent := spent_by(keeper.handed)) is not None:
            if records(keeper.call, keeper.store.how):
                certain = keeper.is_sure and not keeper.call.arms
                yield kept_by_callee(function, keeper, spent, certain=certain)
            continue
        kept = [
            backward
            for backward in backwards
            if proves_graph(backward, keeper.call, keeper.handed, keeper.store.how)
        ]
        is_proven = bool(kept)
        if not kept and keeper.call.loops and not _is_emptied(function, keeper):
            loop = keeper.call.loops[-1]
            kept = makes_likely(function, backwards, keeper.call, keeper.handed, loop)
        if kept and not any(proof.retains_graph for proof in kept):
            proof = next((known for known in kept if always_meets(known, keeper.call)), kept[0])
            certain = is_proven and keeper.is_sure and always_meets(proof, keeper.call)
            yield kept_by_callee(function, keeper, proof.node, certain=certain, proven=is_proven)


def _is_emptied(function: FunctionModel, keeper: Keeper) -> bool:
    """Tell whether another method of the file empties what a method of an object fills."""
    return is_emptied_anywhere(function.module, keeper.store.target, None)
