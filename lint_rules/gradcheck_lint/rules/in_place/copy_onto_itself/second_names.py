"""Find networks that are to follow another one, and are that other one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, last_word, place_name
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["parameters_of", "second_names"]


def second_names(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a network that follows another is given that other one itself."""
    pairs = _followers(function.module)
    words = frozenset[str]().union(*pairs)
    if words.isdisjoint(function.scope.words | function.scope.parameters):
        return
    made = _made(function)
    names = [name for name in made if last_word(name) in words]
    for name, other in itertools.combinations(names, 2):
        if frozenset({last_word(name), last_word(other)}) not in pairs:
            continue
        is_same = made[other].source in {name, made[name].source}
        if is_same and made[other].source and not _is_set_elsewhere(function, other):
            yield Violation(
                made[other].node,
                f"`{other}` is the same object as `{name}`, and one is to follow the other: both "
                "move with each step, and to copy the parameters changes nothing",
                Severity.WARNING,
                "make it of `copy.deepcopy(...)`",
                ((made[name].node, f"`{name}` is made here"),),
            )


class _Made(NamedTuple):
    """Where a name is bound, and what it is another name of, if anything."""

    node: cst.CSTNode
    source: str


def _made(function: FunctionModel) -> dict[str, _Made]:
    """Return what each name is another name of; nothing for one that is bound again."""
    made: dict[str, _Made] = {
        name: _Made(function.scope.node, "") for name in function.scope.parameters
    }
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        for target, value in assigned_pairs(node):
            name = dotted_name(target)
            if name is not None:
                source = "" if name in made else _same_module(value, function) or ""
                made[name] = _Made(node, source)
    return made


def _is_set_elsewhere(function: FunctionModel, name: str) -> bool:
    """Return whether another method gives an attribute something else."""
    owner = function.scope.owner
    if "." not in name or owner is None:
        return False
    return any(
        dotted_name(target) == name
        for method in owner.methods.values()
        if method is not function.scope
        for target, _ in method.assignments
    )


def _same_module(value: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Return the place of a module that a value is, itself or with the same parameters."""
    while type(value) is cst.Call:
        name = function.module.scopes.resolve_import(dotted_name(value.func) or "")
        if name == "copy.copy" and len(value.args) == 1:
            value = value.args[0].value
        elif type(value.func) is cst.Attribute and value.func.attr.value in _ITSELF:
            value = value.func.value
        else:
            return None
    return place_name(value)


_ITSELF: Final = SAME_MODULE_METHODS | {"eval", "train"}


def _followers(module: ModuleModel) -> set[frozenset[str]]:
    """Return the last names of each two networks of which one is given the other's parameters."""
    if "followers" not in module.memo:
        module.memo["followers"] = {
            frozenset({last_word(one), last_word(other)})
            for function in module.functions()
            for node in function.scope.nodes_of(cst.Call)
            for one, other in _copied(node)
            if last_word(one) != last_word(other)
        }
    found: set[frozenset[str]] = module.memo["followers"]
    return found


def _copied(call: cst.Call) -> Iterator[tuple[str, str]]:
    """Yield the pairs of networks of which one is loaded, or gone through, with the other."""
    if type(call.func) is cst.Attribute and call.func.attr.value == "load_state_dict":
        owner, state = dotted_name(call.func.value), call.args[0].value if call.args else None
        other = _owner_of(state, {"state_dict"})
        if owner is not None and other is not None:
            yield owner, other
    elif dotted_name(call.func) == "zip" and len(call.args) == _PAIR:
        one, other = (parameters_of(each.value) for each in call.args)
        if one is not None and other is not None:
            yield one, other


_PAIR: Final = 2
_PARAMETERS: Final = frozenset({"parameters", "named_parameters", "buffers"})


def parameters_of(node: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()``, and of a list of them."""
    if type(node) is cst.Call and dotted_name(node.func) in {"list", "tuple"} and node.args:
        node = node.args[0].value
    return _owner_of(node, _PARAMETERS)


def _owner_of(node: cst.BaseExpression | None, methods: frozenset[str] | set[str]) -> str | None:
    """Return ``model`` of ``model.parameters()``."""
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        return dotted_name(node.func.value) if node.func.attr.value in methods else None
    return None
