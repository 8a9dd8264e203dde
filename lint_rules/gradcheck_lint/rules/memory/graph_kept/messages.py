"""Say that a graph is kept, by a store or by a callee that stores, and detach what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Call, StoreKind
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Fix, Replacement, Violation
from gradcheck_lint.rules.memory.graph_kept.graph_proofs import always_meets
from gradcheck_lint.rules.memory.graph_kept.lifetime import is_known_container
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_lint.model.flow import Backward, Store
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.memory.graph_kept.containers import Keeper


def kept_by_store(
    function: FunctionModel, store: Store, proofs: list[Backward], *, certain: bool
) -> Violation:
    """Say that a store keeps the graph; ``certain`` if backward() is called on what it keeps."""
    proof = next((known for known in proofs if always_meets(known, store)), proofs[0])
    met = "backward() is called on it here" if certain else "backward() goes through its model here"
    if type(proof.node) is cst.Return:
        met = "the engine calls backward() on what is returned here"
    is_error = certain and always_meets(proof, store) and is_known_container(store)
    is_safe = is_error and _is_unread_until_freed(function, store, proof)
    fix = _detached(function, store, safe=is_safe) if certain else None
    return _kept(function, store, (proof.node, met), fix, is_error=is_error)


def kept_when_spent(function: FunctionModel, store: Store, backward: cst.CSTNode) -> Violation:
    """Say that a store keeps the graph of what a called function has called backward() on."""
    is_error = is_known_container(store)
    met = "the called function calls backward() on it here"
    fix = _detached(function, store, safe=is_error)
    return _kept(function, store, (backward, met), fix, is_error=is_error)


def _kept(
    function: FunctionModel,
    store: Store,
    proof: tuple[cst.CSTNode, str],
    fix: Fix | None,
    *,
    is_error: bool,
) -> Violation:
    module = function.module
    what = source_of(module, store.stored_node) if store.stored_node is not None else "the value"
    if store.how is StoreKind.ACCUMULATE:
        target = f"`{store.target}`" if store.target else "this"
        message = (
            f"{target} adds up `{what}` with its graph, so the graphs of all "
            "iterations stay in memory as long as the sum does"
        )
    else:
        target = f"`{store.target}`" if store.target else "this comprehension"
        message = (
            f"{target} keeps `{what}` with its graph, so the graphs of all "
            "iterations stay in memory as long as it does"
        )
    hint = "keep the number alone: `.item()`, or `.detach()` to stay on the device"
    if what.isidentifier():
        hint = f"keep the number alone: `{what}.item()`, or `{what}.detach()` to stay a tensor"
    return Violation(
        store.node,
        message,
        Severity.ERROR if is_error else Severity.WARNING,
        hint,
        ((proof[0], f"it has a graph: {proof[1]}"),),
        fix=fix,
    )


def kept_by_callee(
    function: FunctionModel,
    keeper: Keeper,
    backward: cst.CSTNode,
    *,
    certain: bool,
    proven: bool = True,
) -> Violation:
    """Say that a call hands a value to a function or method that keeps it with its graph."""
    met = "is called on it" if proven else "goes through its model"
    call = keeper.call.node
    given = call.args if type(call) is cst.Call else ()
    value = next(
        (
            argument.value
            for position, argument in enumerate(given)
            if keeper.argument in {position, argument.keyword and argument.keyword.value}
        ),
        None,
    )
    what = source_of(function.module, value) if value is not None else "the value"
    verb = "adds" if keeper.store.how is StoreKind.ACCUMULATE else "puts"
    hint = "hand over the number alone: `.item()`, or `.detach()` to stay on the device"
    if what.isidentifier():
        hint = f"hand over the number alone: `{what}.item()`, or `{what}.detach()`"
    return Violation(
        call,
        f"this call {verb} `{what}` with its graph into `{keeper.store.target}`, so the graphs "
        "of all iterations stay in memory as long as that does",
        Severity.ERROR if certain else Severity.WARNING,
        hint,
        (
            (keeper.store.node, "it is kept here"),
            (backward, f"it has a graph: backward() {met} here"),
        ),
    )


def output_kept(
    function: FunctionModel,
    node: cst.CSTNode,
    value: cst.CSTNode | None,
    store: Store,
    forwards: list[cst.CSTNode],
) -> Violation:
    """Say that what a model returned is stored with its graph, beside a training elsewhere."""
    what = source_of(function.module, value) if value is not None else "an output of the model"
    return Violation(
        node,
        f"`{store.target}` keeps {f'`{what}`' if value is not None else what} with its graph, "
        "which nothing in this function differentiates, and nothing in this file takes it out: "
        "the graphs stay in memory as long as it does",
        Severity.WARNING,
        "store it detached: `.detach()`, or compute it under `torch.no_grad()`",
        (
            *(((store.node, "it is kept here"),) if store.node is not node else ()),
            (forwards[0], "it has a graph: the model is called with recording here"),
        ),
    )


def _is_unread_until_freed(function: FunctionModel, store: Store, proof: Backward) -> bool:
    """Tell whether nothing can differentiate what is kept before backward() frees its graph."""
    if proof.retains_graph:
        return False
    nodes = list(walk(function.scope.node))
    places = {id(node): place for place, node in enumerate(nodes)}
    start = _end(store.node, places)
    between = range(start, max(start, _end(proof.node, places)))
    name = store.target.partition("[")[0]
    last = name.rpartition(".")[2]
    if any(_is_named(nodes[place], last) for place in between):
        return False
    # What is no variable of this function's own can be read by those that it calls.
    is_own = name == last and name in function.bindings
    return is_own or not any(
        places.get(id(event.node)) in between
        for event in function.events()
        if isinstance(event, Call) and event.function is not None
    )


def _end(node: cst.CSTNode, places: Mapping[int, int]) -> int:
    return max(places.get(id(inner), 0) for inner in walk(node)) + 1


def _is_named(node: cst.CSTNode, name: str) -> bool:
    return type(node) is cst.Name and node.value == name


_TENSOR_NODES = (cst.Name, cst.Attribute, cst.BinaryOperation, cst.UnaryOperation, cst.Call)


def _detached(function: FunctionModel, store: Store, *, safe: bool) -> Fix | None:
    """Detach what is kept, unless it is a tuple or the like, or is taken from one.

    What is surely a tensor whose graph backward() has freed can be differentiated by nobody.
    """
    node = store.stored_node
    if not isinstance(node, _TENSOR_NODES):
        return None
    if any(value.kind in {Kind.CONTAINER, Kind.TUPLE} for value in store.stored):
        return None
    starts = store.beginning.starts
    if any(dotted_name(start) is None or not start.deep_equals(node) for start in starts):
        return None  # what the sum begins with would keep its graph
    text = function.module.code(node)
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not node.lpar:
        text = f"({text})"
    edits = [Replacement(each, f"{text}.detach()") for each in (*starts, node)]
    return Fix(tuple(edits), f"Detach {text}", safe=safe)
