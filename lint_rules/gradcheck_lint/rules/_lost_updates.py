"""Find updates that give the name of a loop another value, and no parameter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["lost_updates", "may_lose_updates"]

_OF_PARAMETERS: Final = frozenset({"parameters", "named_parameters"})
_MOST_HEADER: Final = 500
_TARGET: Final = re.compile(r"\bfor\b(.*?)\bin\b", re.DOTALL)
_WORD: Final = re.compile(r"\w+")
_ASSIGNS: Final = re.compile(r"[\s\\]*=(?!=)").match
_PART_OF_WORD: Final = re.compile(r"\w").match
_LOOPS: Final = (cst.For, cst.While)
_COMPREHENSIONS: Final = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


def may_lose_updates(function: FunctionModel) -> bool:
    """Tell whether the text of a function may bind the name of a loop to something else."""
    scope = function.scope
    if Part.LOOP not in scope.parts or scope.words.isdisjoint(_OF_PARAMETERS):
        return False
    text = scope.text
    return text is None or any(may_bind(text, name) for name in set(_names_of_loops(text)))


def may_bind(text: str, name: str) -> bool:
    """Tell whether a text may assign to a name; ``name=`` among arguments counts as well."""
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        if _ASSIGNS(text, end) is not None and _PART_OF_WORD(text[start - 1 : start]) is None:
            return True
        start = text.find(name, end)
    return False


def _names_of_loops(text: str) -> Iterator[str]:
    """Yield the words of the targets of the loops that may be over parameters."""
    start = text.find("parameters")
    while start >= 0:
        for target in _TARGET.findall(text, max(0, start - _MOST_HEADER), start):
            yield from _WORD.findall(target)
        start = text.find("parameters", start + 1)


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
    called = dotted_name(iterated.func) if isinstance(iterated, cst.Call) else None
    if not isinstance(iterated, cst.Call) or called is None:
        return
    word = called.rpartition(".")[2]
    if word == "parameters":
        if isinstance(target, cst.Name):
            yield target.value
        return
    if not isinstance(target, cst.Tuple):
        return
    targets = [element.value for element in target.elements]
    given = [argument.value for argument in iterated.args]
    if word == "named_parameters" and len(targets) == 2 and isinstance(targets[1], cst.Name):  # noqa: PLR2004 - name and parameter
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
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
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
    is_arithmetic = isinstance(value, cst.BinaryOperation)
    return is_arithmetic and any(_is_name(node, name) for node in walk(value))


def _is_read_elsewhere(nodes: Sequence[cst.CSTNode], loop: cst.For, name: str) -> bool:
    """Tell whether a name stands outside of a loop, but for what binds it to something else."""
    own = _below([loop, *(node for node in nodes if name in _bound_for_itself(node))])
    return any(_is_name(node, name) and id(node) not in own for node in nodes)


def _bound_for_itself(node: cst.CSTNode) -> frozenset[str]:
    """Return the names that a loop or a comprehension binds for what is in it."""
    if isinstance(node, cst.For):
        return frozenset(bound_names(node.target))
    if isinstance(node, _COMPREHENSIONS):
        return frozenset(bound_names(node.for_in.target))
    return frozenset()
