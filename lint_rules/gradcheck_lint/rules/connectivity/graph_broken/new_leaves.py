"""Find outputs of a model that are made new leaves: they require a gradient and pass none on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Forward, Freeze
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import through_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["new_leaves"]


def new_leaves(function: FunctionModel) -> Iterator[cst.Call]:
    """Yield ``out.detach().requires_grad_(True)`` of what the layers of a model computed.

    Only in its ``forward``, where no layer follows, as after a part that is trained by itself, and
    where nothing in the file freezes layers, or reads a gradient, as who passes it on by hand does.
    """
    scope, module = function.scope, function.module
    if scope.owner is None or scope.name.rpartition(".")[2] != "forward":
        return
    if "requires_grad_" not in scope.words or not scope.words & {"detach", "data"}:
        return
    if module.may_freeze or module.matches(_READS_GRADIENTS):
        return
    if not module.scopes.derives_from(scope.owner, "torch.nn.Module"):
        return
    found: list[cst.Call] = []
    forwards: set[int] = set()
    for event in function.events():
        if isinstance(event, Forward):
            forwards.add(id(event.node))
            found.clear()
        elif isinstance(event, Freeze) and event.wanted is True and type(event.node) is cst.Call:
            computed = _cut_from(event.node)
            if computed is not None and (
                id(computed) in forwards
                or through_all(function.bindings.get(dotted_name(computed) or "", frozenset()))
            ):
                found.append(event.node)
    yield from found


_READS_GRADIENTS: Final = re.compile(
    rb"\.grad\b|register_\w*hook|retain_grad|checkpoint|import grad"
)


def _cut_from(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return ``x`` of ``x.clone().detach().requires_grad_()``, None if nothing cuts its graph."""
    is_cut = False
    while True:
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            word = node.func.attr.value
            if word not in _KEEPING:
                return node if is_cut else None
            node = node.func.value
        elif type(node) is cst.Attribute and node.attr.value == "data":
            word, node = "data", node.value
        else:
            return node if is_cut else None
        is_cut = is_cut or word in {"detach", "data"}


_KEEPING: Final = frozenset(
    {"requires_grad_", "detach", "clone", "to", "float", "contiguous", "cpu", "cuda", "view"}
)
