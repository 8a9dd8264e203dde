"""Find the outputs of a Function whose gradient its backward takes and never reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import assignments, parameters, returns
from gradcheck_lint.model.knowledge import (
    CUTTING_METHODS,
    SAME_GRAPH_METHODS,
    TENSOR_METHODS,
    words,
)
from gradcheck_lint.model.syntax import dotted_name, last_word, walk
from gradcheck_lint.rules._rule import Violation
from gradcheck_lint.rules.custom_function.output_wrongly_differentiable.masks import (
    is_filled_mask,
    is_mask,
)
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.function_class import AutogradFunction
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["unread_gradients"]


def unread_gradients(function: FunctionModel, known: AutogradFunction) -> Iterator[Violation]:
    """Yield each gradient that a backward takes and never reads, of an output that has one.

    It is a warning where somebody may compute with that output, and a note where all who call the
    Function leave it alone.
    """
    takes, forward = parameters(function.scope), known.forward
    if takes is None or forward is None or any(known.saving_calls("mark_non_differentiable")):
        return
    ends = returns(forward)
    outputs = ends[0].value if len(ends) == 1 else None
    if type(outputs) is not cst.Tuple or len(outputs.elements) != len(takes) - 1:
        return
    read = {node.value for node in function.scope.nodes if type(node) is cst.Name}
    read |= {name for each in function.scope.nested.values() for name in _names(each.node)}
    unread = [place for place, item in enumerate(takes[1:]) if item.name not in read]
    if len(unread) == len(takes) - 1:
        return  # of none, it is a constant: GCS610
    for place in unread:
        output = outputs.elements[place].value
        if not _is_differentiable(output, known):
            continue
        name, shown = takes[1 + place].name, function.module.code(output)
        is_used = _is_used(known, place)
        yield Violation(
            function.scope.node,
            f"backward never reads `{name}`: what is computed with output {place} of forward, "
            f"`{shown}`, gives its inputs no gradient",
            Severity.WARNING if is_used and not name.startswith("_") else Severity.NOTE,
            f"add what comes by `{name}`, or call `ctx.mark_non_differentiable({shown})`",
            ((output, "the output"),),
        )


def _names(node: cst.CSTNode) -> Iterator[str]:
    return (each.value for each in walk(node) if type(each) is cst.Name)


_STEPWISE: Final = CUTTING_METHODS | words(
    """
    all any argsort bincount bool byte ceil count_nonzero detach dim eq floor ge gt int isfinite
    isinf isnan le long lt ndim ne nonzero numel rand rand_like randint randn randn_like randperm
    round searchsorted shape sign size sort topk unique
    """
)
"""What gives numbers, truths, indices or draws, or steps: nothing with a derivative."""

_SMOOTH: Final = (TENSOR_METHODS | SAME_GRAPH_METHODS | words("cat einsum stack")) - _STEPWISE

_ARITHMETIC: Final = (
    *(cst.Add, cst.Subtract, cst.Multiply, cst.Divide),
    *(cst.Power, cst.MatrixMultiply),
)


def _is_differentiable(output: cst.BaseExpression, known: AutogradFunction) -> bool:
    """Return whether an output is computed of the tensors that forward is given, and smoothly."""
    forward = known.forward
    assert forward is not None
    bound = assignments(forward)
    inputs = ({item.name for item in known.inputs or ()} & known.tensors) - bound.keys()
    seen: set[str] = set()

    def is_smooth(node: cst.BaseExpression) -> bool:
        if type(node) is not cst.Name:
            return not is_mask(node) and any(map(is_smooth, _computed_of(node)))
        sources = bound.get(node.value, []) if node.value not in seen else []
        seen.add(node.value)
        is_mere_mask = any(is_filled_mask(node.value, each, forward) for each in sources)
        return node.value in inputs or (not is_mere_mask and any(map(is_smooth, sources)))

    return is_smooth(output)


def _computed_of(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what an expression is a smooth function of."""
    if type(node) is cst.BinaryOperation:
        return [node.left, node.right] if isinstance(node.operator, _ARITHMETIC) else []
    if type(node) is not cst.Call or last_word(dotted_name(node.func) or _of_result(node)) not in (
        _SMOOTH
    ):
        return []
    of = [node.func.value] if type(node.func) is cst.Attribute else []
    return [*of, *(argument.value for argument in node.args)]


def _of_result(node: cst.Call) -> str:
    """Return the method that is called on what another call returns."""
    return node.func.attr.value if type(node.func) is cst.Attribute else ""


def _is_used(known: AutogradFunction, place: int) -> bool:
    """Return whether somebody may compute with an output: not if all calls leave it alone."""
    apply, module = f"{known.name}.apply", known.module
    calls = 0
    for scope in module.scopes.functions:
        for node in scope.nodes_of(cst.Assign):
            target = node.targets[0].target
            if type(node.value) is not cst.Call or dotted_name(node.value.func) != apply:
                continue
            calls += 1
            if type(target) is not cst.Tuple or len(target.elements) <= place:
                return True
            name = dotted_name(target.elements[place].value)
            uses = sum(type(each) is cst.Name and each.value == name for each in scope.nodes)
            if name is None or uses > 1:
                return True
    named = sum(dotted_name(each) == apply for each in module.nodes_of(cst.Attribute))
    return calls != named or not calls
