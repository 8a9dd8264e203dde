"""GCS406: a freeze pattern that takes more than meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.flow import Call, Event, Freeze, Jump, Step
from gradcheck_lint.model.paths import values_of_parameters
from gradcheck_lint.model.syntax import (
    boolean,
    bound_names,
    dotted_name,
    keyword,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, Value, all_are, held_by, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.frozen_parameter.decided_again import decided_again
from gradcheck_lint.rules.connectivity.frozen_parameter.left_frozen import left_frozen
from gradcheck_lint.rules.connectivity.frozen_parameter.tied_names import tied_names
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class FrozenParameter(Rule):
    """An optimizer trains frozen parameters, or a pattern freezes more than meant."""

    entry = catalogue.FROZEN_PARAMETER

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `name.startswith("layers.1")` that decides what is frozen."""
        yield from _all_frozen(function)
        if not function.module.mentions(b"requires_grad"):
            return
        yield from left_frozen(function)
        yield from decided_again(function)
        for tied in tied_names(function):
            yield Violation(
                tied.node,
                f"no parameter is called `{tied.lost}.weight` here: it is tied to "
                f"`{tied.kept}.weight`, and named_parameters() reports it by that name alone, so "
                f"a filter for `{tied.lost}` misses it",
                Severity.WARNING,
                f"name `{tied.kept}` as well, or give `{tied.lost}` a weight of its own first",
                ((tied.tie, "tied here"),),
            )
        if "startswith" not in function.scope.words:
            return
        for node in function.scope.nodes_of(cst.If):
            for inner in walk(node.test):
                pattern = _pattern(inner)
                if pattern is not None and _freezes(node.body):
                    yield Violation(
                        inner,
                        f"the pattern {pattern!r} ends in a number, so it also matches "
                        f"{pattern + '0'!r} and the like: more is frozen than it says",
                        Severity.WARNING,
                        f"end it with the dot: {pattern + '.'!r}",
                    )
                    break


def _all_frozen(function: FunctionModel) -> Iterator[Violation]:
    """Yield every optimizer of a whole model that was frozen before, where nothing is thawed."""
    if function.module.matches(_THAWS):
        return
    events = list(function.events())
    optimizers = [each for each in _stepped(function, events) if not each.loops]
    if not optimizers:
        return
    nodes = list(walk(function.scope.node))
    order = {id(node): place for place, node in enumerate(nodes)}
    for frozen in _frozen_models(function, events, nodes):
        start = order.get(id(frozen.node), len(order))
        if len(frozen.models) != 1 or _may_change(frozen, nodes[start + 1 :], events):
            continue
        for optimizer in optimizers:
            owned, node = _owned(optimizer.node), optimizer.node
            is_whole = optimizer.holds - {optimizer.site} == frozen.models
            if node is None or owned is None or not (is_whole or _of_layer(node)):
                continue
            if start < order.get(id(node), 0) and f"{owned}.".startswith(f"{frozen.name}."):
                yield _violation(frozen, node, owned)


class _Frozen(NamedTuple):
    """Where a model is frozen as a whole, its name there and its sites."""

    node: cst.CSTNode
    name: str
    models: frozenset[int]


def _violation(frozen: _Frozen, optimizer: cst.CSTNode, owned: str) -> Violation:
    return Violation(
        optimizer,
        f"the optimizer is given the parameters of `{owned}`, which are all frozen: its "
        "steps change nothing",
        Severity.WARNING,
        "put in the layers that are to be trained after freezing the others, or leave "
        "them out of it",
        ((frozen.node, "frozen here"),),
    )


def _frozen_models(
    function: FunctionModel, events: list[Event], nodes: list[cst.CSTNode]
) -> Iterator[_Frozen]:
    """Yield the models that a function freezes as a whole, or lets another one freeze."""
    for event in events:
        if event.arms:
            continue
        if isinstance(event, Freeze) and event.wanted is False:
            name = _frozen_as_a_whole(event, events, nodes)
            if name is not None:
                yield _Frozen(event.node, name, _models_of(event))
        elif isinstance(event, Call) and event.function is not None and not event.loops:
            yield from _frozen_by_callee(function, event)


def _frozen_by_callee(function: FunctionModel, call: Call) -> Iterator[_Frozen]:
    """Yield the models that are handed to ``freeze(model)`` and frozen as a whole there."""
    assert call.function is not None
    callee = function.module.function(call.function)
    if call.referenced:
        return
    if type(call.node) is not cst.Call or type(callee.scope.node) is not cst.FunctionDef:
        return
    events = list(callee.events())
    nodes = list(walk(callee.scope.node))
    given = values_of_parameters(call, callee)
    handed = [argument.value for argument in call.node.args]
    for event in events:
        if not isinstance(event, Freeze) or event.wanted is not False or event.arms:
            continue
        held = callee.bindings.get(_frozen_as_a_whole(event, events, nodes) or "", frozenset())
        for value in held if len(held) == 1 else ():
            models = sites(given.get(value.site, frozenset()))
            for name in filter(None, map(dotted_name, handed)):
                if models and sites(function.bindings.get(name, frozenset())) >= models:
                    yield _Frozen(call.node, name, models)


