"""Tell which layers save their output for backward, and which overwrite what they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Event, Forward, InPlace
from gradcheck_lint.model.syntax import dotted_name, keyword, positional
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules.in_place.layer_sequences import is_inplace

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value

_SAVED_LAYERS: Final = frozenset({"Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softmin", "ReLU"})
_SAVED_IF_INPLACE: Final = frozenset({"LeakyReLU", "ELU"})


def written_by_layer(event: Event) -> Event:
    """Return the write that the call of a layer is, if it overwrites its input."""
    if not isinstance(event, Forward) or not event.passed or not all_are(event.values, Kind.MODULE):
        return event
    if not all(_overwrites(value) for value in event.values):
        return event
    return InPlace(
        event.node,
        event.mode,
        event.loops,
        event.arms,
        event.expects_error,
        values=event.passed[0],
        target=event.node.args[0].value if type(event.node) is cst.Call else None,
        operation=f"{event.receiver}(), which is made with inplace=True",
    )


def _overwrites(value: Value) -> bool:
    name, made = value.name.removeprefix("torch.nn."), value.node
    return (
        type(made) is cst.Call
        and is_inplace(made, name)
        and drops_surely(made, name)
        and not drops_nothing(made, name)
    )


def saving_layer(call: cst.Call, function: FunctionModel) -> str | None:
    """Return the class of the layer on ``self`` that is called, if it saves its output."""
    root, _, attribute = (dotted_name(call.func) or "").partition(".")
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter or "." in attribute:
        return None
    values = function.module.class_attribute(owner.name, attribute)
    if not all_are(values, Kind.MODULE):
        return None
    names = {
        value.name.removeprefix("torch.nn.")
        for value in values
        if type(value.node) is cst.Call
        and saves_output(value.name.removeprefix("torch.nn."), value.node)
    }
    return names.pop() if len(names) == len(values) == 1 else None


def saves_output(name: str, layer: cst.Call) -> bool:
    """Return whether a layer of this class needs its output for backward."""
    return name in _SAVED_LAYERS or (name in _SAVED_IF_INPLACE and is_inplace(layer, name))


def drops_nothing(layer: cst.Call, name: str) -> bool:
    """Tell whether this is a dropout with a rate of zero, which leaves its input as it is."""
    rate = _rate(layer) if "Dropout" in name else None
    return isinstance(rate, (cst.Integer, cst.Float)) and float(rate.value) == 0


def drops_surely(layer: cst.Call, name: str) -> bool:
    """Tell whether the rate of a dropout stands there, so that it isn't zero."""
    return "Dropout" not in name or isinstance(_rate(layer), (cst.Float, cst.Integer, type(None)))


def _rate(layer: cst.Call) -> cst.BaseExpression | None:
    handed = positional(layer)
    return handed[0] if handed else keyword(layer, "p")
