"""GCS205: a tensor as an attribute of ctx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.function_class import (
    AutogradFunction,
    assignments,
    elements_of,
    function_with,
    parameters,
    returns,
)
from gradcheck_lint.model.syntax import dotted_name, is_none, positional, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class TensorOnCtx(Rule):
    """A Function keeps a tensor as an attribute of ctx in place of ``save_for_backward``."""

    entry = catalogue.TENSOR_ON_CTX

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every tensor that is put on ctx."""
        known = function_with(function, "forward", "setup_context")
        if known is None:
            return
        context = function.scope.first_parameter
        for attribute, value in _bound_on(function.scope, context):
            for name in _held(value):
                what = _what(name, known, function)
                if what is not None and not _is_other_there(function, value, name):
                    yield Violation(
                        attribute,
                        f"`{context}.{attribute.attr.value}` keeps {what} `{name}` outside of "
                        "save_for_backward: torch can't see whether it was overwritten before "
                        "backward, and an input or output kept so leaks its graph",
                        Severity.WARNING,
                        f"`{context}.save_for_backward({name})`, then `{context}.saved_tensors`",
                    )
                    break


def _bound_on(
    scope: FunctionScope, context: str | None
) -> Iterator[tuple[cst.Attribute, cst.BaseExpression]]:
    """Yield each attribute of the context that a statement binds, also several at once."""
    for node in scope.nodes:
        for target, value in _pairs(node):
            if (
                type(target) is cst.Attribute
                and type(target.value) is cst.Name
                and target.value.value == context
            ):
                yield target, value


def _pairs(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    if type(node) is cst.AnnAssign and node.value is not None:
        yield node.target, node.value
    if type(node) is not cst.Assign:
        return
    for known in node.targets:
        if type(known.target) is cst.Tuple and type(node.value) is cst.Tuple:
            left, right = known.target.elements, node.value.elements
            yield from ((one.value, other.value) for one, other in zip(left, right, strict=False))
        else:
            yield known.target, node.value


def _held(value: cst.BaseExpression) -> Iterator[str]:
    """Yield the name that is kept, or those in a list, tuple or dictionary."""
    held = [value]
    if isinstance(value, (cst.List, cst.Tuple, cst.Dict)):
        held = [element.value for element in value.elements]
    for kept in held:
        if type(kept) is cst.Name:
            yield kept.value


def _what(name: str, function: AutogradFunction, model: FunctionModel) -> str | None:
    """Say which tensor a name holds; None if it is not shown to be one."""
    sources = assignments(model.scope).get(name, [])
    if name in {item.name for item in function.inputs or []} and not sources:
        return "the input" if name in function.tensors else None
    if model.scope is function.setup and not sources and name == _output_name(function):
        return "the output" if _gives_one_tensor(function) else None
    if model.scope is function.forward and _is_the_output(name, model.scope):
        return "the output"
    are_tensors = bool(sources) and all(
        _is_tensor(source, function, model.scope, frozenset({name})) for source in sources
    )
    if not are_tensors and not _is_multiplied(name, function, model):
        return None
    return "the output" if name in function.returned else "the tensor"


def _is_the_output(name: str, forward: FunctionScope) -> bool:
    """Tell whether forward returns a name and nothing else: what it returns is a tensor."""
    ways = returns(forward)
    return bool(ways) and all(
        type(way.value) is cst.Name and way.value.value == name for way in ways
    )


def _is_multiplied(name: str, function: AutogradFunction, model: FunctionModel) -> bool:
    """Return whether forward multiplies an input by it as a matrix: ``x @ weight.T``."""
    inputs = {item.name for item in function.inputs or []}
    for node in model.scope.nodes_of(cst.BinaryOperation):
        if type(node.operator) is cst.MatrixMultiply:
            sides = {
                (dotted_name(side) or "").removesuffix(".T") for side in (node.left, node.right)
            }
            if name in sides and sides & inputs:
                return True
    return False


def _output_name(function: AutogradFunction) -> str | None:
    """Return what ``setup_context(ctx, inputs, output)`` calls the output."""
    given = parameters(function.setup) if function.setup is not None else None
    return given[2].name if given is not None and len(given) == 3 else None  # noqa: PLR2004


def _gives_one_tensor(function: AutogradFunction) -> bool:
    """Tell whether forward returns a tensor, and no tuple, whichever way it goes."""
    forward = function.forward
    if forward is None:
        return False
    ways = [node.value for node in returns(forward)]
    return bool(ways) and all(
        way is not None and _is_tensor(way, function, forward) for way in ways
    )


def _is_other_there(function: FunctionModel, place: cst.CSTNode, name: str) -> bool:
    """Tell whether only a branch leads to a statement in which a name holds no tensor.

    ``if isinstance(offset, int): ctx.offset = offset``, or in the ``else`` of ``Tensor``.
    """
    for node in function.scope.nodes_of(cst.If):
        is_tensor = _asks_for_tensor(node.test, name)
        if is_tensor is None:
            continue
        arm = node.orelse if is_tensor else node.body
        if arm is not None and any(found is place for found in walk(arm)):
            return True
    return False


def _asks_for_tensor(test: cst.BaseExpression, name: str) -> bool | None:
    """Tell whether a test is of a name, and true for a tensor; None for any other test."""
    if type(test) is cst.UnaryOperation and type(test.operator) is cst.Not:
        inner = _asks_for_tensor(test.expression, name)
        return None if inner is None else not inner
    if type(test) is cst.Comparison and dotted_name(test.left) == name:
        return _is_not_none(test)
    if type(test) is not cst.Call or dotted_name(test.func) not in {
        "isinstance",
        "torch.is_tensor",
    }:
        return None
    given = positional(test)
    if not given or dotted_name(given[0]) != name:
        return None
    if len(given) == 1:
        return True
    kinds = given[1:] if type(given[1]) is not cst.Tuple else elements_of(given[1])
    return any((dotted_name(kind) or "Tensor").endswith("Tensor") for kind in kinds)


def _is_not_none(test: cst.Comparison) -> bool | None:
    """Tell whether a comparison is ``is not None`` (True) or ``is None`` (False)."""
    only = test.comparisons[0]
    if len(test.comparisons) != 1 or not is_none(only.comparator):
        return None
    return {cst.Is: False, cst.IsNot: True}.get(type(only.operator))


def _is_tensor(
    node: cst.BaseExpression,
    function: AutogradFunction,
    scope: FunctionScope,
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Tell whether an expression is shown to be a tensor."""
    if type(node) is cst.Name:
        sources = assignments(scope).get(node.value, [])
        if node.value in seen or not sources:  # seen before: as its other sources are
            return node.value in seen or node.value in function.tensors
        deeper = seen | {node.value}
        return all(_is_tensor(source, function, scope, deeper) for source in sources)
    if type(node) is cst.BinaryOperation:
        sides = (node.left, node.right)
        return any(_is_tensor(side, function, scope, seen) for side in sides)
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    method, owner = node.func.attr.value, node.func.value
    if method not in _MAKERS:
        return False
    imported = function.module.scopes.resolve_import(dotted_name(owner) or "")
    return imported == "torch" or _is_tensor(owner, function, scope, seen)


_MAKERS = frozenset(
    {
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "sigmoid",
        "tanh",
        "softmax",
        "log_softmax",
        "pow",
        "square",
        "clone",
        "matmul",
        "mm",
        "bmm",
        "mul",
        "div",
        "add",
        "sub",
        "new",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "zeros_like",
        "ones_like",
        "empty_like",
        "clamp",
        "relu",
        "sum",
        "mean",
        "contiguous",
    }
)
