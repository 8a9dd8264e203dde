"""Find which layers follow one another in the sequences that a function makes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.scopes import names_below
from gradcheck_lint.model.syntax import (
    boolean,
    child_list,
    dotted_name,
    first_word,
    keyword,
    positional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

INPLACE_PLACES: Final = {
    **dict.fromkeys(("ReLU", "ReLU6", "SiLU", "SELU", "Mish", "Hardswish", "Hardsigmoid"), 0),
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"), 1),
    **dict.fromkeys(("FeatureAlphaDropout", "LeakyReLU", "ELU", "CELU"), 1),
    **dict.fromkeys(("Hardtanh", "Threshold", "RReLU"), 2),
}
"""At which place layers of torch take ``inplace``."""


def pairs_of_layers(function: FunctionModel) -> Iterator[tuple[cst.Call, cst.Call]]:
    """Yield each two calls that make layers of which one is given what the other returns."""
    for layers in _sequences(function):
        for before, layer in itertools.pairwise(layers):
            if type(before) is cst.Call and type(layer) is cst.Call:
                yield before, layer


def is_inplace(layer: cst.Call, name: str) -> bool:
    """Tell whether a layer of this class of torch is made to overwrite its input."""
    wanted = keyword(layer, "inplace")
    place, handed = INPLACE_PLACES.get(name), positional(layer)
    if wanted is None and place is not None and len(handed) > place:
        wanted = handed[place]
    return boolean(wanted) is True


def _sequences(function: FunctionModel) -> Iterator[Sequence[cst.BaseExpression | None]]:
    """Yield the layers of each sequence, or of a part of one; None where one isn't spelt out."""
    grown: set[str] = set()
    for node in function.scope.nodes_of(cst.Call, cst.Assign):
        if type(node) is cst.Call and _is_sequential(node, function):
            yield _layers_of(node, function)
            grown.update(dotted_name(each.value) or "" for each in node.args if each.star == "*")
        elif type(node) is cst.Assign and _is_sequential(node.value, function):
            grown.update(dotted_name(each.target) or "" for each in node.targets)
    if grown - {""}:
        yield from _Growth(grown - {""}, function).parts()


def _is_sequential(node: cst.CSTNode, function: FunctionModel) -> bool:
    if type(node) is not cst.Call:
        return False
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    return name == "torch.nn.Sequential"


def _layers_of(node: cst.Call, function: FunctionModel) -> list[cst.BaseExpression | None]:
    found: list[cst.BaseExpression | None] = []
    for argument in node.args:
        value = argument.value
        if argument.star:
            shown = isinstance(value, (cst.List, cst.Tuple))
            found.extend(_elements(value) if shown else [None])
        else:
            found.extend(_named_layers(value, function) or [value])
    return found


def _named_layers(
    node: cst.BaseExpression, function: FunctionModel
) -> list[cst.BaseExpression | None]:
    """Return the layers of ``OrderedDict([("name", layer), ...])``."""
    if type(node) is not cst.Call or not node.args:
        return []
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    if name != "collections.OrderedDict":
        return []
    given = node.args[0].value
    if type(given) is cst.Dict:
        return _elements(given)
    return [
        pair.elements[1].value if type(pair) is cst.Tuple and len(pair.elements) > 1 else None
        for pair in _elements(given)
    ]


def _elements(node: cst.BaseExpression) -> list[cst.BaseExpression | None]:
    """Return the elements of a display, None for starred ones."""
    if not isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
        return [None]
    return [
        None if isinstance(each, (cst.StarredElement, cst.StarredDictElement)) else each.value
        for each in node.elements
    ]


class _Growth:
    """Follow lists of layers, and sequences, that grow statement by statement."""

    def __init__(self, names: set[str], function: FunctionModel) -> None:
        self._names = names
        self._function = function

    def parts(self) -> Iterator[list[cst.BaseExpression | None]]:
        yield from self._parts_of(self._function.scope.body)

    def _parts_of(self, block: cst.CSTNode) -> Iterator[list[cst.BaseExpression | None]]:
        """Yield what grows in the statements of a block, one after the other."""
        last: dict[str, cst.BaseExpression | None] = {}
        for statement in getattr(block, "body", ()):
            if isinstance(statement, cst.BaseCompoundStatement):
                if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                    yield from self._parts_below(statement)
                self._forget(statement, last)
                continue
            is_line = type(statement) is cst.SimpleStatementLine
            for small in statement.body if is_line else (statement,):
                name, added, is_new = self._added(small)
                if name is None:
                    self._forget(small, last)
                elif added:
                    yield [None if is_new else last.get(name), *added]
                    last[name] = added[-1]

    def _parts_below(self, node: cst.CSTNode) -> Iterator[list[cst.BaseExpression | None]]:
        for child in child_list(node):
            if isinstance(child, cst.BaseSuite):
                yield from self._parts_of(child)
            elif isinstance(child, (cst.If, cst.Else, cst.BaseCompoundStatement)):
                yield from self._parts_below(child)

    def _forget(self, node: cst.CSTNode, last: dict[str, cst.BaseExpression | None]) -> None:
        """Know nothing more of what another statement may change."""
        words = set(names_below(node)) if last else set()
        for name in [known for known in last if first_word(known) in words]:
            del last[name]

    def _added(self, node: cst.CSTNode) -> tuple[str | None, list[cst.BaseExpression | None], bool]:
        """Return the list that grows, by which layers, and whether it's a new one."""
        if type(node) is cst.Assign and len(node.targets) == 1:
            name = dotted_name(node.targets[0].target)
            value = node.value
            if name in self._names:
                if isinstance(value, (cst.List, cst.Tuple)):
                    return name, _elements(value) or [None], True
                if _is_sequential(value, self._function):
                    assert type(value) is cst.Call
                    return name, _layers_of(value, self._function)[-1:] or [None], True
        elif type(node) is cst.AugAssign and type(node.operator) is cst.AddAssign:
            name = dotted_name(node.target)
            if name in self._names:
                return name, _elements(node.value), False
        elif type(node) is cst.Expr and type(node.value) is cst.Call:
            return self._added_by_call(node.value)
        return None, [], False

    def _added_by_call(
        self, node: cst.Call
    ) -> tuple[str | None, list[cst.BaseExpression | None], bool]:
        path, handed = dotted_name(node.func) or "", positional(node)
        name, _, method = path.rpartition(".")
        if name not in self._names or not handed:
            return None, [], False
        if method == "append":
            return name, [handed[0]], False
        if method == "extend":
            return name, _elements(handed[0]), False
        if method == "add_module" and len(handed) > 1:
            return name, [handed[1]], False
        return None, [], False
