"""Note layers that calls put into modules: ``model.add_module("head", nn.Linear(...))``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Attach
from gradcheck_lint.model.syntax import place_name
from gradcheck_lint.model.values import Kind, Values, all_are

if TYPE_CHECKING:
    from gradcheck_lint.model.arguments import Arguments
    from gradcheck_lint.model.reading import Reading

__all__ = ["ATTACHING_METHODS", "may_hold_layers", "note_attached_by_call"]

ATTACHING_METHODS: Final = frozenset({"add_module", "register_module", "register_parameter"})


def may_hold_layers(reading: Reading, base: Values) -> bool:
    """Tell whether what a layer is put into may register it: of this file's classes, modules do."""
    return not all_are(base, Kind.INSTANCE) or all(
        reading.scopes.derives_from(reading.scopes.classes.get(value.name), "torch.nn.")
        for value in base
    )


def note_attached_by_call(
    reading: Reading, node: cst.Call, func: cst.Attribute, receiver: Values, arguments: Arguments
) -> None:
    """Record ``model.add_module("head", nn.Linear(...))``."""
    given = arguments.positional
    if len(given) != 2 or not all_are(given[1], Kind.MODULE, Kind.LEAF):  # noqa: PLR2004 - a pair
        return
    name = node.args[0].value
    last = name.raw_value if type(name) is cst.SimpleString else "..."
    path = f"{place_name(func.value)}.{last}"
    reading.recorder.event(
        Attach, node, reading.state.mode, path=path, values=receiver, attached=given[1]
    )
