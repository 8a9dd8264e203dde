"""Find networks that are to follow another one, and are that other one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, last_word, place_name, walk
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["followers", "parameters_of", "replaced_followers", "same_module", "second_names"]


def second_names(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a network that follows another is given that other one itself."""
    pairs = followers(function.module)
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


def replaced_followers(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a network that was made as one of its own gives its name to the one it follows.

    As when a target network is brought up to date: it has its own parameters until then.
    """
    if function.scope.name.rpartition(".")[2] == "__init__":
        return
    scope = function.scope
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        pairs = assigned_pairs(node)
        if len(pairs) != 1:
            continue  # the two are exchanged
        ((target, value),) = pairs
        name, other = dotted_name(target), same_module(value, function)
        if name is None or other is None or name == other:
            continue
        is_own = scope.owner is not None and name.startswith(f"{scope.first_parameter}.")
        around = [*scope.owner.methods.values()] if is_own and scope.owner else [scope]
        if not any(_follows(name, other, each) for each in around):
            continue
        made = _made_as_own(name, around)
        if made is not None and not _is_choice(node, function):
            yield Violation(
                node,
                f"from here on `{name}` is the same object as `{other}`, which it is to follow: "
                "both move with each step, and to copy the parameters changes nothing",
                Severity.WARNING,
                f"copy the parameters: `{name}.load_state_dict({other}.state_dict())`",
                ((made, "made as a network of its own"),),
            )


def _follows(name: str, other: str, scope: FunctionScope) -> bool:
    """Return whether a function loads a network with the parameters of another."""
    return (
        "load_state_dict" in scope.words
        and last_word(name) in scope.words
        and any(
            (name, other) in _copied(node)
            for node in scope.nodes_of(cst.Call)
            if last_word(dotted_name(node.func)) == "load_state_dict"
        )
    )


def _made_as_own(name: str, around: Iterable[FunctionScope]) -> cst.CSTNode | None:
    """Return where a network is made by a call."""
    made = (
        value
        for scope in around
        for target, value in scope.assignments
        if dotted_name(target) == name and type(value) is cst.Call
    )
    return next(made, None)


def _is_choice(node: cst.CSTNode, function: FunctionModel) -> bool:
    """Return whether a statement is what one arm of an ``if`` does where the other one copies."""
    return any(
        branch.orelse is not None
        and any(each is node for each in walk(branch))
        and any(_copied(each) for each in walk(branch) if type(each) is cst.Call)
        for branch in function.scope.nodes_of(cst.If)
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
                source = "" if name in made else same_module(value, function) or ""
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


def same_module(value: cst.BaseExpression, function: FunctionModel) -> str | None:
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


def followers(module: ModuleModel) -> set[frozenset[str]]:
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


def _copied(call: cst.Call) -> list[tuple[str, str]]:
    """Return the pairs of networks of which one is loaded, or gone through, with the other."""
    if type(call.func) is cst.Attribute and call.func.attr.value == "load_state_dict":
        owner, state = dotted_name(call.func.value), call.args[0].value if call.args else None
        other = _owner_of(state, {"state_dict"})
        if owner is not None and other is not None:
            return [(owner, other)]
    elif dotted_name(call.func) == "zip" and len(call.args) == _PAIR:
        one, other = (parameters_of(each.value) for each in call.args)
        if one is not None and other is not None:
            return [(one, other)]
    return []


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
