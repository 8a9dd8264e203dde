"""GCS903: loss.data[0]."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.function_class import assignments
from gradcheck_lint.model.syntax import dotted_name, integer, keyword
from gradcheck_lint.rules._rule import Fix, Replacement, Rule, Violation
from gradcheck_lint.rules.legacy.guards import guarded_by_handler, guarded_by_question, top_level
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class LegacyScalarIndex(Rule):
    """The number in a scalar tensor is read by an index, which raises."""

    entry = catalogue.LEGACY_SCALAR_INDEX

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `loss.data[0]` whose loss is shown to be a scalar."""
        if not function.module.mentions(b".data[0]"):
            return
        nodes: list[cst.CSTNode] = (
            list(top_level(function.scope.node))
            if isinstance(function.scope.node, cst.Module)
            else list(function.scope.nodes)
        )
        reads = [read for node in nodes if (read := _scalar_read(node)) is not None]
        if not reads:
            return
        backwards = {
            dotted_name(event.node.func.value)
            for event in function.events()
            if isinstance(event, Backward)
            and type(event.node) is cst.Call
            and type(event.node.func) is cst.Attribute
            and not any(argument.keyword is None for argument in event.node.args)
        }
        bound = assignments(function.scope)
        guarded = guarded_by_question(nodes) | guarded_by_handler(nodes)
        may_not_reduce = function.module.matches(_REDUCTION)
        for node, tensor in reads:
            name = dotted_name(tensor)
            if id(node) in guarded or any(map(_keeps_dimension, bound.get(name or "", ()))):
                continue
            certain = (
                name in backwards or _is_loss(name, bound, function)
                if name is not None
                else _is_one_number(tensor, function)
            )
            if not certain and (
                may_not_reduce or not (name or "").rpartition(".")[2].lower().endswith("loss")
            ):
                continue
            yield Violation(
                node,
                "the value of a scalar tensor is read by an index: torch raises an IndexError",
                Severity.ERROR if certain else Severity.WARNING,
                "use `.item()`",
                fix=Fix(
                    (Replacement(node, f"{function.module.code(_before_data(node))}.item()"),),
                    "Read the number with item()",
                    safe=certain,
                ),
            )


def _scalar_read(node: cst.CSTNode) -> tuple[cst.Subscript, cst.BaseExpression] | None:
    """Return `x.data[0]` and its x."""
    if type(node) is not cst.Subscript or len(node.slice) != 1:
        return None
    index = node.slice[0].slice
    if type(index) is not cst.Index or integer(index.value) != 0:
        return None
    value = node.value
    if type(value) is not cst.Attribute or value.attr.value != "data":
        return None
    tensor = value.value
    while (
        type(tensor) is cst.Call
        and type(tensor.func) is cst.Attribute
        and not tensor.args
        and tensor.func.attr.value in _SAME_SHAPE
    ):
        tensor = tensor.func.value
    return node, tensor


_SAME_SHAPE = frozenset({"clone", "cpu", "cuda", "detach", "double", "float"})


_REDUCTION = re.compile(rb"\breduc(?:e|tion)\s*=\s*(?![\"'](?:elementwise_)?(?:mean|sum)|True)")


def _before_data(node: cst.Subscript) -> cst.BaseExpression:
    """Return ``x.cpu()`` of ``x.cpu().data[0]``."""
    assert type(node.value) is cst.Attribute
    return node.value.value


def _keeps_dimension(node: cst.BaseExpression) -> bool:
    """Tell whether a result has at least one dimension, so that it has an index."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    name = node.func.attr.value
    return bool(node.args) and name in {"view", "reshape", "unsqueeze", "expand", "sum", "mean"}


def _is_loss(
    name: str, bound: dict[str, list[cst.BaseExpression]], function: FunctionModel
) -> bool:
    """Tell whether a name is only bound to full reductions or losses."""
    sources = bound.get(name, [])
    return bool(sources) and all(_is_one_number(source, function) for source in sources)


def _is_one_number(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Tell whether an expression is a full reduction or a loss."""
    return (
        type(node) is cst.Call
        and keyword(node, "reduction") is None
        and keyword(node, "reduce") is None
        and _reduces(node, function)
    )


def _reduces(node: cst.Call, function: FunctionModel) -> bool:
    qualified = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
    last = qualified.rpartition(".")[2]
    if qualified.startswith("torch.nn.functional."):
        return "loss" in last or "entropy" in last
    return (
        type(node.func) is cst.Attribute
        and node.func.attr.value in {"mean", "sum"}
        and (not node.args)
    )
