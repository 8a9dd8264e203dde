"""GCS106: results written slice by slice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import GradMode, InPlace, Loop
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import (
    child_list,
    dotted_name,
    keyword,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.model.values import Kind, Origin, Values
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.preallocated import is_preallocated
from gradcheck_lint.rules.in_place.recording import is_for_evaluation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class SliceWriteInLoop(Rule):
    """Results with a graph are written slice by slice into a tensor made before the loop."""

    entry = catalogue.SLICE_WRITE_IN_LOOP

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such write whose right side is shown to have a graph."""
        if Part.WRITE not in function.scope.parts:
            return
        loops = {loop.identity: loop for loop in function.loops()}
        seen: set[int] = set()
        for event in function.events():
            if not isinstance(event, InPlace) or not event.loops or id(event.node) in seen:
                continue
            item = _item_of(event)
            if item is None or event.mode is GradMode.DISABLED:
                continue
            loop = loops[event.loops[-1]]
            if loop.runs_once or not _is_indexed_by(item, loop):
                continue
            if not is_preallocated(event.values, function, outside=loop.identity):
                continue
            if _reads(event.source, item.value):
                continue
            if not _has_graph(event.written) and not _moves_features(event, function):
                continue
            if is_for_evaluation(function, event):
                continue
            seen.add(id(event.node))
            target = source_of(function.module, item.value)
            yield Violation(
                event.node,
                f"each write to a slice of `{target}` adds a node that copies all of it in "
                "backward: time and memory grow with the square of the length",
                Severity.NOTE if _may_be_number(event) or _draws(loop) else Severity.WARNING,
                "append to a list and use torch.stack or torch.cat after the loop",
                ((loop.node, "in this loop"),),
            )


def _item_of(write: InPlace) -> cst.Subscript | None:
    """Return the item that a statement assigns or adds to."""
    node = write.node.target if type(write.node) is cst.AugAssign else write.node
    return node if type(node) is cst.Subscript else None


def _is_indexed_by(node: cst.Subscript, loop: Loop) -> bool:
    """Tell whether an index is made of what the loop counts."""
    stack: list[cst.CSTNode] = list(node.slice)
    while stack:
        current = stack.pop()
        if type(current) is cst.Name and current.value in loop.targets:
            return True
        stack.extend(child_list(current))
    return False


def _moves_features(event: InPlace, function: FunctionModel) -> bool:
    """Tell whether a module's forward moves its own argument into a tensor made like it.

    What a layer is given has a graph, save for numbers, masks and the like, which say so.
    """
    scopes = function.module.scopes
    scope = function.scope
    if not scope.name.endswith(".forward") or not scopes.derives_from(scope.owner, "torch.nn."):
        return False
    source = event.source
    while isinstance(source, (cst.Subscript, cst.Call, cst.Attribute)):
        source = source.func if isinstance(source, cst.Call) else source.value
    if type(source) is not cst.Name or isinstance(scope.node, cst.Module):
        return False
    name = source.value
    held = function.bindings.get(name, frozenset())
    if not held or any(value.origin is not Origin.ARGUMENT for value in held):
        return False
    if name == scope.first_parameter or _NO_FEATURES.search(name.lower()):
        return False
    return all(_made_like(value.node, name) for value in event.values)


def _made_like(node: cst.CSTNode | None, name: str) -> bool:
    """Tell whether a factory call has the type of a name: `x.new_zeros(3)`, `zeros_like(x)`."""
    if type(node) is not cst.Call or keyword(node, "dtype") is not None:
        return False
    func = node.func
    if type(func) is cst.Attribute and func.attr.value.startswith("new_"):
        return dotted_name(func.value) == name
    first = positional(node)[:1]
    is_like = (dotted_name(func) or "").endswith("_like")
    return is_like and bool(first) and dotted_name(first[0]) == name


_NO_FEATURES = re.compile(
    r"(?:^|_)(?:ids?|idx|ind(?:ex|ices)?|masks?|labels?|tok(?:en)?s?|len(?:gth)?s?|targets?|tgt"
    r"|pos(?:ition)?s?|steps?|num|n|k|size|shape|durations?|t|y|prev_output.*|src|tags?)(?:_|$)"
)


def _reads(source: cst.CSTNode | None, base: cst.BaseExpression) -> bool:
    """Tell whether the right side reads the tensor itself: a recurrence, with a rule of its own."""
    name = dotted_name(base)
    return source is not None and any(
        type(node) is cst.Subscript and dotted_name(node.value) == name for node in walk(source)
    )


def _may_be_number(event: InPlace) -> bool:
    """Tell whether what is written may be a number for a log: a loss that a model returns."""
    is_sure = any(value.kind is not Kind.UNKNOWN for value in event.written)
    return not is_sure and "loss" in last_word(dotted_name(event.source)).lower()


def _draws(loop: Loop) -> bool:
    """Tell whether a loop draws what it goes on with, as who generates or acts does.

    No gradient goes through a draw, and who calls such a function mostly records nothing.
    """
    return any(
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value in _DRAWING
        for node in walk(loop.node)
    )


_DRAWING = frozenset({"sample", "multinomial"})


def _has_graph(values: Values) -> bool:
    with_graph = {Kind.HISTORY, Kind.LEAF, Kind.LEAF_VIEW}
    return any(value.kind in with_graph or value.through for value in values)
