"""GCS601: a backward that loses a part of the sum that a gradient is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, last_word, positional, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.custom_function.clamped_inputs import unmasked
from gradcheck_lint.rules.custom_function.incoming import computed_of, incoming_of, mentions
from gradcheck_lint.rules.custom_function.second_derivatives import wrong_derivatives
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.function_class import AutogradFunction
    from gradcheck_lint.model.module import FunctionModel


class WrongGradient(Rule):
    """A backward keeps one of several gradients, their mean, or one of what forward clamps."""

    entry = catalogue.WRONG_GRADIENT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield wrong second derivatives, and what a backward assigns by index or averages."""
        yield from wrong_derivatives(function)
        known = function_with(function, "backward", "vjp")
        incoming = incoming_of(known) if known is not None else frozenset()
        if known is None or not incoming:
            return
        if _gathers(known):
            for node in _assigned_by_index(function, incoming):
                yield Violation(
                    node,
                    "forward may take an element several times, and each of them adds to its "
                    "gradient: to assign by index keeps one of them",
                    Severity.WARNING,
                    "add them up, as by `index_add_`, `scatter_add_` or "
                    "`index_put_(..., accumulate=True)`",
                )
        for node, name in _averaged(function, incoming):
            yield Violation(
                node,
                f"`{name}` has a gradient for each element of the output, and this multiplies by "
                "their mean: it is right only where all are equal",
                Severity.WARNING,
                "multiply what belongs to each element by its own gradient, and sum afterwards",
            )

        for found in unmasked(function, known, incoming):
            yield Violation(
                found.node,
                f"forward clamps `{found.input}`, and this passes the gradient on where the clamp "
                "is in force too; the gradient of another input is masked there",
                Severity.WARNING,
                "multiply it by the mask of what lies inside, as the other one is",
                ((found.clamp, "clamped here"),),
            )


_PUT: Final = 2
"""How many arguments ``index_put_`` has that does not add."""
_GATHERING: Final = frozenset({"index_select", "gather", "embedding", "take", "take_along_dim"})
_DIFFERENT: Final = re.compile(r"perm|sort|topk|unique|argm|nonzero|where|mask|keep|valid|order")
"""What gives each index once."""


def _gathers(known: AutogradFunction) -> bool:
    """Return whether forward takes elements of an input by an index, which may have one twice."""
    if known.forward is None or any(map(_DIFFERENT.search, known.forward.words)):
        return False
    inputs = {item.name for item in known.inputs or ()}
    for node in known.forward.nodes:
        is_gathering = type(node) is cst.Call and len(node.args) > 1  # and no collective
        if is_gathering and last_word(dotted_name(node.func)) in _GATHERING:  # type: ignore[attr-defined]
            return True
        if type(node) is cst.Subscript and dotted_name(node.value) in inputs:
            index = _index(node)
            if dotted_name(index) in inputs or _is_flat(index, inputs):
                return True
    return False


def _index(node: cst.Subscript) -> cst.BaseExpression | None:
    """Return what rows a subscript takes, None for a slice."""
    first = node.slice[0].slice
    return first.value if type(first) is cst.Index else None


def _is_flat(index: cst.BaseExpression | None, inputs: set[str]) -> bool:
    """Return whether this is an input in another shape."""
    called = index.func if type(index) is cst.Call else None
    return type(called) is cst.Attribute and dotted_name(called.value) in inputs


def _assigned_by_index(function: FunctionModel, incoming: frozenset[str]) -> Iterator[cst.CSTNode]:
    """Yield where the incoming gradient is written to elements that an index says."""
    of_incoming = computed_of(incoming, function)
    for node in function.scope.nodes_of(cst.Assign, cst.Call):
        if type(node) is cst.Assign and mentions(node.value, of_incoming):
            target = node.targets[0].target
            index = _index(target) if type(target) is cst.Subscript else None
            if isinstance(index, (cst.Name, cst.Call, cst.Subscript)) and _names_index(index):
                yield node
        elif type(node) is cst.Call and type(node.func) is cst.Attribute:
            is_write = node.func.attr.value in {"scatter_", "index_copy_", "scatter"}
            given = positional(node)
            if node.func.attr.value == "index_put_":
                is_write = boolean(keyword(node, "accumulate")) is not True and len(given) == _PUT
            if is_write and given and mentions(given[-1], of_incoming):
                yield node


def _names_index(node: cst.BaseExpression) -> bool:
    return (
        _DIFFERENT.search(" ".join(each.value for each in walk(node) if type(each) is cst.Name))
        is None
    )


def _averaged(
    function: FunctionModel, incoming: frozenset[str]
) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield each product with the mean of an incoming gradient that has several elements."""
    for name in sorted(incoming):
        if not any(_gives_dimension(node, name) for node in function.scope.nodes):
            continue
        for node in function.scope.nodes:
            is_product = type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply
            if is_product and any(_is_mean_of(side, name) for side in (node.left, node.right)):  # type: ignore[attr-defined]
                yield node, name


def _gives_dimension(node: cst.CSTNode, name: str) -> bool:
    """Return whether this takes a slice of a gradient, or gives it one more dimension."""
    if type(node) is cst.Subscript:
        return dotted_name(node.value) == name
    is_method = type(node) is cst.Attribute and dotted_name(node.value) == name
    return is_method and node.attr.value in {"unsqueeze", "view", "reshape", "t", "T"}  # type: ignore[attr-defined]


def _is_mean_of(node: cst.BaseExpression, name: str) -> bool:
    called = node.func if type(node) is cst.Call and not node.args else None
    return (
        type(called) is cst.Attribute
        and called.attr.value == "mean"
        and dotted_name(called.value) == name
    )
