"""GCS301: a copy of the model computes the gradients, hands them on, and keeps them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import given_by_callers
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.analyses.repeated_calls import repeats, steps_for_others
from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.flow import Backward, Call, Step, ZeroGrad
from gradcheck_lint.model.syntax import assigned_once, boolean, dotted_name, small_statements, walk
from gradcheck_lint.model.values import Kind, all_are, held_by, sites

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["Handed", "never_cleared"]


class Handed(NamedTuple):
    """The gradients of ``model`` are given to other parameters, and nothing clears its own."""

    backward: Backward
    model: str
    node: cst.CSTNode
    step: Step


def never_cleared(function: FunctionModel) -> Iterator[Handed]:
    """Yield the models whose gradients another one's optimizer gets, and that keep them."""
    if not function.module.matches(_GRADIENT) or "step" not in function.scope.words:
        return
    events = list(function.events())
    for node, model in _handed_on(function, events):
        order = {id(each): place for place, each in enumerate(walk(function.scope.node))}
        place = order.get(id(node), 0)
        before = [e for e in events if isinstance(e, Backward) and order[id(e.node)] < place]
        after = [e for e in events if isinstance(e, Step) and order[id(e.node)] > place]
        if not before or not after or before[-1].partial:
            continue
        if _lasts(function, model, before[-1]) and not _may_be_cleared(function, model):
            yield Handed(before[-1], model, node, after[0])


_GRADIENT: Final = re.compile(rb"\.(?:_grad|grad)\s*=[^=\n]*\.grad")


def _handed_on(function: FunctionModel, events: list[Event]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield where gradients are handed on, here or in a function that is called, and of what."""
    for node in function.scope.nodes_with_lambdas:
        source = _source(node) if type(node) is cst.For else None
        if source is not None:
            yield node, source
    for event in events:
        if isinstance(event, Call) and event.function is not None and not event.referenced:
            for node in event.function.nodes:
                source = _source(node) if type(node) is cst.For else None
                given = None if source is None else _given(event, event.function, source)
                if given is not None:
                    yield event.node, given


def _given(call: Call, called: FunctionScope, parameter: str) -> str | None:
    if type(call.node) is not cst.Call:
        return None
    return dotted_name(argument_for(parameter, call.node, called))


def _source(loop: cst.For) -> str | None:
    """Return ``b`` of a loop over the parameters of ``a`` and ``b`` with ``p.grad = q.grad``."""
    over = loop.iter
    if type(over) is not cst.Call or dotted_name(over.func) != "zip":
        return None
    if type(loop.target) is not cst.Tuple or len(loop.target.elements) != len(over.args):
        return None
    models = {
        dotted_name(element.value): _whose(argument.value)
        for element, argument in zip(loop.target.elements, over.args, strict=True)
    }
    for statement in small_statements(loop.body):
        target, value = assigned_once(statement)
        if type(target) is cst.Attribute and target.attr.value in {"grad", "_grad"}:
            taken = _taken_from(value)
            if taken in models and taken != dotted_name(target.value):
                return models[taken]
    return None


def _taken_from(value: cst.BaseExpression | None) -> str | None:
    """Return ``p`` of ``p.grad`` and of ``p.grad.detach().float()``."""
    while type(value) is cst.Call and type(value.func) is cst.Attribute:
        value = value.func.value
    if type(value) is cst.Attribute and value.attr.value == "grad":
        return dotted_name(value.value)
    return None


def _whose(node: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()``."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    return dotted_name(node.func.value) if node.func.attr.value == "parameters" else None


def _lasts(function: FunctionModel, model: str, backward: Backward) -> bool:
    """Tell whether the model is the same one, with its gradients, when backward() comes again."""
    held = function.bindings.get(model, frozenset())
    owner, attribute = function.scope.owner, model.partition(".")[2]
    if attribute and (
        owner is None
        or any(
            assigns_attribute(method, attribute)
            for name, method in owner.methods.items()
            if name != "__init__"
        )
    ):
        return False
    if not (held or attribute) or any(value.loops for value in held):
        return False
    if backward.loops:
        return True
    if not repeats(function) and not steps_for_others(function):
        return False
    given = [value for _, values in given_by_callers(function, model) for value in values]
    return ("." in model or bool(given)) and not any(value.loops for value in given)


def _may_be_cleared(function: FunctionModel, model: str) -> bool:
    """Tell whether anything in the file clears other gradients than the optimizer's own."""
    own = sites(function.bindings.get(model, frozenset()))
    made = 0
    for known in function.module.functions():
        made += sum(map(function.module.makes_optimizer, known.scope.nodes_with_lambdas))
        handing = {
            id(inner)
            for node in known.scope.nodes_with_lambdas
            if type(node) is cst.For and _source(node) is not None
            for inner in walk(node)
        }
        for event in known.events():
            if not isinstance(event, ZeroGrad) or id(event.node) in handing:
                continue
            models = held_by(event.values) - sites(event.values)
            if not all_are(event.values, Kind.OPTIMIZER) or not event.clears:
                return True
            if known is function and (not models or not own.isdisjoint(models)):
                return True
            if type(event.node) is cst.Call and _keeps_tensors(event.node):
                return True
    return made > 1


def _keeps_tensors(call: cst.Call) -> bool:
    """Tell whether ``zero_grad`` may write zeros into tensors, which both models have."""
    return bool(call.args) and boolean(call.args[0].value) is not True
