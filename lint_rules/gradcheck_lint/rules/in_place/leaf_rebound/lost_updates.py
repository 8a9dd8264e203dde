"""Find updates that give the name of a loop another value, and no parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["lost_updates"]
_LOOPS: Final = (cst.For, cst.While)
_COMPREHENSIONS: Final = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


def lost_updates(function: FunctionModel) -> Iterator[tuple[cst.Assign, str]]:
    """Yield ``p = p - lr * p.grad`` and its name where ``p`` is that of a loop over parameters.

    Only where nobody reads the new value: what is computed there is lost.
    """
    # A look at the syntax is enough: to read the function would take a hundred times as long.
    nodes = tuple(function.scope.nodes_with_lambdas)
    for node in nodes:
        if type(node) is not cst.For:
            continue
        for name in _parameters_among(node.target, node.iter):
            update = _last_update(node, name)
            if update is not None and not _is_read_elsewhere(nodes, node, name):
                yield update, name


def _parameters_among(target: cst.BaseExpression, iterated: cst.BaseExpression) -> Iterator[str]:
    """Yield the names in the target of a loop that hold parameters."""
    called = dotted_name(iterated.func) if type(iterated) is cst.Call else None
    if type(iterated) is not cst.Call or called is None:
        return
    word = called.rpartition(".")[2]
    if word == "parameters":
        if type(target) is cst.Name:
            yield target.value
        return
    if type(target) is not cst.Tuple:
        return
    targets = [element.value for element in target.elements]
    given = [argument.value for argument in iterated.args]
    if word == "named_parameters" and len(targets) == 2 and type(targets[1]) is cst.Name:  # noqa: PLR2004 - name and parameter
        yield targets[1].value
    elif called == "enumerate" and len(targets) == 2 and given:  # noqa: PLR2004 - number and item
        yield from _parameters_among(targets[1], given[0])
    elif called == "zip":
        for each, source in zip(targets, given, strict=False):
            yield from _parameters_among(each, source)


def _last_update(loop: cst.For, name: str) -> cst.Assign | None:
    """Return the assignment that computes a name from itself, if nothing after it reads that."""
    order = list(walk(loop.body))
    # What an inner loop computes, its next iteration may read.
    inner = _below(node for node in order if isinstance(node, _LOOPS))
    update: cst.Assign | None = None
    unread: set[int] = set()
    for node in order:
        if type(node) is cst.Assign and len(node.targets) == 1:
            target = dotted_name(node.targets[0].target)
            if target == name and update is None:
                if id(node) in inner or not _computes(node.value, name):
                    return None
                update = node
                unread |= _below([node])
            elif target == f"{name}.grad":
                unread |= _below([node.targets[0]])
        elif update is not None and _is_name(node, name) and id(node) not in unread:
            return None
    return update


def _below(nodes: Iterable[cst.CSTNode]) -> set[int]:
    return {id(below) for node in nodes for below in walk(node)}


def _is_name(node: cst.CSTNode, name: str) -> bool:
    return type(node) is cst.Name and node.value == name


def _computes(value: cst.BaseExpression, name: str) -> bool:
    """Tell whether this is arithmetic with what the name holds."""
    is_arithmetic = type(value) is cst.BinaryOperation
    return is_arithmetic and any(_is_name(node, name) for node in walk(value))


def _is_read_elsewhere(nodes: Sequence[cst.CSTNode], loop: cst.For, name: str) -> bool:
    """Tell whether a name stands outside of a loop, but for what binds it to something else."""
    own = _below([loop, *(node for node in nodes if name in _bound_for_itself(node))])
    return any(_is_name(node, name) and id(node) not in own for node in nodes)


def _bound_for_itself(node: cst.CSTNode) -> frozenset[str]:
    """Return the names that a loop or a comprehension binds for what is in it."""
    if type(node) is cst.For:
        return frozenset(bound_names(node.target))
    if isinstance(node, _COMPREHENSIONS):
        return frozenset(bound_names(node.for_in.target))
    return frozenset()
