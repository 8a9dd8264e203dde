"""GCS409: frozen batch norm that train() puts back in training mode."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import (
    dotted_name,
    first_word,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.frozen_but_changed.frozen_midway import frozen_midway
from gradcheck_lint.rules.connectivity.frozen_but_changed.held_parts import (
    held_parts,
    switches,
    undone_for,
)
from gradcheck_lint.rules.connectivity.frozen_but_changed.masked_gradients import decayed_rows
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class FrozenButChanged(Rule):
    """Batch norm is put in evaluation mode once, and the training loop calls train()."""

    entry = catalogue.FROZEN_BUT_CHANGED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every eval() of batch norm or a frozen part that a later train() undoes."""
        module, scope = function.module, function.scope
        for rows in decayed_rows(function):
            yield Violation(
                rows.masked,
                "what has no gradient here is to stay as it is, and weight decay needs none: each "
                "step makes it smaller",
                Severity.WARNING if rows.is_known else Severity.NOTE,
                "give these parameters `weight_decay=0`, or restore the rows after each step",
                ((rows.optimizer, "this optimizer has weight decay"),),
            )
        for midway in frozen_midway(function):
            yield Violation(
                midway.node,
                "what is frozen here keeps its gradient, which is zero from then on: the optimizer "
                "goes on moving it, by its averages of earlier gradients and by weight decay",
                Severity.WARNING,
                "set `parameter.grad = None` for what is frozen, or leave out set_to_none=False",
                (
                    (midway.zeroing, "this leaves zeros"),
                    (midway.optimizer, "this optimizer has all parameters"),
                ),
            )
        if not module.matches(_HAS_MODES) or "eval" not in scope.words:
            return
        classes = module.scopes.classes.values()
        if scope.name.rpartition(".")[2] == "train" or any(
            "train" in each.methods and module.scopes.derives_from(each, "torch.nn.Module")
            for each in classes
        ):
            return
        if scope.name.rpartition(".")[2] == "__init__":
            yield from _parts_of_class(function)
        if not module.matches(_HAS_STATISTICS):
            return
        for call, part in _held_in_eval(function):
            for place in _places(function, call, part):
                undoing = _undone_by(function, place)
                if undoing is not None:
                    yield Violation(
                        call,
                        f"`{dotted_name(undoing.func)}()` puts these layers back in training mode, "
                        "after which batch norm follows the new data, frozen or not",
                        Severity.WARNING,
                        "put them in evaluation mode after each train(), or override train() to",
                        ((undoing, "undone here"),),
                    )
                    break


_HAS_STATISTICS: Final = re.compile(rb"BatchNorm|resnet|mobilenet|efficientnet|densenet|regnet")
_HAS_MODES: Final = re.compile(rb"Dropout|" + _HAS_STATISTICS.pattern)


def _parts_of_class(function: FunctionModel) -> Iterator[Violation]:
    """Yield the frozen parts of a module that train() of the whole puts back in training mode."""
    for call, part in held_parts(function):
        undoing = undone_for(function, part)
        if undoing is not None:
            yield Violation(
                call,
                f"`{dotted_name(undoing.func)}()` puts `{part}` back in training mode with the "
                "rest: dropout in it is active, and batch norm follows the new data, frozen or not",
                Severity.WARNING,
                f"override train(), and call `{part}.eval()` there",
                ((undoing, "undone here"),),
            )


class _Place(NamedTuple):
    """Where a model has its batch norm put in evaluation mode, and the model's name."""

    function: FunctionModel
    node: cst.CSTNode
    model: str


def _held_in_eval(function: FunctionModel) -> Iterator[tuple[cst.Call, str]]:
    """Yield each ``eval()`` of batch norm alone or of a frozen part, and what it is a part of."""
    for loop in function.scope.nodes_of(cst.For):
        modules = loop.iter.func if type(loop.iter) is cst.Call else None
        if type(modules) is cst.Attribute and modules.attr.value in {"modules", "children"}:
            for test in walk(loop.body):
                if type(test) is cst.If and "BatchNorm" in function.module.text(test.test):
                    for call in walk(test.body):
                        if switches(call) is False:
                            yield call, dotted_name(modules.value) or ""  # type: ignore[misc]
    frozen = {
        dotted_name(loop.iter.func.value)
        for loop in function.scope.nodes_of(cst.For)
        if type(loop.iter) is cst.Call
        and type(loop.iter.func) is cst.Attribute
        and loop.iter.func.attr.value == "parameters"
        and "requires_grad" in function.module.code(loop.body)
    }
    for call in function.scope.nodes_of(cst.Call):
        if switches(call) is False:
            assert type(call.func) is cst.Attribute
            name = dotted_name(call.func.value)
            if name in frozen and name is not None and "." in name:
                yield call, name


def _places(function: FunctionModel, call: cst.Call, part: str) -> Iterator[_Place]:
    """Yield where this is done to a whole model that has a name: here, or by whoever calls it."""
    scope = function.scope
    root = first_word(part)
    if root not in scope.parameters and "." in part:
        yield _Place(function, call, root)
        return
    name = scope.name.rpartition(".")[2]
    for other in function.module.functions():
        for node in other.scope.nodes_with_lambdas:
            if type(node) is cst.Call and last_word(dotted_name(node.func)) == name:
                is_own = scope.owner is not None and root == scope.first_parameter
                given = positional(node)
                target = node.func.value if type(node.func) is cst.Attribute else None
                model = target if is_own else given[0] if given else None
                if dotted_name(model) is not None:
                    yield _Place(other, node, dotted_name(model) or "")
    if scope.owner is None and root in scope.parameters and "." in part:
        yield _Place(function, call, root)


def _undone_by(function: FunctionModel, place: _Place) -> cst.Call | None:
    """Return the ``train()`` of the whole model in a later step of training."""
    name = function.scope.name.rpartition(".")[2]
    found: cst.Call | None = None
    for other in function.module.functions():
        if not other.module.near.has(other.scope, BACKWARD):
            continue
        nodes = list(other.scope.nodes)
        for index, node in enumerate(nodes):
            if switches(node) is not True:
                continue
            assert type(node) is cst.Call
            assert type(node.func) is cst.Attribute
            model = dotted_name(node.func.value) or ""
            if any(_is_part_in_eval(later, model) for later in nodes[index:]):
                return None
            if last_word(model) != last_word(place.model):
                continue
            is_same = other is place.function
            if name in other.scope.words and not is_same:
                return None
            if is_same and (index < _index(nodes, place.node) or _share_loop(nodes, node, place)):
                return None
            if found is None or model == place.model:
                found = node
    return found


def _is_part_in_eval(node: cst.CSTNode, model: str) -> bool:
    """Return whether a part of a model, or something that is not known, is put in eval mode."""
    if switches(node) is not False:
        return False
    assert type(node) is cst.Call
    assert type(node.func) is cst.Attribute
    name = dotted_name(node.func.value) or ""
    return name.startswith(f"{model}.") or name != model


def _index(nodes: list[cst.CSTNode], node: cst.CSTNode) -> int:
    return next((index for index, each in enumerate(nodes) if each is node), -1)


def _share_loop(nodes: list[cst.CSTNode], node: cst.CSTNode, place: _Place) -> bool:
    """Return whether a loop has both, so that what is undone is done again."""
    return any(
        {id(node), id(place.node)} <= {id(inner) for inner in walk(loop)}
        for loop in nodes
        if isinstance(loop, (cst.For, cst.While))
    )
