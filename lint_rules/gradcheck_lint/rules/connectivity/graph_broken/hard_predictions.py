"""Find losses that see a prediction through a threshold, a rounding or an argmax alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.knowledge import SCALAR_ATTRIBUTES
from gradcheck_lint.model.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["hard_predictions", "is_hard"]


def hard_predictions(function: FunctionModel) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield each prediction that a loss makes hard wherever it reads it, and the first place."""
    scope = function.scope
    owner = "" if scope.owner is None else scope.owner.name
    name = scope.name.rpartition(".")[2]
    is_loss = _LOSS.search(owner if name == "forward" else name) is not None
    if not is_loss or _MEASURE.search(scope.name) is not None or scope.nested:
        return
    if function.mode is GradMode.DISABLED or scope.nodes_and_lambdas[1]:
        return
    predicted = [each for each in scope.parameters if _PREDICTION.fullmatch(each) is not None]
    for parameter in sorted(predicted):
        hard = {id(inner): node for node in scope.nodes if is_hard(node) for inner in walk(node)}
        unread = {id(part) for node in scope.nodes for part in _not_read(node)}
        reads = [
            node
            for node in scope.nodes_of(cst.Name)
            if node.value == parameter and id(node) not in unread
        ]
        is_bound = any(
            any(type(n) is cst.Name and n.value == parameter for n in walk(node.target))
            for node in scope.nodes_of(cst.AssignTarget)
        )
        if reads and not is_bound and all(id(node) in hard for node in reads):
            yield parameter, hard[id(reads[0])]


_LOSS: Final = re.compile(r"(?i)loss|criterion")
_MEASURE: Final = re.compile(r"(?i)zero_?one|01|hamming|metric|eval|valid|acc")
_PREDICTION: Final = re.compile(
    r"(?:\w+_)?(?:pred\w*|logits?|outputs?|probs?|scores?)|y_hat|yhat|input"
)
_HARD: Final = frozenset({"argmax", "argmin", "round", "sign", "floor", "ceil"})


def is_hard(node: cst.CSTNode) -> bool:
    """Return whether a node's value has no gradient for what it is computed of."""
    if type(node) is cst.Comparison:
        return not any(isinstance(each.operator, (cst.Is, cst.IsNot)) for each in node.comparisons)
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    return node.func.attr.value in _HARD


def _not_read(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the names in a node that are no reading of a value: keywords, and shapes and types."""
    if type(node) is cst.Arg and node.keyword is not None:
        return [node.keyword]
    if type(node) is cst.Attribute:
        is_shape = node.attr.value in SCALAR_ATTRIBUTES | {"size", "dim", "numel"}
        return [node.attr, node.value] if is_shape else [node.attr]
    return []
