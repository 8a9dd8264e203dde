"""Read a comprehension that runs functions of the file as the loop that it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Block, Loop, Store, StoreKind
from gradcheck_lint.model.statement_forms import is_loader, runs_once
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk
from gradcheck_lint.model.values import Kind, spent_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.values import Values

DRAINING: Final = frozenset({"sum", "list", "tuple", "sorted", "set", "dict"})
"""What runs a generator to its end before anything else happens."""


def running(reading: Reading, node: cst.BaseComp) -> StoreKind | None:
    """Return how a comprehension keeps what functions of this file return for each element.

    None if it calls none, and for a generator that may be run bit by bit, between other things.
    """
    how = StoreKind.APPEND
    if type(node) is cst.GeneratorExp:
        by = reading.drained_by
        if by is None or by.args[0].value is not node:
            return None
        if dotted_name(by.func) == "sum":
            how = StoreKind.ACCUMULATE
    own, classes = reading.scopes.by_name, reading.scopes.classes
    for inner in walk(_element(node)):
        if type(inner) is cst.Call:
            func = inner.func
            name = func.attr if type(func) is cst.Attribute else func
            if type(name) is cst.Name and name.value in own and name.value not in classes:
                return how
    return None


def _element(node: cst.BaseComp) -> cst.BaseExpression:
    if type(node) is cst.DictComp:
        return node.value
    assert isinstance(node, cst.BaseSimpleComp)
    return node.elt


@contextmanager
def repeating(reading: Reading, node: cst.BaseComp) -> Iterator[None]:
    """Record what happens for each element as the body of a loop."""
    recorder = reading.recorder
    block, loops = recorder.block, recorder.loops
    body = recorder.block = Block()
    recorder.loops = (*loops, id(node))
    try:
        yield
    finally:
        recorder.block, recorder.loops = block, loops
    first = node.for_in
    names = set(bound_names(first.target))
    inner = first.inner_for_in
    while inner is not None:
        names.update(bound_names(inner.target))
        inner = inner.inner_for_in
    is_single = first.inner_for_in is None and runs_once(first)
    block.items.append(
        Loop(id(node), node, body, Block(), frozenset(names), is_single, recorder.arms)
    )


def note_kept(reading: Reading, node: cst.BaseComp, values: Values, how: StoreKind) -> None:
    """Record that a comprehension keeps the results of a function that differentiates them.

    Only those for all of the data are many: `[step(critic) for critic in critics]` keeps a few.
    """
    if spent_by(values) is None or not is_loader(node.for_in.iter):
        return
    recorder, stored = reading.recorder, _element(node)
    whole = recorder.value(Kind.CONTAINER, node, loops=recorder.loops[:-1])
    recorder.event(
        Store,
        stored,
        reading.state.mode,
        how=how,
        target_values=frozenset({whole}),
        stored=values,
        stored_node=stored,
    )