def _models_of(freeze: Freeze) -> frozenset[int]:
    """Return what is frozen: a model itself, or that whose parameters a loop goes through."""
    is_model = type(freeze.node) is cst.Call and not freeze.loops
    return sites(freeze.values) if is_model else held_by(freeze.values)


_THAWS: Final = re.compile(
    rb"\.requires_grad\s*=(?!=|\s*False\b)|requires_grad_(?!\(False\))|Parameter\(|setattr"
)


def _frozen_as_a_whole(freeze: Freeze, events: list[Event], nodes: list[cst.CSTNode]) -> str | None:
    """Return the name of the model that is frozen with everything in it."""
    if type(freeze.node) is cst.Call and not freeze.loops:
        func = freeze.node.func
        is_model = all_are(freeze.values, Kind.MODULE, Kind.INSTANCE, Kind.UNKNOWN)
        return dotted_name(func.value) if type(func) is cst.Attribute and is_model else None
    if len(freeze.loops) != 1 or any(
        isinstance(event, Jump) and event.loops == freeze.loops for event in events
    ):
        return None
    loop = next((node for node in nodes if id(node) == freeze.loops[0]), None)
    return _whose_parameters(loop.iter) if type(loop) is cst.For else None


def _whose_parameters(node: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()``."""
    if type(node) is not cst.Call or node.args or type(node.func) is not cst.Attribute:
        return None
    if node.func.attr.value not in {"parameters", "named_parameters"}:
        return None
    return dotted_name(node.func.value)


def _may_change(frozen: _Frozen, later: list[cst.CSTNode], events: list[Event]) -> bool:
    """Tell whether a model may get other layers, or be thawed, by what comes afterwards."""
    nodes = set(map(id, later))
    if any(
        isinstance(event, Call)
        and not event.harmless
        and not frozen.models.isdisjoint(event.handed | event.on)
        and id(event.node) in nodes
        for event in events
    ):
        return True
    targets = (node.target for node in later if isinstance(node, (cst.AssignTarget, cst.AnnAssign)))
    return any(
        f"{known}.".startswith(f"{frozen.name}.") for target in targets for known in _paths(target)
    )


def _paths(target: cst.BaseExpression) -> list[str]:
    while type(target) is cst.Subscript:
        target = target.value
    return list(bound_names(target))


def _stepped(function: FunctionModel, events: list[Event]) -> Iterator[Value]:
    """Yield every optimizer that makes steps here, is handed on in the file, or kept in `self`."""
    used: set[int] = set()
    itself = f"{function.scope.first_parameter}."
    if function.scope.owner is not None:
        for name, values in function.bindings.items():
            if name.startswith(itself) and not _is_replaced(function, last_word(name)):
                used |= sites(values)
    for event in events:
        if isinstance(event, Step):
            used |= sites(event.values)
        elif isinstance(event, Call) and event.function is not None:
            used |= event.handed
    for values in function.bindings.values():
        for value in values:
            if value.kind is Kind.OPTIMIZER and value.site in used:
                used.discard(value.site)
                yield value


def _is_replaced(function: FunctionModel, attribute: str) -> bool:
    """Tell whether another function of the file assigns to an attribute as well."""
    return any(
        scope is not function.scope and assigns_attribute(scope, attribute)
        for scope in function.module.scopes.functions
    )


def _owned(node: cst.CSTNode | None) -> str | None:
    """Return ``model`` or ``model.head`` of an optimizer of its ``parameters()``."""
    if type(node) is not cst.Call:
        return None
    handed = positional(node)
    owned = handed[0] if handed else keyword(node, "params")
    return None if owned is None else _whose_parameters(owned)


def _of_layer(node: cst.CSTNode | None) -> bool:
    """Tell whether an optimizer is made for a part of a model."""
    return "." in (_owned(node) or "")


_ENDS_IN_NUMBER = re.compile(r"\.\d+$")


def _freezes(body: cst.BaseSuite) -> bool:
    for node in walk(body):
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            handed = positional(node)
            if node.func.attr.value == "requires_grad_" and handed and boolean(handed[0]) is False:
                return True
        if type(node) is cst.Assign and boolean(node.value) is False:
            target = node.targets[0].target
            if type(target) is cst.Attribute and target.attr.value == "requires_grad":
                return True
    return False


def _pattern(node: cst.CSTNode) -> str | None:
    """Return the first pattern of ``startswith`` that ends in a number."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    if node.func.attr.value != "startswith":
        return None
    for inner in walk(node):
        if type(inner) is cst.SimpleString:
            text = inner.evaluated_value
            if isinstance(text, str) and _ENDS_IN_NUMBER.search(text):
                return text
    return None
