"""Find reentrant checkpoints of what a frozen embedding returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    first_word,
    keyword,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["frozen_inputs"]


def frozen_inputs(
    function: FunctionModel, call: cst.Call, given: cst.BaseExpression
) -> tuple[str, cst.CSTNode] | None:
    """Return the embedding that makes the only input of a checkpoint, and what freezes it."""
    embeddings: set[str] = set()
    for place, value in _places(function, given):
        made = _embeddings(value, place, call)
        if not made:
            return None
        embeddings |= made
    module = function.module
    if not embeddings or _asks(module, embeddings):
        return None
    freezing = next(_freezes(module, embeddings), None)
    return None if freezing is None else (min(embeddings), freezing)


def _places(
    function: FunctionModel, given: cst.BaseExpression
) -> list[tuple[FunctionModel, cst.BaseExpression]]:
    """Return where the input comes from: the function itself, or those that hand it in."""
    name = dotted_name(given) or ""
    if name in function.scope.parameters and not function.scope.name.endswith(".forward"):
        return list(expressions_given(function, name))
    return [(function, given)]


def _embeddings(value: cst.BaseExpression, function: FunctionModel, call: cst.Call) -> set[str]:
    """Return the embeddings whose sum a value is before the first layer; none if it is not."""
    if type(value) is cst.Name:
        sources = sources_of(function.scope).get(value.value) or []
        begins = [source for source in sources if not _goes_on(source, value.value)]
        found = [_embeddings(source, function, call) for source in begins]
        return set().union(*found) if found and all(found) else set()
    if type(value) is cst.BinaryOperation and type(value.operator) is cst.Add:
        left = _embeddings(value.left, function, call)
        return left | _embeddings(value.right, function, call) if left else left
    name = dotted_name(value.func) if type(value) is cst.Call else None
    root, _, attribute = (name or "").partition(".")
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter:
        return set()
    held = function.module.class_attribute(owner.name, attribute)
    is_embedding = all_are(held, Kind.MODULE) and all(
        last_word(each.name) in {"Embedding", "EmbeddingBag"} for each in held
    )
    return {attribute} if is_embedding else set()


def _goes_on(source: cst.BaseExpression, name: str) -> bool:
    """Return whether a name is given what is made of its last value."""
    return any(type(node) is cst.Name and node.value == name for node in walk(source))


_HELPERS: Final = frozenset({"enable_input_require_grads", "make_inputs_require_grad"})


def _asks(module: ModuleModel, embeddings: set[str]) -> bool:
    """Return whether something makes the input require a gradient, or thaws the embedding."""
    for function in module.functions():
        for node in function.scope.nodes:
            name = ""
            if type(node) is cst.Call:
                name = last_word(dotted_name(node.func)) or _method(node)
            if name in _HELPERS:
                return True
            thawed = _set(node, wanted=True)
            words = set((thawed or "").split("."))
            if thawed is not None and (
                words & embeddings
                or function.scope.name.endswith(".forward")
                or (words <= {"self", first_word(thawed)} and thawed not in _loop_names(function))
            ):
                return True
    return False


def _method(node: cst.Call) -> str:
    return node.func.attr.value if type(node.func) is cst.Attribute else ""


def _set(node: cst.CSTNode, *, wanted: bool) -> str | None:
    """Return whose ``requires_grad`` a node sets like this, as far as it has a name."""
    if type(node) is cst.Call and _method(node) == "requires_grad_":
        given = next(iter(positional(node)), keyword(node, "requires_grad"))
        value = True if given is None else boolean(given)
        assert type(node.func) is cst.Attribute
        return dotted_name(node.func.value) if value is wanted else None
    if type(node) is cst.Assign:
        target = node.targets[0].target
        is_flag = type(target) is cst.Attribute and target.attr.value == "requires_grad"
        value = boolean(node.value)
        if is_flag and (value is wanted or (value is None and not wanted)):
            return dotted_name(target.value)  # type: ignore[attr-defined]
    return None


def _loop_names(function: FunctionModel) -> set[str]:
    return {
        each.value
        for node in function.scope.nodes_of(cst.For)
        for each in walk(node.target)
        if type(each) is cst.Name
    }


def _freezes(module: ModuleModel, embeddings: set[str]) -> Iterator[cst.CSTNode]:
    """Yield what freezes all of a model, or an embedding."""
    for function in module.functions():
        nodes = function.scope.nodes
        for node in nodes:
            frozen = _set(node, wanted=False)
            if frozen is None:
                continue
            for loop in nodes:
                if type(loop) is cst.For and any(each is node for each in walk(loop.body)):
                    frozen = _listed(loop.iter) or frozen
            if "." not in frozen or frozen.partition(".")[2] in embeddings:
                yield node


def _listed(over: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()``."""
    is_list = type(over) is cst.Call and _method(over) in {"parameters", "named_parameters"}
    return dotted_name(over.func.value) if is_list else None  # type: ignore[attr-defined]
