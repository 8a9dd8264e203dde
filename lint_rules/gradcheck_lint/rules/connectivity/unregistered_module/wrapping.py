"""Wrap plain containers of layers or parameters in torch's own, which register them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.edits import Fix, Replacement
from gradcheck_lint.model.knowledge import words

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel


def wrapped(node: cst.BaseExpression, wrapper: str, function: FunctionModel) -> Fix | None:
    """Wrap a list, or a dict whose keys are names that a ModuleDict takes."""
    is_list = isinstance(node, (cst.List, cst.ListComp))
    if not is_list and not (type(node) is cst.Dict and _has_names_for_keys(node)):
        return None
    scopes = function.module.scopes
    if scopes.resolve_import("nn") == "torch.nn":
        wrapper = f"nn.{wrapper}"
    elif scopes.resolve_import("torch") == "torch":
        wrapper = f"torch.nn.{wrapper}"
    else:
        return None
    is_empty = isinstance(node, (cst.List, cst.Dict)) and not node.elements
    written = "" if is_empty else function.module.code(node)
    what = "list" if is_list else "dict"
    return Fix((Replacement(node, f"{wrapper}({written})"),), f"Wrap the {what} in {wrapper}")


_TAKEN = words(
    """
    add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double eval
    extra_repr float forward get_buffer get_parameter get_submodule half ipu items keys
    load_state_dict modules mtia named_buffers named_children named_modules named_parameters
    parameters pop requires_grad_ set_submodule share_memory state_dict to to_empty train training
    type update values xpu zero_grad dump_patches T_destination get_extra_state set_extra_state
    """
)
"""Attributes of nn.ModuleDict, which it refuses as keys."""


def _has_names_for_keys(node: cst.Dict) -> bool:
    keys = [
        element.key.evaluated_value
        for element in node.elements
        if type(element) is cst.DictElement and type(element.key) is cst.SimpleString
    ]
    names = [key for key in keys if isinstance(key, str) and key and "." not in key]
    return len(names) == len(node.elements) == len(set(names)) and not any(
        name in _TAKEN or name.startswith(("_", "register_")) for name in names
    )
