"""GCS610: a backward that does not pass the incoming gradient on, or bends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    elements_of,
    function_with,
    returns,
)
from gradcheck_lint.model.syntax import (
    bound_names,
    dotted_name,
    first_word,
    is_literal,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class NonlinearBackward(Rule):
    """A backward returns the same whatever gradient it is given, or bounds it."""

    entry = catalogue.NONLINEAR_BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what a backward returns without, or bent from, the incoming gradient."""
        known = function_with(function, "backward", "vjp")
        incoming = _incoming(known) if known is not None else frozenset()
        if known is None or not incoming:
            return
        gradients = [
            (element, way)
            for way in returns(function.scope)
            for element in elements_of(way.value)
            if not is_literal(element) and not _is_zero(element)
        ]
        for element, _ in gradients:
            if _is_bent(element, incoming):
                yield Violation(
                    element,
                    "backward bounds the gradient that it is given: how it changes the direction "
                    "of training depends on the scale of the loss",
                    Severity.NOTE,
                    "clip after backward(), as by `clip_grad_norm_`, if that is what is meant",
                )
        of_incoming = _computed_of(incoming, function)
        if gradients and not any(_mentions(way, of_incoming) for _, way in gradients):
            name = min(incoming)
            element, _ = gradients[0]
            yield Violation(
                element,
                f"backward returns `{function.module.text(element)}` whatever gradient it is "
                f"given: a weight, a mean or a scaler that is applied to the result has no effect",
                Severity.NOTE if _is_asked_about(incoming, function) else Severity.WARNING,
                f"multiply it by `{name}`",
            )


def _incoming(known: AutogradFunction) -> frozenset[str]:
    star = known.starred_cotangents
    names = {item.name for item in known.cotangents}
    return frozenset(names if star is None else names | {star.name.value})


_ZEROS: Final = frozenset({"zeros", "zeros_like", "new_zeros"})


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and last_word(dotted_name(node.func)) in _ZEROS


_BOUNDS: Final = frozenset({"clamp", "clip", "sign", "normalize", "clamp_", "clip_", "sign_"})


def _is_bent(node: cst.BaseExpression, incoming: frozenset[str]) -> bool:
    """Return whether this is the incoming gradient itself, bounded."""
    if not isinstance(node, cst.Call) or last_word(dotted_name(node.func)) not in _BOUNDS:
        return False
    subject = [*positional(node)[:1], getattr(node.func, "value", None)]
    return any(dotted_name(each) in incoming for each in subject)


def _mentions(node: cst.CSTNode, names: frozenset[str] | set[str]) -> bool:
    """Return whether a name occurs, or gradients that a backward() inside has left."""
    return any(
        each.value in names
        if isinstance(each, cst.Name)
        else isinstance(each, cst.Attribute) and each.attr.value == "grad"
        for each in walk(node)
    )


def _computed_of(incoming: frozenset[str], function: FunctionModel) -> set[str]:
    """Return the names that something of the incoming gradient may have reached.

    Who is handed it in a call may write it into whatever else it is handed.
    """
    known = set(incoming)
    flows = [*_flows(function)]
    while True:
        found = {
            name
            for targets, sources in flows
            if not targets <= known and any(_mentions(source, known) for source in sources)
            for name in targets
        }
        if found <= known:
            return known
        known |= found


def _flows(function: FunctionModel) -> Iterator[tuple[set[str], Sequence[cst.CSTNode]]]:
    """Yield names with what may flow into them at one place."""
    for node in function.scope.nodes:
        if isinstance(node, cst.Assign):
            targets = {name for each in node.targets for name in bound_names(each.target)}
            targets |= {first_word(dotted_name(_root(each.target))) for each in node.targets}
            yield targets, [node.value]
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            yield {first_word(dotted_name(_root(node.target)))}, [node.value or node.target]
        elif isinstance(node, (cst.For, cst.CompFor)):
            yield set(bound_names(node.target)), [node.iter]
        elif isinstance(node, cst.Call):
            names = {each.value for each in walk(node) if isinstance(each, cst.Name)}
            yield names, [node]
    for name, nested in function.scope.nested.items():
        yield {name}, [nested.node]


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        node = node.value
    return node


def _is_asked_about(incoming: frozenset[str], function: FunctionModel) -> bool:
    """Return whether a test is made of the incoming gradient, as that it is 1."""
    return any(
        isinstance(node, (cst.If, cst.Assert)) and _mentions(node.test, incoming)
        for node in function.scope.nodes
    )
