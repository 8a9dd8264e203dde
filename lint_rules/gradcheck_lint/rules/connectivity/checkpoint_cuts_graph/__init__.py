"""GCS408: a reentrant checkpoint of data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    boolean,
    bound_names,
    dotted_name,
    has_star,
    keyword,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.checkpoint_cuts_graph.frozen_inputs import frozen_inputs
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, Scopes


class CheckpointCutsGraph(Rule):
    """A reentrant checkpoint is given the input of the model, which requires no gradient."""

    entry = catalogue.CHECKPOINT_CUTS_GRAPH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every reentrant checkpoint whose only tensor is what forward was given."""
        yield from _of_frozen_embeddings(function)
        scopes, owner = function.module.scopes, function.scope.owner
        if owner is None or not function.scope.name.endswith(".forward"):
            return
        if not scopes.derives_from(owner, "torch.nn.Module") or function.mode is GradMode.DISABLED:
            return
        arguments = function.scope.node
        if isinstance(arguments, cst.Module):
            return
        given = [parameter.name.value for parameter in arguments.params.params[1:]]
        for node in function.scope.nodes_of(cst.Call):
            handed = _handed(node, scopes)
            if handed is None:
                continue
            layer, given_to_it = handed
            called = dotted_name(layer) or ""
            attribute = called.removeprefix(f"{function.scope.first_parameter}.")
            if given[:1] != [given_to_it.value] if type(given_to_it) is cst.Name else True:
                continue
            if not _is_layer(attribute, owner, function):
                continue
            if any(not _ASKED.isdisjoint(method.words) for method in owner.methods.values()):
                continue
            if _PARTS.search(owner.node.name.value.lower()):
                continue
            if not _is_as_given(given[0], node, function) or _is_used_by_others(owner, function):
                continue
            yield Violation(
                node,
                "a reentrant checkpoint records nothing unless an input requires a gradient, and "
                f"`{given[0]}` is what the model is given: `{called}` may never be trained",
                Severity.WARNING,
                "pass use_reentrant=False",
            )


def _of_frozen_embeddings(function: FunctionModel) -> Iterator[Violation]:
    """Yield the checkpoints whose only input is what a frozen embedding returns."""
    if not function.module.mentions(b"checkpoint"):
        return
    for node in function.scope.nodes:
        handed = _handed(node, function.module.scopes) if type(node) is cst.Call else None
        if handed is None or type(node) is not cst.Call:
            continue
        found = frozen_inputs(function, node, handed[1])
        if found is not None:
            embedding, freezing = found
            yield Violation(
                node,
                "a reentrant checkpoint records nothing unless an input requires a gradient, and "
                f"this one is given what `{embedding}` returns, which is frozen: nothing in "
                f"`{function.module.code(handed[0])}` gets a gradient",
                Severity.WARNING,
                "pass use_reentrant=False, or let the output of the embedding require a gradient",
                ((freezing, "frozen here"),),
            )


_INPUT_PLACES = {"checkpoint": 1, "checkpoint_sequential": 2}
"""At which place each function takes the input of what it runs."""


def _handed(node: cst.Call, scopes: Scopes) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return what a reentrant checkpoint runs, and its only input; None if there are more.

    A checkpoint is reentrant unless told otherwise, up to torch 2.13 at least.
    """
    qualified = scopes.resolve_import(dotted_name(node.func) or "") or ""
    place = _INPUT_PLACES.get(qualified.removeprefix("torch.utils.checkpoint."))
    handed = positional(node)
    wanted = keyword(node, "use_reentrant")
    if place is None or has_star(node) or (wanted is not None and boolean(wanted) is not True):
        return None
    return (handed[0], handed[place]) if len(handed) == place + 1 else None


def _is_layer(attribute: str, owner: ClassScope, function: FunctionModel) -> bool:
    """Tell whether an attribute holds a layer, or is a method that calls one."""
    module = function.module
    method = module.scopes.method(owner, attribute)
    if method is None:
        return all_are(module.class_attribute(owner.node.name.value, attribute), Kind.MODULE)
    called = (
        (dotted_name(node.func) or "").removeprefix(f"{method.first_parameter}.")
        for node in method.nodes_of(cst.Call)
    )
    return any(
        all_are(module.class_attribute(owner.node.name.value, name), Kind.MODULE)
        for name in called
        if name.isidentifier()
    )


def _is_as_given(parameter: str, call: cst.Call, function: FunctionModel) -> bool:
    """Tell whether a parameter still holds what it was given where a call is made."""
    for node in function.scope.nodes:
        if type(node) in ASSIGNING:
            target, value = assigned_once(node)
            if value is not None and any(inner is call for inner in walk(value)):
                return True
            if target is not None and parameter in bound_names(target):
                return False
        elif node is call:
            return True
        elif isinstance(node, (cst.AugAssign, cst.For)) and parameter in bound_names(node.target):
            return False
    return False


_ASKED = frozenset({"requires_grad", "requires_grad_"})
_PARTS = re.compile(
    "block|layer|stage|unit|bottleneck|attention|encoder|decoder|head|mlp|cell|module|wrap|resid"
    "|conv|neck|adapter|dense|expert"
)
"""How classes are named that other models are made of, whose input is no data."""


def _is_used_by_others(owner: ClassScope, function: FunctionModel) -> bool:
    """Tell whether a class of the file makes this one a part of itself."""
    name = owner.node.name.value
    for other in function.module.scopes.classes.values():
        if other is not owner and any(
            type(node) is cst.Name and node.value == name
            for method in other.methods.values()
            for node in method.nodes
        ):
            return True
    return False
