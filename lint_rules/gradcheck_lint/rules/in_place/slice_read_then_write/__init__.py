"""GCS107: a slice is read into the graph, then its base is written."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import GradMode, InPlace
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import child_list, dotted_name, is_literal, walk
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    sites,
)
from gradcheck_lint.rules._rule import Fix, Replacement, Rule, Violation
from gradcheck_lint.rules.in_place.preallocated import is_preallocated
from gradcheck_lint.rules.in_place.recording import is_for_evaluation, may_be_frozen
from gradcheck_lint.rules.in_place.slice_read_then_write.saved_slices import (
    SavedSlices,
    saved_by_augmented,
    saved_slices,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class SliceReadThenWrite(Rule):
    """An operation saves a slice of a tensor, and the tensor is then written."""

    entry = catalogue.SLICE_READ_THEN_WRITE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every subscript assignment that reads its own base where it's saved."""
        if Part.WRITE not in function.scope.parts:
            return
        seen: set[int] = set()
        for event in function.events():
            if not isinstance(event, InPlace) or id(event.node) in seen:
                continue
            if event.source is None or event.mode is GradMode.DISABLED or event.expects_error:
                continue
            target, saved = _target_and_slices(event, function)
            if target is None or saved is None:
                continue
            name = dotted_name(target.value)
            slices = saved.slices
            operand = slices[0]
            certain = _is_saved(event, target, saved, function)
            if certain is None:
                continue
            if is_for_evaluation(function, event) or may_be_frozen(function):
                continue
            seen.add(id(event.node))
            text = source_of(function.module, operand)
            yield Violation(
                event.node,
                f"`{text}` is a view that is saved for backward, and this statement then writes to "
                f"`{name}` itself: torch raises in backward()",
                Severity.ERROR if certain else Severity.WARNING,
                f"read a copy, `{text}.clone()`, or collect the slices in a list and stack them",
                ((operand, "saved here"),),
                fix=Fix(
                    tuple(
                        Replacement(each, f"{function.module.code(each)}.clone()")
                        for each in slices
                    ),
                    "Clone what is read of the tensor",
                    safe=True,
                ),
            )


def _target_and_slices(
    event: InPlace, function: FunctionModel
) -> tuple[cst.Subscript, SavedSlices] | tuple[None, None]:
    """Return the item that is written to, and what of the same tensor is saved for that."""
    node = event.node
    target = node.target if type(node) is cst.AugAssign else node
    if type(target) is not cst.Subscript or (name := dotted_name(target.value)) is None:
        return None, None
    saved = saved_by_augmented(node, name) if type(node) is cst.AugAssign else None
    if saved is None and event.source is not None:
        saved = saved_slices(event.source, name, function)
    return (None, None) if saved is None else (target, saved)


def _is_saved(
    event: InPlace, target: cst.Subscript, saved: SavedSlices, function: FunctionModel
) -> bool | None:
    """Tell whether a slice is surely saved; None if likely not.

    An operand is saved only if what it is used with needs a gradient.
    """
    name = dotted_name(target.value) or ""
    if is_preallocated(event.values, function):
        if not _may_ever_have_graph(event, function):
            return None
        if saved.by_layer:
            return _has_graph(event.written)
        need = max(_need_of(other, name, function) for other in saved.others)
        if need is _Need.SURELY and _has_graph(event.written):
            return True
        return False if need is not _Need.NO and _may_have_graph(function) else None
    if event.values and all(map(_is_recorded, event.values)):
        # The slice has a graph itself.
        is_sure = _is_tensor(event.values, target) and (
            saved.by_layer
            or any(_has_graph_itself(other, name, function) for other in saved.others)
        )
        return is_sure or None
    return None


def _may_ever_have_graph(event: InPlace, function: FunctionModel) -> bool:
    """Tell whether anything that may have a graph is written to a tensor that had none."""
    written_to = sites(event.values)
    return any(
        isinstance(other, InPlace)
        and other.operation not in _WITHOUT_SOURCE
        and not written_to.isdisjoint(sites(other.values))
        and not all_are(other.written, Kind.PLAIN, Kind.NUMBER)
        for other in function.events()
    )


_WITHOUT_SOURCE = frozenset({"clamp_()", "fill_()", "zero_()", "uniform_()", "normal_()"})


def _has_graph(values: Values) -> bool:
    return any(value.kind in {Kind.HISTORY, Kind.LEAF} or value.through for value in values)


