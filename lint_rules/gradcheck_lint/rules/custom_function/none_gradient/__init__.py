"""GCS508: a gradient that backward does not return, or one that it does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    elements_of,
    function_with,
    names_in,
    returns,
)
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    assigned_pairs,
    bound_names,
    dotted_name,
    is_none,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.none_gradient.needed_gradients import Guard, guards_in
from gradcheck_lint.rules.custom_function.none_gradient.unread_gradients import unread_gradients
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope


class NoneGradient(Rule):
    """A parameter gets None, an index guards another gradient, or an output's is not read."""

    entry = catalogue.NONE_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every guard whose index is not that of the gradient it guards."""
        known = function_with(function, "backward", "vjp")
        if known is None:
            return
        yield from unread_gradients(function, known)
        if known.inputs is None:
            return
        places = _places(function)
        for guard in guards_in(function.scope):
            if guard.index >= len(known.inputs):
                continue
            guarded = {places[name] for name in guard.names if name in places} | guard.places
            if guard.index in guarded:
                yield from _guarded_with_another(function, guard, places)
            if len(guarded) != 1 or guard.index in guarded:
                continue
            (place,) = guarded
            yield Violation(
                guard.test,
                f"needs_input_grad[{guard.index}] asks about input {guard.index} of forward, but "
                f"guards the gradient that is returned for input {place}",
                Severity.ERROR,
                f"ask `ctx.needs_input_grad[{place}]`",
            )
        yield from _lost(function, places)
        yield from _refused(function, known)


def _guarded_with_another(
    function: FunctionModel, guard: Guard, places: dict[str, int]
) -> Iterator[Violation]:
    """Yield a gradient that is computed only if another input needs one."""
    elsewhere = _given_outside(function, guard)
    lost = sorted((places[name], name) for name in guard.names - elsewhere if name in places)
    for place, name in lost:
        if place != guard.index:
            yield Violation(
                guard.test,
                f"`{name}`, the gradient of input {place} of forward, is computed only if input "
                f"{guard.index} needs one: it is None where input {place} alone needs one, as "
                "behind data or a frozen layer",
                Severity.WARNING,
                f"ask `ctx.needs_input_grad[{place}]` as well",
            )
            return


def _given_outside(function: FunctionModel, guard: Guard) -> frozenset[str]:
    """Return the names that get anything but None outside of what a guard guards."""
    inside = {
        id(each)
        for node in function.scope.nodes_of(cst.If)
        if node.test is guard.test
        for each in walk(node.body)
    }
    return frozenset(
        name
        for node in function.scope.nodes
        if id(node) not in inside
        for target, value in _given_to(node)
        if not is_none(value)
        for name in bound_names(target)
    )


def _given_to(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield each target of an assignment, augmented or not, and what it is given."""
    if type(node) is cst.Assign and len(node.targets) > 1:
        yield from ((target.target, node.value) for target in node.targets)
    elif type(node) is cst.AugAssign:
        yield node.target, node.value
    else:
        yield from assigned_pairs(node)


def _places(function: FunctionModel) -> dict[str, int]:
    """Return at which place each name is returned, where all returns agree."""
    places: dict[str, int] = {}
    clashes: set[str] = set()
    for node in returns(function.scope):
        for place, element in enumerate(elements_of(node.value)):
            if type(element) is not cst.Name:
                continue
            if places.setdefault(element.value, place) != place:
                clashes.add(element.value)
    return {name: place for name, place in places.items() if name not in clashes}


def _lost(function: FunctionModel, places: dict[str, int]) -> Iterator[Violation]:
    """Yield gradients that are computed where they are asked for, and then not returned."""
    ways = [elements_of(node.value) for node in returns(function.scope)]
    used = {name for node in returns(function.scope) for name in names_in(node)}
    for guard in guards_in(function.scope) if ways else ():
        index, computed = guard.index, guard.names
        if len(computed) != 1 or computed & (used | places.keys()):
            continue
        if all(index < len(way) and is_none(way[index]) for way in ways):
            (name,) = computed
            yield Violation(
                guard.test,
                f"`{name}` is computed because input {index} needs a gradient, but backward "
                f"returns None for it",
                Severity.ERROR,
                f"return `{name}` at place {index}",
            )


