"""Find overridden ``train()`` methods that pass the mode on to a part of the layers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import boolean, dotted_name, walk

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["forgotten_parts"]


def forgotten_parts(function: FunctionModel) -> str | None:
    """Return what an override of ``train()`` forgets, where neither call reaches it.

    A frozen part that it leaves out stays in the mode of its construction, which is training.
    """
    scope, owner = function.scope, function.scope.owner
    if owner is None or owner.methods.get("train") is not scope:
        return None
    if not function.module.scopes.derives_from(owner, "torch.nn.Module"):
        return None
    if not _ALL.isdisjoint(scope.words) or type(scope.node) is not cst.FunctionDef:
        return None
    modes = [each for each in scope.node.params.params if boolean(each.default) is True]
    if len(modes) != 1 or not _passes_on(function, modes[0].name.value):
        return None
    made = owner.methods.get("__init__")
    parts = (
        []
        if made is None
        else [
            name
            for target, value in made.assignments
            if (name := dotted_name(target) or "").startswith(f"{made.first_parameter}.")
            and type(value) is cst.Call
            and (
                function.module.scopes.resolve_import(dotted_name(value.func) or "") or ""
            ).startswith("torch.nn.")
        ]
    )
    forgotten = [name for name in parts if name.rpartition(".")[2] not in scope.words]
    if "getattr" in scope.words:
        words = {word for method in owner.methods.values() for word in method.words}
        return "the frozen ones" if "requires_grad" in words else None
    return f"`{forgotten[0]}`" if forgotten else None


_ALL: Final = frozenset(
    {"super", "children", "modules", "named_children", "named_modules", "_modules", "eval", "apply"}
)


def _passes_on(function: FunctionModel, mode: str) -> bool:
    return any(
        type(call.func) is cst.Attribute
        and call.func.attr.value == "train"
        and any(type(each) is cst.Name and each.value == mode for each in walk(call.args[0].value))
        for call in function.scope.nodes_of(cst.Call)
        if call.args
    )
