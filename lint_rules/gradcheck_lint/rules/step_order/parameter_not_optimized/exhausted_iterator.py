"""GCS307: optimizers that are given an iterator of parameters which something has gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.syntax import ASSIGNING, assigned_once, dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["used_up"]
_DRAINING: Final = frozenset(
    {"sum", "list", "tuple", "set", "len", "max", "min", "sorted", "dict", "frozenset"}
)
_COMPREHENSIONS: Final = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


def used_up(function: FunctionModel) -> Iterator[Violation]:
    """Yield the optimizers that get no parameters, since an iterator has none left."""
    if isinstance(function.scope.node, cst.Module) or "parameters" not in function.scope.words:
        return
    optimizers = [node for node in body_of(function.scope) if function.module.makes_optimizer(node)]
    nodes = list(walk(function.scope.node)) if optimizers else []
    for node in optimizers:
        assert isinstance(node, cst.Call)
        for name in _handed(node):
            made = _only_making(name, nodes)
            if made is None or not _is_iterator(made, name, function):
                continue
            between = nodes[nodes.index(made) + 1 : nodes.index(node)]
            drained = next((each for each in between if _drains(each, name)), None)
            if drained is not None and _comes_first(function, drained, node):
                yield _violation(node, name, drained)


def _violation(optimizer: cst.Call, name: str, drained: cst.CSTNode) -> Violation:
    return Violation(
        optimizer,
        f"`{name}` is an iterator that was gone through before: the optimizer gets none of its "
        "parameters",
        Severity.ERROR,
        f"make a list of it: `{name} = list(...)`",
        ((drained, "used up here"),),
    )


def _handed(call: cst.Call) -> Iterator[str]:
    """Yield the names of what an optimizer is given, also in groups that stand there."""
    for argument in call.args[:1]:
        if isinstance(argument.value, cst.Name):
            yield argument.value.value
        for node in walk(argument.value):
            if not isinstance(node, cst.DictElement) or not isinstance(node.value, cst.Name):
                continue
            if isinstance(node.key, cst.SimpleString) and node.key.raw_value == "params":
                yield node.value.value


def _only_making(name: str, nodes: Sequence[cst.CSTNode]) -> cst.CSTNode | None:
    """Return the one assignment of a name that nothing else binds."""
    made: list[cst.CSTNode] = []
    for node in nodes:
        if type(node) in ASSIGNING:
            target, _ = assigned_once(node)
            if isinstance(target, cst.Name) and target.value == name:
                made.append(node)
        elif isinstance(node, (cst.For, cst.CompFor, cst.NamedExpr, cst.AugAssign, cst.Param)):
            bound = node.name if isinstance(node, cst.Param) else node.target
            if any(isinstance(each, cst.Name) and each.value == name for each in walk(bound)):
                return None
    return made[0] if len(made) == 1 else None


def _is_iterator(made: cst.CSTNode, name: str, function: FunctionModel) -> bool:
    """Tell whether what is made can be gone through once."""
    _, value = assigned_once(made)
    if isinstance(value, cst.GeneratorExp):
        return True
    if not isinstance(value, cst.Call):
        return False
    if dotted_name(value.func) in {"filter", "map"}:
        return True
    return all_are(function.bindings.get(name, frozenset()), Kind.PARAMETERS) and not value.args


def _drains(node: cst.CSTNode, name: str) -> bool:
    """Tell whether something goes through all of an iterator."""
    if isinstance(node, cst.For):
        is_left = any(isinstance(each, (cst.Break, cst.Return)) for each in walk(node.body))
        return dotted_name(node.iter) == name and not is_left
    if not isinstance(node, cst.Call) or dotted_name(node.func) not in _DRAINING or not node.args:
        return False
    given = node.args[0].value
    if isinstance(given, _COMPREHENSIONS):
        given = given.for_in.iter
    return dotted_name(given) == name


def _comes_first(function: FunctionModel, first: cst.CSTNode, later: cst.CSTNode) -> bool:
    """Tell whether one statement runs before another one whenever that does."""
    around: cst.CSTNode = function.scope.node
    for block in walk(function.scope.node):
        is_block = isinstance(block, (cst.BaseSuite, cst.Lambda, cst.FunctionDef))
        if is_block and block is not around and any(node is first for node in walk(block)):
            around = block
    return any(node is later for node in walk(around))
