"""Tell which layers save their output for backward, and which overwrite what they are given."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.earlier_use import EarlierUse, statements_below
from gradcheck_lint.model.flow import Event, Forward, InPlace
from gradcheck_lint.model.provenance import Write
from gradcheck_lint.model.python_tree import child_nodes, head_nodes
from gradcheck_lint.model.syntax import dotted_name, keyword, positional
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._layer_sequences import INPLACE_PLACES, is_inplace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.model.values import Value

_SAVED_LAYERS: Final = frozenset({"Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softmin", "ReLU"})
_SAVED_IF_INPLACE: Final = frozenset({"LeakyReLU", "ELU"})


def may_overwrite_saved(function: FunctionModel) -> bool:
    """Tell by names whether a forward may run a layer in place on what has been used before."""
    scope = function.scope
    names = _layers_in_place(function)
    if not names or scope.statements is None:
        return names is None
    writes = list(_calls_on_names(scope.statements, names))
    return bool(writes) and any(map(EarlierUse(scope.statements).is_possible, writes))


def _layers_in_place(function: FunctionModel) -> frozenset[str] | None:
    """Return the layers of a module that its forward may run in place, None if it can't be told."""
    maker = _maker_of(function)
    if maker is None or maker.words.isdisjoint({"inplace", "True"}):
        return frozenset()
    if maker.statements is None:
        return None
    return function.scope.words & {
        target.attr
        for target, source in maker.attribute_bindings
        if isinstance(target, ast.Attribute) and _is_made_inplace(source)
    }


def _maker_of(function: FunctionModel) -> FunctionScope | None:
    """Return the constructor of the module whose forward this is."""
    scope = function.scope
    if scope.owner is None or not scope.name.endswith(".forward"):
        return None
    return function.module.scopes.method(scope.owner, "__init__")


def _is_made_inplace(source: ast.expr) -> bool:
    """Tell whether this is the call of a layer with ``inplace=True``, by name or by place."""
    if not isinstance(source, ast.Call):
        return False
    name = source.func.attr if isinstance(source.func, ast.Attribute) else ""
    name = source.func.id if isinstance(source.func, ast.Name) else name
    place = INPLACE_PLACES.get(name, len(source.args))
    wanted = [each.value for each in source.keywords if each.arg == "inplace"]
    return any(
        isinstance(each, ast.Constant) and each.value is True
        for each in (*wanted, *source.args[place : place + 1])
    )


def _calls_on_names(statements: Sequence[ast.stmt], layers: Collection[str]) -> Iterator[Write]:
    """Yield the write that each call of such a layer on a plain name is."""
    for statement in statements_below(statements):
        waiting = head_nodes(statement)
        while waiting:
            node = waiting.pop()
            waiting += child_nodes(node)
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in layers and node.args and isinstance(node.args[0], ast.Name):
                yield Write(node.args[0], statement)


def may_overwrite_by_layer(function: FunctionModel, is_saver: Callable[[str], bool]) -> bool:
    """Tell by words whether a forward may run a layer in place on an output that was saved.

    ``is_saver`` knows the names of functions that save their output.
    """
    names = _layers_in_place(function)
    maker = _maker_of(function)
    if maker is None or (names is not None and not names):
        return False
    savers = (_SAVED_LAYERS - {"ReLU"}) & maker.words
    if savers or {"ReLU", "Dropout"} <= maker.words:
        return True
    return any(map(is_saver, function.scope.words - (names or frozenset())))


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
        target=event.node.args[0].value if isinstance(event.node, cst.Call) else None,
        operation=f"{event.receiver}(), which is made with inplace=True",
    )


def _overwrites(value: Value) -> bool:
    name, made = value.name.removeprefix("torch.nn."), value.node
    return (
        isinstance(made, cst.Call)
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
        if isinstance(value.node, cst.Call)
        and saves_output(value.name.removeprefix("torch.nn."), value.node)
    }
    return names.pop() if len(names) == len(values) == 1 else None


def saves_output(name: str, layer: cst.Call) -> bool:
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
