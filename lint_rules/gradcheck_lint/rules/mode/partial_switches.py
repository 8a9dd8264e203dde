"""Find overridden ``train()`` methods that pass the mode on to a part of the layers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import boolean, dotted_name, last_word, walk

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["forgotten_part"]


def forgotten_part(function: FunctionModel) -> str | None:
    """Return a layer that an override of ``train()`` leaves in the mode of its construction."""
    scope, owner, scopes = function.scope, function.scope.owner, function.module.scopes
    if owner is None or owner.methods.get("train") is not scope or "__init__" not in owner.methods:
        return None
    if not _ALL.isdisjoint(scope.words) or not scopes.derives_from(owner, "torch.nn.Module"):
        return None
    modes = {
        each.name.value
        for each in scope.node.params.params  # type: ignore[union-attr]
        if boolean(each.default) is True
    }
    if not any(
        type(call.func) is cst.Attribute and call.func.attr.value == "train"
        for call in scope.nodes_of(cst.Call)
        if any(type(each) is cst.Name and each.value in modes for each in walk(call))
    ):
        return None
    freezes = any("requires_grad" in method.words for method in owner.methods.values())
    if "getattr" in scope.words and not freezes:
        return None  # it may go through all of them
    for target, value in owner.methods["__init__"].assignments:
        made = dotted_name(value.func) if type(value) is cst.Call else None
        own = scopes.classes.get(made or "")
        is_layer = (scopes.resolve_import(made or "") or "").startswith("torch.nn.") or (
            own is not None and scopes.derives_from(own, "torch.nn.Module")
        )
        name = last_word(dotted_name(target))
        if is_layer and name and name not in scope.words:
            return name
    return None


_ALL: Final = frozenset(
    {"super", "children", "modules", "named_children", "named_modules", "_modules", "eval", "apply"}
)
