"""Find the slices of a tensor that the operations of an expression save for backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.knowledge import SAVES_INPUT, SAVING_LAYERS
from gradcheck_lint.model.syntax import child_list, dotted_name, is_literal, positional
from gradcheck_lint.model.values import NOTHING, Kind, all_are

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value, Values

_PRODUCTS: Final = (cst.Multiply, cst.Divide, cst.MatrixMultiply)
_PRODUCT_CALLS: Final = frozenset({"mul", "matmul", "mm", "bmm", "div", "dot", "mv", "einsum"})
_CELLS: Final = frozenset({"GRUCell", "LSTMCell", "RNNCell", "PReLU"})
_SAVING_CLASSES: Final = frozenset(f"torch.nn.{name}" for name in SAVING_LAYERS | _CELLS)
_SAVING_PACKAGES: Final = frozenset({"torch", "torch.nn.functional"})


@dataclass(frozen=True, slots=True)
class SavedSlices:
    """The slices that one operation saves.

    The first is saved if any of ``others`` needs a gradient, or ``by_layer`` whatever it is used
    with: for the gradient of the layer's weights.
    """

    slices: list[cst.Subscript]
    others: list[cst.BaseExpression]
    by_layer: bool = False


def saved_slices(node: cst.CSTNode, name: str, function: FunctionModel) -> SavedSlices | None:
    """Return the slices of ``name`` that an operation saves: the first that is found."""
    stack = [node]
    while stack:
        current = stack.pop()
        found = _saved_by(current, name, function)
        if found is not None:
            return found
        stack.extend(child_list(current))
    return None


def saved_by_augmented(node: cst.AugAssign, name: str) -> SavedSlices | None:
    """Return the slice that ``x[i] *= x[j]`` saves; of ``x[i]`` itself it saves a copy."""
    is_product = isinstance(node.operator, (cst.MultiplyAssign, cst.DivideAssign))
    if is_product and type(node.value) is cst.Subscript and _is_of(node.value, name):
        return SavedSlices([node.value], [node.target])
    return None


def _saved_by(node: cst.CSTNode, name: str, function: FunctionModel) -> SavedSlices | None:
    if type(node) is cst.BinaryOperation:
        return _saved_by_operator(node, name)
    if type(node) is not cst.Call:
        return None
    func, handed = node.func, positional(node)
    receiver = func.value if type(func) is cst.Attribute else None
    last = func.attr.value if type(func) is cst.Attribute else (dotted_name(func) or "")
    slices = _slices(handed, name)
    if slices and last in _PRODUCT_CALLS:
        operands = [*handed, *([receiver] if receiver else [])]  # `gate.mul(slice)`
        return SavedSlices(slices, [other for other in operands if other is not slices[0]])
    if last in SAVES_INPUT:
        is_function = _is_function(func, function)
        operand = handed[0] if is_function and handed else receiver
        saved = _slices([operand], name) if operand is not None else []
        return SavedSlices(saved, list(saved)) if saved else None
    if slices and _is_saving_layer(func, function):
        return SavedSlices(slices, [], by_layer=True)
    return None


def _is_function(func: cst.BaseExpression, function: FunctionModel) -> bool:
    qualified = function.module.scopes.resolve_import(dotted_name(func) or "") or ""
    return qualified.rpartition(".")[0] in _SAVING_PACKAGES


def _saved_by_operator(node: cst.BinaryOperation, name: str) -> SavedSlices | None:
    operands = [node.left, node.right]
    if type(node.operator) is cst.Power and is_literal(node.right):
        slices = _slices([node.left], name)
        return SavedSlices(slices, list(slices)) if slices else None
    if not isinstance(node.operator, _PRODUCTS) or any(map(is_literal, operands)):
        return None
    slices = _slices(operands, name)
    if not slices:
        return None
    return SavedSlices(slices, [other for other in operands if other is not slices[0]])


def _slices(operands: list[cst.BaseExpression], name: str) -> list[cst.Subscript]:
    return [
        operand for operand in operands if type(operand) is cst.Subscript and _is_of(operand, name)
    ]


def _is_of(node: cst.Subscript, name: str) -> bool:
    return dotted_name(node.value) == name


def _is_saving_layer(func: cst.BaseExpression, function: FunctionModel) -> bool:
    """Tell whether this is a layer of torch that saves its input for the gradient of its weights.

    A Sequential hands its input to its first layer.
    """
    if function.module.may_freeze:
        return False
    values = _called(func, function)
    return all_are(values, Kind.MODULE) and all(
        _first_layer(value, function) in _SAVING_CLASSES for value in values
    )


def _called(func: cst.BaseExpression, function: FunctionModel) -> Values:
    """Return what a plain name or an attribute of ``self`` holds."""
    root, _, attribute = (dotted_name(func) or "").partition(".")
    if not attribute:
        return function.bindings.get(root, NOTHING)
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter:
        return NOTHING
    return function.module.class_attribute(owner.name, attribute)


def _first_layer(value: Value, function: FunctionModel) -> str:
    """Return the class of a layer, or of the first one of a Sequential."""
    if value.name != "torch.nn.Sequential" or type(value.node) is not cst.Call:
        return value.name
    layers = positional(value.node)
    if not layers or type(layers[0]) is not cst.Call:
        return ""
    return function.module.scopes.resolve_import(dotted_name(layers[0].func) or "") or ""
