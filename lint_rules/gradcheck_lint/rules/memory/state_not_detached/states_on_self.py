"""Find modules that keep a hidden state in an attribute, with its graph, from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradcheck_lint.analyses.callers import class_handed_in
from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.flow import Call, Forward, GradMode
from gradcheck_lint.model.values import Kind, Value, Values, held_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["KeptState", "state_kept_by"]


class KeptState(NamedTuple):
    """The call in a module's ``forward`` whose result the next call of it is given."""

    attribute: str
    node: cst.CSTNode
    receiver: str


def state_kept_by(function: FunctionModel, event: Forward) -> KeptState | None:
    """Return what a module of the file hands to its own next call, if the loop lets it."""
    scopes = function.module.scopes
    owner = _only_class(function, event.values) or class_handed_in(function, event.receiver)
    forward = None if owner is None else scopes.method(owner, "forward")
    if owner is None or forward is None:
        return None
    for kept in _kept_in(function.module.function(forward)):
        if not _is_renewed(function, event, kept.attribute, owner, forward):
            return kept
    return None


def _only_class(function: FunctionModel, models: Values) -> ClassScope | None:
    names = {value.name if value.kind is Kind.INSTANCE else None for value in models}
    only = names.pop() if len(names) == 1 else None
    return None if only is None else function.module.scopes.classes.get(only)


def _kept_in(forward: FunctionModel) -> Iterator[KeptState]:
    """Yield the attributes that a method hands to a layer and puts the layer's result into."""
    first = forward.scope.first_parameter
    for event in forward.events():
        if not isinstance(event, Forward) or event.arms or event.loops:
            continue
        if event.mode is GradMode.DISABLED:
            continue
        passed = {value.site for value in _one_by_one(event.passed)}
        for site in sorted(passed):
            own = forward.module.on_self(site)
            attribute = "" if own is None else own[1]
            bound = forward.bindings.get(f"{first}.{attribute}", frozenset())
            if bound and all(_is_result(value, event) for value in bound):
                yield KeptState(attribute, event.node, event.receiver)


def _one_by_one(passed: Iterable[Values]) -> Iterator[Value]:
    """Yield what a layer is given, the parts of a tuple like ``(self.h, self.c)`` one by one."""
    for values in passed:
        for value in values:
            yield value
            if value.kind is Kind.TUPLE:
                yield from _one_by_one(value.parts)


def _is_result(value: Value, event: Forward) -> bool:
    return (
        value.result_of == id(event.node)
        and value.kind is not Kind.PLAIN
        and (value.cut is None or value.certain)
    )


def _is_renewed(
    function: FunctionModel,
    event: Forward,
    attribute: str,
    owner: ClassScope,
    forward: FunctionScope,
) -> bool:
    """Tell whether something in the loop may detach the state, or begin anew."""
    if f"{event.receiver}.{attribute}" in function.bindings:
        return True
    renewing = {
        name
        for name, method in owner.methods.items()
        if method is not forward
        and not name.endswith("__init__")
        and (assigns_attribute(method, attribute) or "detach_" in method.words)
    }
    loop, models = event.loops[-1], held_by(event.values)
    for other in function.events():
        if not isinstance(other, Call) or loop not in other.loops or other.node is event.node:
            continue
        is_unknown = other.function is None and not other.harmless
        if other.method in renewing or (is_unknown and not models.isdisjoint(other.handed)):
            return True
    return False