def _is_tensor(values: Values, node: cst.Subscript) -> bool:
    """Tell whether what is written to is no list or dictionary: those hold what is read as it is.

    Only a tensor has more than one index.
    """
    if any(value.kind in {Kind.CONTAINER, Kind.TUPLE} for value in values):
        return False
    return len(node.slice) > 1 or all(value.kind is Kind.HISTORY for value in values)


def _is_recorded(value: Value) -> bool:
    return value.kind is Kind.HISTORY or bool(value.through and value.cut is None)


def _has_graph_itself(node: cst.BaseExpression, name: str, function: FunctionModel) -> bool:
    """Tell whether an operand surely has a graph: it is a slice of the same tensor, or known."""
    base = node.value if type(node) is cst.Subscript else node
    path = dotted_name(base)
    if path is None:
        return False
    values = function.bindings.get(path, ())
    return path == name or (
        bool(values) and all(_is_recorded(value) or value.kind in _LEAVES for value in values)
    )


_LEAVES = frozenset({Kind.LEAF, Kind.LEAF_VIEW})


class _Need(IntEnum):
    """Whether an operand needs a gradient."""

    NO = 0
    MAYBE = 1
    SURELY = 2


def _need_of(node: cst.BaseExpression, name: str, function: FunctionModel) -> _Need:
    """Tell whether an operand is a tensor with a graph, and no number.

    Of the tensor ``name`` itself, that is so once anything with a graph is written to it. Without
    any sign of it, as with an argument that is only ever used as it is, or of which one item is
    taken by number, as of a shape, it is taken for a number.
    """
    if _has_graph_itself(node, name, function):
        return _Need.SURELY
    base = node.value if type(node) is cst.Subscript else node
    if type(base) is cst.Call:
        return _need_of_result(base, function)
    if isinstance(base, (cst.BinaryOperation, cst.UnaryOperation)):
        parts = [each for each in child_list(base) if isinstance(each, cst.BaseExpression)]
        return max(_need_of(each, name, function) for each in parts)
    path = dotted_name(base) or ""
    if path.startswith("self."):
        return _need_of_attribute(path.removeprefix("self."), function)
    values = function.bindings.get(path, NOTHING)
    return _Need(any(_may_be_recorded(value, node, function) for value in values))


def _need_of_attribute(name: str, function: FunctionModel) -> _Need:
    known = _attribute(name, function)
    if known:
        return _Need.SURELY if all(value.kind in _TRAINED for value in known) else _Need.NO
    return _Need.MAYBE if name in _PARAMETER_NAMES else _Need.NO


def _need_of_result(call: cst.Call, function: FunctionModel) -> _Need:
    path = dotted_name(call.func) or ""
    if path.startswith("self."):
        known = _attribute(path.removeprefix("self."), function)
        if known and all(value.kind is Kind.MODULE for value in known):
            return _Need.SURELY
    return _Need.NO if _last_name(call) in _MAKES_NUMBERS else _Need.MAYBE


def _attribute(name: str, function: FunctionModel) -> Values:
    around = function.scope.owner
    return NOTHING if around is None else function.module.class_attribute(around.name, name)


_MAKES_NUMBERS = frozenset({"dim", "float", "int", "item", "len", "numel", "range", "size"})
_PARAMETER_NAMES = frozenset({"weight", "bias"})
_TRAINED = frozenset({Kind.LEAF, Kind.LEAF_VIEW, Kind.HISTORY})


def _may_be_recorded(value: Value, node: cst.BaseExpression, function: FunctionModel) -> bool:
    if value.kind in _TRAINED or value.through:
        return True
    if value.kind is not Kind.UNKNOWN:
        return False
    if value.origin is not Origin.ARGUMENT:
        # What is unpacked or looped over may well be sizes.
        return value.origin is Origin.CALL and type(value.node) is cst.Call
    if type(node) is cst.Subscript:
        return not all(
            type(part.slice) is cst.Index and is_literal(part.slice.value) for part in node.slice
        )
    # A number has no attributes that anybody asks for.
    return any(
        type(each) is cst.Attribute and dotted_name(each.value) == value.name
        for each in walk(function.scope.node)
    )


def _last_name(node: cst.Call) -> str:
    return (dotted_name(node.func) or "").rpartition(".")[2]


def _may_have_graph(function: FunctionModel) -> bool:
    """Tell whether this is a module's forward, whose inputs usually have a graph."""
    return function.scope.name.endswith(".forward") and function.module.scopes.derives_from(
        function.scope.owner, "torch.nn.Module"
    )
