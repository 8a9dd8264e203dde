"""GCS307: layers that a model's own method makes after an optimizer was given its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import has_weights
from gradcheck_lint.model.flow import Attach, Call, Step
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are, sites
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["attached_by_methods"]


class _Made(NamedTuple):
    """An optimizer that a function makes, or has made, of what is called so."""

    node: cst.CSTNode
    name: str
    of: frozenset[str]


def attached_by_methods(function: FunctionModel) -> Iterator[Violation]:
    """Yield every call of a method that replaces layers of a model whose optimizer is there."""
    made = list(_optimizers(function))
    if not made:
        return
    adds_groups = function.module.mentions(b"add_param_group")
    order = {id(node): place for place, node in enumerate(function.scope.nodes)}
    for event in function.events():
        if not isinstance(event, Call) or event.function is None or event.is_constructor:
            continue
        model = _receiver(event)
        attached = None if model is None else _attached_by(event, function)
        if model is None or attached is None:
            continue
        place = order.get(id(event.node), -1)
        before = [known for known in made if order[id(known.node)] < place]
        owning = [known for known in before if model in known.of]
        if (
            not owning
            or len(before) < len(made)
            or not _is_used(owning[-1], place, function, order)
        ):
            continue
        yield Violation(
            event.node,
            f"this gives `{model}` other layers (`{attached.path}`) after `{owning[-1].name}` was "
            "made from its parameters: they get gradients and are never trained",
            Severity.NOTE if adds_groups else Severity.WARNING,
            "change the model first, then make the optimizer",
            (
                (owning[-1].node, "this optimizer has the old parameters"),
                (attached.node, "made here"),
            ),
        )


def _optimizers(function: FunctionModel) -> Iterator[_Made]:
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        for target, value in assigned_pairs(node):
            if type(value) is not cst.Call:
                continue
            for name in bound_names(target):
                if all_are(function.bindings.get(name, frozenset()), Kind.OPTIMIZER):
                    yield _Made(node, name, frozenset(_models_in(value)))


def _models_in(call: cst.Call) -> Iterator[str]:
    """Yield what a call is given, whole or by its parameters."""
    for argument in call.args:
        for node in walk(argument.value):
            name = dotted_name(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
            if name is not None and node is argument.value:
                yield name
            elif name is not None and name.endswith((".parameters", ".named_parameters")):
                yield name.rpartition(".")[0]


def _receiver(event: Call) -> str | None:
    called = event.node.func if type(event.node) is cst.Call else None
    return dotted_name(called.value) if type(called) is cst.Attribute else None


def _attached_by(event: Call, function: FunctionModel) -> Attach | None:
    """Return where a method puts a layer with weights into its object, whichever way it goes."""
    assert event.function is not None
    called = function.module.function(event.function)
    if event.function.owner is None:
        return None
    own = f"{event.function.first_parameter}."
    for made in called.events():
        if not isinstance(made, Attach) or not made.path.startswith(own) or made.arms:
            continue
        if made.attached and all(has_weights(value, called) for value in made.attached):
            return made
    return None


def _is_used(made: _Made, place: int, function: FunctionModel, order: Mapping[int, int]) -> bool:
    """Return whether an optimizer steps after a place, or is handed to a function of the file."""
    own = sites(function.bindings[made.name])
    for event in function.events():
        if order.get(id(event.node), -1) <= place:
            continue
        if isinstance(event, Step) and sites(event.values) & own:
            return True
        if isinstance(event, Call) and event.handed & own and event.function is not None:
            return True
    return False
