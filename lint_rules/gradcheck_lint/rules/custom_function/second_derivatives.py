"""Find second derivatives that are another one: the first again, or a sum over its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional, walk
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["wrong_derivatives"]


class _Derivative(NamedTuple):
    """``name = torch.autograd.grad(of, by, ...)[0]``, or by a function of the file."""

    name: str
    call: cst.Call
    of: str
    by: str


def wrong_derivatives(function: FunctionModel) -> Iterator[Violation]:
    """Yield each second derivative that is the first one again, or has mixed ones in it."""
    if not function.module.mentions(b"autograd"):
        return
    known = list(_derivatives(function))
    for place, later in enumerate(known):
        for first in known[:place]:
            if (later.of, later.by) == (first.of, first.by):
                if _is_named_after(first, later) and _is_once(first, later, function):
                    yield Violation(
                        later.call,
                        f"`{later.name}` is the derivative of `{later.of}` by `{later.by}` again, "
                        f"as `{first.name}` is: nothing is differentiated twice",
                        Severity.WARNING,
                        f"differentiate `{first.name}`",
                        ((first.call, "the same derivative"),),
                    )
            elif (later.of, later.by) == (first.name, first.by) and _sums_columns(later, function):
                yield Violation(
                    later.call,
                    f"`{later.of}` has a column for each column of `{later.by}`, and all of them "
                    f"are differentiated at once: a column of `{later.name}` is a sum of second "
                    "derivatives, the mixed ones among them",
                    Severity.WARNING,
                    f"differentiate one column: `{later.of}[:, 0:1]`",
                    ((first.call, "the first derivatives"),),
                )


def _derivatives(function: FunctionModel) -> Iterator[_Derivative]:
    """Yield the derivatives that a function gives a name, each of a name by a name."""
    for node in function.scope.nodes_of(cst.Assign):
        target: cst.BaseExpression = node.targets[0].target
        value = node.value
        if type(target) is cst.Tuple and len(target.elements) == 1:
            target = target.elements[0].value
        elif type(value) is cst.Subscript:
            value = value.value
        name = dotted_name(target)
        given = positional(value) if type(value) is cst.Call else []
        if name is None or len(given) < 2 or not _differentiates(value, function):  # noqa: PLR2004
            continue
        assert type(value) is cst.Call
        of, by = dotted_name(given[0]), dotted_name(given[1])
        if of is not None and by is not None:
            yield _Derivative(name, value, of, by)


def _differentiates(call: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether a call gives the derivative of its first argument by its second."""
    assert type(call) is cst.Call
    if function.module.scopes.resolve_import(dotted_name(call.func) or "") == _GRAD:
        return True
    event = function.call_at(call)
    called = None if event is None else event.function
    if called is None or called.owner is not None or type(called.node) is not cst.FunctionDef:
        return False
    names = [each.name.value for each in called.node.params.params[:2]]
    inside = [
        node
        for node in called.nodes_of(cst.Call)
        if function.module.scopes.resolve_import(dotted_name(node.func) or "") == _GRAD
    ]
    return len(inside) == 1 and [dotted_name(each) for each in positional(inside[0])[:2]] == names


_GRAD = "torch.autograd.grad"


def _is_named_after(first: _Derivative, later: _Derivative) -> bool:
    """Return whether a name says of one that it is a derivative of the other: u_x, u_xx."""
    return first.name != later.name and (
        later.name.startswith(first.name) or later.name.endswith(first.name)
    )


def _is_once(first: _Derivative, later: _Derivative, function: FunctionModel) -> bool:
    """Return whether both are of the same things, on every path."""
    targets = [dotted_name(target) for target, _ in function.scope.assignments]
    if any(targets.count(name) > 1 for name in (first.of, first.by, first.name, later.name)):
        return False
    calls = {id(first.call), id(later.call)}
    return not any(
        not calls.isdisjoint(map(id, walk(node))) for node in function.scope.nodes_of(cst.If)
    )


def _sums_columns(later: _Derivative, function: FunctionModel) -> bool:
    """Return whether a whole gradient of several columns is differentiated, and a column used."""
    given = positional(later.call)
    ones = given[2] if len(given) > 2 else keyword(later.call, "grad_outputs")  # noqa: PLR2004
    is_plain = type(ones) is cst.Call and last_word(dotted_name(ones.func)) in {"ones_like", "ones"}
    columns = {name: set(_columns(name, function)) for name in (later.of, later.name)}
    return is_plain and bool(columns[later.name]) and bool(set().union(*columns.values()) - {"0"})


def _columns(name: str, function: FunctionModel) -> Iterator[str]:
    """Yield the first of the columns that are taken of a matrix, as ``x[:, 1:2]`` does."""
    for node in function.scope.nodes_of(cst.Subscript):
        if dotted_name(node.value) != name or len(node.slice) != 2:  # noqa: PLR2004 - a matrix
            continue
        column = node.slice[1].slice
        if type(column) is cst.Index and type(column.value) is cst.Integer:
            yield column.value.value
        elif type(column) is cst.Slice and column.upper is not None:
            yield "0" if column.lower is None else function.module.code(column.lower)
        elif type(column) is cst.Slice and column.lower is not None:
            yield function.module.code(column.lower)
