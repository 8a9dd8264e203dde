"""GCS308: an optimizer of parameters that were replaced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import is_parameter
from gradcheck_lint.analyses.made_in_forward import renewed_parameters
from gradcheck_lint.model.flow import Step
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, last_word, walk
from gradcheck_lint.model.values import Kind, all_are, held_by, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.stale_parameter.replaced_model import (
    new_models,
    replaced_models,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope
    from gradcheck_lint.rules.step_order.stale_parameter.replaced_model import Replaced


class StaleParameter(Rule):
    """A model gets new parameters after its optimizer was made."""

    entry = catalogue.STALE_PARAMETER

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `load_state_dict(..., assign=True)` or new model after the optimizer."""
        for renewed in renewed_parameters(function):
            yield Violation(
                renewed.node,
                f"forward replaces the parameter `{renewed.name}` by a new one: an optimizer that "
                "was made before has the old one, and the new one never learns",
                Severity.WARNING,
                "give it new contents: `parameter.data.copy_(value)` under `torch.no_grad()`",
                (
                    (renewed.first or renewed.node, "made at first"),
                    (renewed.optimizer, "an optimizer"),
                ),
            )
        nodes = function.scope.nodes
        is_replaced = {"step", "backward"} <= function.scope.words and new_models(function, nodes)
        if not is_replaced and "assign" not in function.scope.words:
            return
        order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
        if is_replaced:
            yield from map(_replaced, replaced_models(function, nodes, order))
        for node in nodes:
            if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
                continue
            model = dotted_name(node.func.value)
            is_load = node.func.attr.value == "load_state_dict" and model is not None
            if not is_load or boolean(keyword(node, "assign")) is not True:
                continue
            assert model is not None
            found = (
                _stepped(function, node, model, order)
                or _kept_by_object(function, node, model, order)
                or _handed_in(function, model)
            )
            if found is not None:
                yield Violation(
                    node,
                    "assign=True gives the model new parameters, and the optimizer was made "
                    "from the old ones: its steps change nothing in the model",
                    Severity.WARNING,
                    "load first and make the optimizer afterwards, or drop assign=True",
                    (found,),
                )


def _replaced(found: Replaced) -> Violation:
    return Violation(
        found.node,
        f"`{found.model}` is another model from here on, and the optimizer was made of the "
        "parameters of the one before: its steps change nothing in the model that is trained",
        Severity.WARNING,
        "make the model first and the optimizer afterwards",
        ((found.step.node, "steps with the old parameters"),),
    )


def _stepped(
    function: FunctionModel, load: cst.Call, model: str, order: dict[int, int]
) -> tuple[cst.CSTNode, str] | None:
    """Return a step after the load, of an optimizer that was made of the model before it."""
    held = sites(function.bindings.get(model, frozenset()))
    for step in function.events():
        if not isinstance(step, Step) or not all_are(step.values, Kind.OPTIMIZER):
            continue
        made = max(order.get(id(value.node), len(order)) for value in step.values)
        if made < order[id(load)] < order.get(id(step.node), 0) and held & held_by(step.values):
            return step.node, "steps with the old parameters"
    return None


def _kept_by_object(
    function: FunctionModel, load: cst.Call, model: str, order: dict[int, int]
) -> tuple[cst.CSTNode, str] | None:
    """Return where a constructor has made the optimizer of ``self.model`` before the load."""
    scope, scopes = function.scope, function.module.scopes
    if scope.owner is None or not model.startswith(f"{scope.first_parameter}."):
        return None
    maker = scopes.method(scope.owner, "__init__")
    own = scope.name.rpartition(".")[2]
    if maker is None or (maker is not scope and own in maker.words):
        return None
    for node in maker.nodes_of(cst.Assign):
        if not function.module.makes_optimizer(node.value):
            continue
        path = dotted_name(node.targets[0].target) or ""
        word = last_word(path)
        owned = {dotted_name(inner) for inner in walk(node.value)}
        if "." not in path or model not in owned or not _steps(scope.owner, word):
            continue
        if maker is scope:
            is_before = order[id(node)] < order[id(load)]
        else:
            is_before = not any(
                function.module.makes_optimizer(inner) for inner in scope.nodes_of(cst.Call)
            ) and not _calls_maker(scope, scope.owner, word)
        if is_before:
            return node, "it is made here"
    return None


def _steps(owner: ClassScope, optimizer: str) -> bool:
    """Tell whether a method of a class makes steps with an optimizer, by its words."""
    return any({optimizer, "step"} <= method.words for method in owner.methods.values())


def _calls_maker(scope: FunctionScope, owner: ClassScope, optimizer: str) -> bool:
    """Tell whether a method calls another one that makes the optimizer anew."""
    return any(
        name in scope.words and method is not scope and optimizer in method.words
        for name, method in owner.methods.items()
    )


def _handed_in(function: FunctionModel, model: str) -> tuple[cst.CSTNode, str] | None:
    """Return what is done with an optimizer that a caller hands in together with the model."""
    if not is_parameter(function, model):
        return None
    uses = {
        dotted_name(node.func.value) or "": node
        for node in function.scope.nodes_of(cst.Call)
        if type(node.func) is cst.Attribute and node.func.attr.value in {"load_state_dict", "step"}
    }
    others = {name: node for name, node in uses.items() if name != model}
    if len(others) != 1:
        return None
    ((name, node),) = others.items()
    if _OPTIMIZER.fullmatch(name) is None or not is_parameter(function, name):
        return None
    return node, f"`{name}` still has the old parameters"


_OPTIMIZER: Final = re.compile(r"opt|optim|optimizer")
