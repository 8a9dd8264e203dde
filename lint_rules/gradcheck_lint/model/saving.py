"""Note which tensors an operation is known to save for backward.

What is listed here was tried on torch 2.13: each operand of each operation was written to between
forward and backward, with and without requiring a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import GradMode, Save
from gradcheck_lint.model.knowledge import SAVES_INPUT, SAVING_LAYERS, words
from gradcheck_lint.model.values import NOTHING, Kind, Values, all_are

if TYPE_CHECKING:
    from gradcheck_lint.model.arguments import Arguments
    from gradcheck_lint.model.reading import Reading

_PRODUCTS: Final = frozenset({"mul", "multiply", "matmul", "mm", "bmm", "mv", "dot", "linear"})
"""Operations that save each factor for the gradient of the other."""

_DISTANCES: Final = frozenset({"mse_loss", "smooth_l1_loss"})
"""Losses that save both operands."""

_ACTIVATIONS: Final = words(
    """
    GELU SiLU Mish Softplus LeakyReLU Hardtanh Hardswish ReLU6 CELU ELU SELU LogSigmoid Hardsigmoid
    Softsign
    """
)
"""Layers without weights that save their input if it requires a gradient."""


def note_arithmetic(
    reading: Reading, node: cst.BinaryOperation, left: Values, right: Values
) -> None:
    """Note what ``*``, ``@``, ``/`` and ``**`` save of their operands."""
    operator = type(node.operator)
    if operator is cst.Multiply or operator is cst.MatrixMultiply:
        _note_product(reading, node, left, right)
    elif operator is cst.Divide:
        if _has_graph(right):
            _note(reading, node, left)
        if _has_graph(left) or _has_graph(right):
            _note(reading, node, right)
    elif operator is cst.Power and _has_graph(left) and all_are(right, Kind.NUMBER):
        _note(reading, node, left)


def note_method(reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments) -> None:
    """Note what a method of a tensor saves."""
    assert type(node.func) is cst.Attribute
    name = node.func.attr.value
    if name in SAVES_INPUT and _has_graph(receiver):
        _note(reading, node, receiver, is_tensor=True)
    elif name in _PRODUCTS and arguments.positional:
        _note_product(reading, node, receiver, arguments.positional[0])


def note_function(reading: Reading, node: cst.Call, name: str, arguments: Arguments) -> None:
    """Note what a function of torch saves; ``name`` is its last part."""
    first = arguments.positional[0] if arguments.positional else NOTHING
    second = arguments.positional[1] if len(arguments.positional) > 1 else NOTHING
    if name in SAVES_INPUT and _has_graph(first):
        _note(reading, node, first, is_tensor=True)
    elif name in _PRODUCTS or name.startswith("conv"):
        _note_product(reading, node, first, second)
    elif name in _DISTANCES and (_has_graph(first) or _has_graph(second)):
        _note(reading, node, first, is_tensor=True)
        _note(reading, node, second, is_tensor=True)


def note_layer(reading: Reading, node: cst.Call, layers: Values, arguments: Arguments) -> None:
    """Note what a layer of torch saves."""
    if not arguments.positional or not all_are(layers, Kind.MODULE):
        return
    first = arguments.positional[0]
    names = {layer.name.removeprefix("torch.nn.") for layer in layers}
    if (names <= SAVING_LAYERS and not reading.may_freeze) or (
        names <= _ACTIVATIONS and _has_graph(first)
    ):
        _note(reading, node, first, is_tensor=True)


def _note_product(reading: Reading, node: cst.CSTNode, left: Values, right: Values) -> None:
    if _has_graph(right):
        _note(reading, node, left)
    if _has_graph(left):
        _note(reading, node, right)


def _has_graph(values: Values) -> bool:
    """Tell whether a value requires a gradient, whichever it is."""
    return bool(values) and all(
        value.kind in {Kind.LEAF, Kind.LEAF_VIEW, Kind.HISTORY}
        or (value.kind is Kind.UNKNOWN and bool(value.through))
        for value in values
    )


def _note(reading: Reading, node: cst.CSTNode, saved: Values, *, is_tensor: bool = False) -> None:
    mode = reading.state.mode
    if mode is GradMode.DISABLED or mode is GradMode.UNKNOWN or not saved:
        return
    if all_are(saved, Kind.NUMBER) or any(value.kind is Kind.NUMBER for value in saved):
        return
    known = is_tensor or _has_graph(saved) or all_are(saved, Kind.PLAIN)
    reading.recorder.event(Save, node, mode, values=saved, is_tensor=known)