def _refused(function: FunctionModel, known: AutogradFunction) -> Iterator[Violation]:
    """Yield inputs that always get None although the file hands a parameter to them alone."""
    ways = [elements_of(node.value) for node in returns(function.scope)]
    assert known.inputs is not None
    if not ways or any(len(way) != len(known.inputs) for way in ways):
        return
    refused = [
        place for place in range(len(known.inputs)) if all(is_none(way[place]) for way in ways)
    ]
    names = _names_of_apply(known) if refused else frozenset()
    for scope in function.module.scopes.functions if refused else ():
        if scope.owner is None:
            continue
        for node in scope.nodes_of(cst.Call):
            if dotted_name(node.func) not in names:
                continue
            handed = positional(node)
            beside = {dotted_name(each) for i, each in enumerate(handed) if i not in refused}
            for place in refused:
                if len(handed) != len(node.args) or len(handed) <= place:
                    continue
                attribute = handed[place]
                if _is_parameter_used_once(attribute, beside, scope, function):
                    yield Violation(
                        ways[0][place],
                        f"backward returns None for input {place} of forward, and "
                        f"`{dotted_name(attribute)}` is a parameter that goes nowhere else: it is "
                        "never trained",
                        Severity.WARNING,
                        f"return the gradient of `{known.inputs[place].name}` at place {place}",
                        ((node, "the parameter is handed to it here"),),
                    )
                    return


def _is_parameter_used_once(
    node: cst.BaseExpression,
    beside: Collection[str | None],
    scope: FunctionScope,
    function: FunctionModel,
) -> bool:
    """Tell whether this is a parameter on ``self`` that nothing else is computed of.

    ``beside`` are the arguments next to it that get a gradient.
    """
    path, owner = dotted_name(node) or "", scope.owner
    first, dot, attribute = path.partition(".")
    if owner is None or not dot or "." in attribute or first != scope.first_parameter:
        return False
    module = function.module
    if not module.scopes.derives_from(owner, "torch.nn."):
        return False
    if not all_are(module.class_attribute(owner.name, attribute), Kind.LEAF):
        # Of a layer of torch: who quantizes weights may never train them, nor the bias then.
        is_layer = any(module.scopes.derives_from(owner, name) for name in _LAYERS)
        if attribute != "bias" or f"{first}.weight" not in beside or not is_layer:
            return False
        if module.may_freeze:
            return False
    named = [other for other in module.nodes_of(cst.Attribute) if other.attr.value == attribute]
    quiet = {id(node), *map(id, _assigned_or_compared(module, attribute))}
    return all(id(other) in quiet for other in named)


_LAYERS: Final = ("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d")


def _assigned_or_compared(module: ModuleModel, attribute: str) -> Iterator[cst.CSTNode]:
    """Yield where an attribute is set, handed on to one of its name, or compared with None."""
    for node in walk(module.tree):
        if isinstance(node, (cst.AssignTarget, cst.AnnAssign)):
            yield node.target
        elif type(node) is cst.Comparison and is_none(node.comparisons[0].comparator):
            yield node.left
        for target, value in assigned_pairs(node):
            if last_word(dotted_name(target)) == attribute:
                yield value


def _names_of_apply(known: AutogradFunction) -> frozenset[str | None]:
    """Return ``Fn.apply`` and the names that the file gives it, and nothing else."""
    apply = f"{known.name}.apply"
    given: dict[str, set[str | None]] = {}
    for node in walk(known.module.tree):
        if type(node) in ASSIGNING:
            target, value = assigned_once(node)
            if (name := dotted_name(target)) is not None:
                given.setdefault(name, set()).add(dotted_name(value))
    return frozenset({apply, *(name for name, values in given.items() if values == {apply})})
