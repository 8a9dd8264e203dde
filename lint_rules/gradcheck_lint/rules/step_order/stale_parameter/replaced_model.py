"""Find models that another one takes the place of after their optimizer was made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Backward, Step
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    bound_names,
    dotted_name,
    first_word,
    last_word,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["Replaced", "new_models", "replaced_models"]


class Replaced(NamedTuple):
    """Where a name is given another model, and the step whose optimizer has the old parameters."""

    node: cst.CSTNode
    model: str
    step: Step


def replaced_models(
    function: FunctionModel, nodes: Sequence[cst.CSTNode], order: dict[int, int]
) -> Iterator[Replaced]:
    """Yield the assignments of a new model between the making of an optimizer and its step.

    A backward has to come after it, and no other optimizer or group that is made of the new one.
    """
    for node, path in new_models(function, nodes):
        step = _step_after(function, node, path, order)
        if step is not None and not _is_handed_on(nodes, order[id(node)], function, order):
            yield Replaced(node, path, step)


def new_models(
    function: FunctionModel, nodes: Sequence[cst.CSTNode]
) -> list[tuple[cst.CSTNode, str]]:
    """Return what makes a model anew that has given its parameters before, and the model's name."""
    found: list[tuple[cst.CSTNode, str]] = []
    owned: set[str] = set()
    for node in nodes:
        kind = type(node)
        if kind is cst.Attribute:
            if node.attr.value in _PARAMETERS:  # type: ignore[attr-defined]
                owned.add(dotted_name(node.value) or "")  # type: ignore[attr-defined]
        elif kind in ASSIGNING and owned:
            target, value = assigned_once(node)
            path = dotted_name(target)
            if path not in owned or value is None:
                continue
            if _is_new_model(value, path, function) or _is_loaded(value, path, nodes):
                found.append((node, path))
    return found


_PARAMETERS: Final = frozenset({"parameters", "named_parameters"})


def _step_after(
    function: FunctionModel, node: cst.CSTNode, path: str, order: dict[int, int]
) -> Step | None:
    """Return a step of an optimizer of the old model, after a backward through the new one."""
    place = order[id(node)]
    events = [event for event in function.events() if order.get(id(event.node), 0) > place]
    runs = {id(event.node) for event in events if _is_named(event, path)}
    reached = [
        event
        for event in events
        if isinstance(event, Backward)
        and any(not value.through.isdisjoint(runs) for value in event.values)
    ]
    for step in events if reached else ():
        if not isinstance(step, Step) or not all_are(step.values, Kind.OPTIMIZER):
            continue
        if all(
            order.get(id(value.node), place) < place
            and _owns(value.node, path)
            and _is_around(function, value.node, node)
            for value in step.values
        ):
            return step
    return None


def _is_named(event: object, path: str) -> bool:
    return getattr(event, "receiver", None) == path


def _owns(made: cst.CSTNode | None, path: str) -> bool:
    """Tell whether an optimizer is made of the parameters of a model of this name."""
    return type(made) is cst.Call and any(
        dotted_name(node) in {f"{path}.parameters", f"{path}.named_parameters"}
        for node in walk(made)
        if type(node) is cst.Attribute
    )


def _is_around(function: FunctionModel, made: cst.CSTNode | None, later: cst.CSTNode) -> bool:
    """Tell whether the innermost block of one statement has another in it, too."""
    around: cst.CSTNode = function.scope.node
    for block in walk(function.scope.node):
        if isinstance(block, cst.BaseSuite) and any(node is made for node in walk(block)):
            around = block
    return any(node is later for node in walk(around))


def _is_handed_on(
    nodes: Sequence[cst.CSTNode], place: int, function: FunctionModel, order: dict[int, int]
) -> bool:
    """Tell whether an optimizer is given parameters after a place, or a group is."""
    return any(_gives_parameters(node, function) for node in nodes if order[id(node)] > place)


def _gives_parameters(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether a node may make an optimizer, or give one other parameters."""
    kind = type(node)  # isinstance() is slow for abstract classes
    if kind is cst.Attribute:
        return bool(node.attr.value == "param_groups")  # type: ignore[attr-defined]
    if kind is not cst.Call:
        return False
    assert type(node) is cst.Call
    name = dotted_name(node.func) or ""
    return (
        function.module.makes_optimizer(node)
        or last_word(name) in _HANDING_ON
        or _OPTIMIZER.search(name) is not None
    )


_HANDING_ON: Final = frozenset({"add_param_group", "prepare", "setup", "initialize"})
_OPTIMIZER: Final = re.compile(r"(?i)(?:make|get|build|create|config\w*|set\w*|reset)_?\w*optim")


def _is_new_model(value: cst.BaseExpression, path: str, function: FunctionModel) -> bool:
    """Tell whether an expression makes a model that isn't made of the old one."""
    value = _unmoved(value)
    if type(value) is not cst.Call:
        return False
    scopes = function.module.scopes
    name = dotted_name(value.func) or ""
    whole = scopes.resolve_import(name) or name
    if whole in _LOADING or last_word(name) == "from_pretrained":
        return True
    if any(dotted_name(node) == path for argument in value.args for node in walk(argument)):
        return False
    is_layer = whole.startswith("torch.nn.") and last_word(whole)[:1].isupper()
    owner = scopes.classes.get(name)
    return is_layer or (owner is not None and scopes.derives_from(owner, "torch.nn."))


def _unmoved(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return what makes the model of ``Net().to(device)``."""
    while (
        type(value) is cst.Call
        and type(value.func) is cst.Attribute
        and value.func.attr.value in _SAME
    ):
        value = value.func.value
    return value


def _is_loaded(value: cst.BaseExpression, path: str, nodes: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a function or object that was never given a model loads or builds another."""
    value = _unmoved(value)
    name = dotted_name(value.func) if type(value) is cst.Call else None
    if name is None or _MAKING.search(last_word(name)) is None:
        return False
    root = first_word(name)
    return not any(_links(node, root, path) for node in _before(value, nodes))


def _before(value: cst.CSTNode, nodes: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    for node in nodes:
        if node is value:
            yield node
            return
        yield node


def _links(node: cst.CSTNode, root: str, path: str) -> bool:
    """Tell whether a call gives an object a model, or a statement makes it of one."""
    if type(node) is cst.Call:
        callee = first_word(dotted_name(node.func) or "")
        return callee == root and _mentions(node.args, path)
    if type(node) is not cst.Assign:
        return False
    bound = {first_word(name) for target in node.targets for name in bound_names(target.target)}
    return root in bound and _mentions([node.value], path)


def _mentions(nodes: Iterable[cst.CSTNode], path: str) -> bool:
    return any(dotted_name(inner) == path for node in nodes for inner in walk(node))


_MAKING: Final = re.compile(r"(?i)(?:^|_)(?:load|restore|resume|build|make|create|init|fresh|new)")
"""How functions are named that return a model, and not the one that there is."""
_SAME: Final = SAME_MODULE_METHODS | {"train", "eval"}
_LOADING: Final = frozenset({"copy.deepcopy", "torch.load", "torch.jit.load", "torch.hub.load"})
