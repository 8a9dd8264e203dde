"""Read ``backward()`` and ``step()``, and tell optimizers from other things that step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.arguments import Arguments, method_of, only_function, record_call
from gradcheck_lint.model.flow import Backward, Proof, Step
from gradcheck_lint.model.syntax import boolean, dotted_name, has_star, is_none, keyword, positional
from gradcheck_lint.model.values import Kind, Origin, Values, all_are

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading

_OPTIMIZER_NAME = re.compile(r"optim(?!.*sched)|(?:^|_)opt(?:$|_|\d)")


def read_backward(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``backward()`` on a tensor; None for somebody else's method of this name."""
    if method_of(reading, receiver, "backward") is not None:
        return None
    ordered = positional(node)
    if ordered and not _is_cotangent(reading, ordered[0], arguments):
        # `engine.backward(loss)`: somebody else's backward, with rules of its own.
        return None
    reading.recorder.event(
        Backward,
        node,
        reading.state.mode,
        values=receiver,
        retains_graph=retains_graph(node),
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _is_cotangent(reading: Reading, node: cst.BaseExpression, arguments: Arguments) -> bool:
    if is_none(node):
        return True
    if isinstance(node, cst.Call) and (reading.qualified(dotted_name(node.func)) or "").startswith(
        "torch."
    ):
        return True
    return all_are(arguments.positional[0], Kind.PLAIN, Kind.GRADIENT)


def retains_graph(node: cst.Call) -> bool:
    """Tell whether a call of backward may ask for the graph to be kept."""
    wanted = [keyword(node, "retain_graph"), keyword(node, "create_graph")]
    return has_star(node) or any(
        value is not None and boolean(value) is not False and not is_none(value) for value in wanted
    )


def read_step(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record the step of an optimizer; None for whatever else has a method of this name."""
    assert isinstance(node.func, cst.Attribute)
    target: cst.BaseExpression = node.func.value
    values = receiver
    handed = positional(node)
    if handed and _proof(target, receiver) is None:
        # `scaler.step(optimizer)`: the optimizer is the argument.
        target, values, handed = handed[0], arguments.positional[0], []
    proof = _proof(target, values)
    closure = handed[0] if handed else keyword(node, "closure")
    if proof is None:
        return None
    own_step = method_of(reading, values, "step")
    if own_step is not None:
        record_call(reading, node, arguments, function=own_step, method="step")
    if closure is not None and not is_none(closure):
        known = arguments.positional[0] if handed else arguments.keywords["closure"]
        if only_function(known) is None:
            # A closure or a context that can't be looked into may zero the gradients itself.
            return None
    reading.recorder.event(
        Step,
        node,
        reading.state.mode,
        receiver=dotted_name(target),
        values=values,
        proof=proof,
    )
    reading.recorder.holders.update(value.site for value in values)
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _proof(target: cst.BaseExpression, values: Values) -> Proof | None:
    """Return how sure it is that ``target`` is an optimizer; None if nothing says so."""
    if all_are(values, Kind.OPTIMIZER):
        return Proof.PROVEN
    kinds = {value.kind for value in values}
    last = (dotted_name(target) or "").rpartition(".")[2]
    if kinds - {Kind.UNKNOWN, Kind.OPTIMIZER} or not _OPTIMIZER_NAME.search(last.lower()):
        return None
    open_origins = {Origin.ARGUMENT, Origin.ATTRIBUTE, Origin.ELEMENT}
    if all(value.kind is Kind.OPTIMIZER or value.origin in open_origins for value in values):
        return Proof.NAMED
    return Proof.OPAQUE
