"""Find what a backward computes only if ``ctx.needs_input_grad`` says that it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.function_class import elements_of
from gradcheck_lint.model.syntax import (
    assigned_once,
    bound_names,
    dotted_name,
    integer,
    is_none,
    small_statements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.scopes import FunctionScope


@dataclass(frozen=True, slots=True)
class Guard:
    """A question whether input ``index`` needs a gradient, and what is computed if it does.

    ``names`` are assigned there, ``places`` are where it is returned at once.
    """

    test: cst.BaseExpression
    index: int
    names: frozenset[str] = frozenset()
    places: frozenset[int] = frozenset()


def guards_in(scope: FunctionScope) -> Iterator[Guard]:
    """Yield every ``if ctx.needs_input_grad[n]:`` and ``g if ctx.needs_input_grad[n] else None``.

    ``need_x, need_w = ctx.needs_input_grad`` gives the answers names.
    """
    nodes = scope.nodes
    answers = _named_answers(nodes)
    for node in nodes:
        if type(node) is cst.If and node.orelse is None:
            index = _asked(node.test, answers)
            if index is not None:
                yield Guard(node.test, index, names=frozenset(_assigned(node)))
        elif isinstance(node, (cst.Assign, cst.AnnAssign)):
            target, value = assigned_once(node)
            index = _asked_in_place(value, answers)
            if index is not None and type(target) is cst.Name:
                assert type(value) is cst.IfExp
                yield Guard(value.test, index, names=frozenset({target.value}))
        elif type(node) is cst.Return:
            for place, element in enumerate(elements_of(node.value)):
                if type(element) is cst.StarredElement:
                    break
                index = _asked_in_place(element, answers)
                if index is not None:
                    assert type(element) is cst.IfExp
                    yield Guard(element.test, index, places=frozenset({place}))


def _named_answers(nodes: tuple[cst.CSTNode, ...]) -> dict[str, int]:
    """Return the names that hold the elements of ``needs_input_grad``, each with its index."""
    found: dict[str, int] = {}
    for node in nodes:
        target, value = assigned_once(node)
        if (
            isinstance(target, (cst.Tuple, cst.List))
            and type(value) is cst.Attribute
            and value.attr.value == "needs_input_grad"
        ):
            for place, element in enumerate(target.elements):
                if type(element) is cst.StarredElement:
                    break
                name = dotted_name(element.value)
                if name is not None and name != "_":
                    found[name] = place
    bound = [name for node in nodes for name in _bound_by(node)]
    return {name: place for name, place in found.items() if bound.count(name) == 1}


def _bound_by(node: cst.CSTNode) -> Iterator[str]:
    if type(node) is cst.Assign:
        for target in node.targets:
            yield from bound_names(target.target)
    elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For)):
        yield from bound_names(node.target)


def _asked_in_place(node: cst.BaseExpression | None, answers: dict[str, int]) -> int | None:
    """Return n of ``g if ctx.needs_input_grad[n] else None``."""
    if type(node) is not cst.IfExp or not is_none(node.orelse) or is_none(node.body):
        return None
    return _asked(node.test, answers)


def _asked(test: cst.BaseExpression, answers: dict[str, int]) -> int | None:
    """Return n of ``ctx.needs_input_grad[n]``, or of a name that holds it."""
    if type(test) is cst.Name:
        return answers.get(test.value)
    if type(test) is not cst.Subscript or type(test.value) is not cst.Attribute:
        return None
    if test.value.attr.value != "needs_input_grad" or len(test.slice) != 1:
        return None
    index = test.slice[0].slice
    return integer(index.value) if type(index) is cst.Index else None


def _assigned(node: cst.If) -> set[str]:
    return {
        name
        for small in small_statements(node.body)
        if type(small) is cst.Assign
        for target in small.targets
        for name in bound_names(target.target)
        if "." not in name
    }
