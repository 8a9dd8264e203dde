"""GCS610: a backward that does not pass the incoming gradient on, or bends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import (
    elements_of,
    function_with,
    returns,
)
from gradcheck_lint.model.syntax import (
    dotted_name,
    is_literal,
    last_word,
    positional,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.incoming import computed_of, incoming_of, mentions
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class NonlinearBackward(Rule):
    """A backward returns the same whatever gradient it is given, or bounds it."""

    entry = catalogue.NONLINEAR_BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what a backward returns without, or bent from, the incoming gradient."""
        known = function_with(function, "backward", "vjp")
        incoming = incoming_of(known) if known is not None else frozenset()
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
        of_incoming = computed_of(incoming, function)
        if gradients and not any(mentions(way, of_incoming) for _, way in gradients):
            name = min(incoming)
            element, _ = gradients[0]
            yield Violation(
                element,
                f"backward returns `{function.module.text(element)}` whatever gradient it is "
                f"given: a weight, a mean or a scaler that is applied to the result has no effect",
                Severity.NOTE if _is_asked_about(incoming, function) else Severity.WARNING,
                f"multiply it by `{name}`",
            )


_ZEROS: Final = frozenset({"zeros", "zeros_like", "new_zeros"})


def _is_zero(node: cst.BaseExpression) -> bool:
    return type(node) is cst.Call and last_word(dotted_name(node.func)) in _ZEROS


_BOUNDS: Final = frozenset({"clamp", "clip", "sign", "normalize", "clamp_", "clip_", "sign_"})


def _is_bent(node: cst.BaseExpression, incoming: frozenset[str]) -> bool:
    """Return whether this is the incoming gradient itself, bounded."""
    if type(node) is not cst.Call or last_word(dotted_name(node.func)) not in _BOUNDS:
        return False
    subject = [*positional(node)[:1], getattr(node.func, "value", None)]
    return any(dotted_name(each) in incoming for each in subject)


def _is_asked_about(incoming: frozenset[str], function: FunctionModel) -> bool:
    """Return whether a test is made of the incoming gradient, as that it is 1."""
    return any(
        mentions(node.test, incoming) for node in function.scope.nodes_of(cst.If, cst.Assert)
    )
