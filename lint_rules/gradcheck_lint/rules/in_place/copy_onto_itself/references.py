"""Find references and teachers that are the trained network itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Call, Forward, GradMode
from gradcheck_lint.model.syntax import dotted_name, is_none, last_word, walk
from gradcheck_lint.rules._rule import Violation
from gradcheck_lint.rules.in_place.copy_onto_itself.second_names import followers, same_module
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["own_references"]

_REFERENCE: Final = re.compile(
    r"(?:^|_)(?:ref|reference|teacher|target|tgt|frozen|old|prev|previous|anchor)(?:_|$)"
)
"""How a network is called that is to stay, or to follow, while another one is trained."""


def own_references(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a reference is given the network that an optimizer of the file moves.

    It runs where nothing is recorded, in a function that runs the trained one with a graph.
    """
    module, scope = function.module, function.scope
    names = [dotted_name(target) for target, _ in scope.assignments]
    if not any(_REFERENCE.search(last_word(name)) for name in names):
        return
    if module.mentions(b"adapter", b"lora", b"LoRA", b"peft"):
        return  # of one network, with what is put into it and without
    for name in dict.fromkeys(names):
        known = None if name is None else _source(name, function)
        if name is None or known is None or not _REFERENCE.search(last_word(name)):
            continue
        root, place = known
        if "." not in name and any(_root(each, function) == name for each in names if each):
            continue  # an attribute has it afterwards
        for other in dict.fromkeys([*names, root]):
            if other is None or _REFERENCE.search(last_word(other)):
                continue
            if _root(other, function) != root or ("." in name) != ("." in other):
                continue
            if frozenset({last_word(name), last_word(other)}) in followers(module):
                continue  # the other question about them
            if not _is_trained({last_word(other), last_word(root)}, module):
                continue
            if _are_compared(name, other, function):
                yield Violation(
                    place,
                    f"`{name}` is the same network as `{other}`, which an optimizer moves: what "
                    "is to stay, or to follow, changes with each step",
                    Severity.WARNING,
                    f"make it of `copy.deepcopy({root})`",
                )
                return


def _source(name: str, function: FunctionModel) -> tuple[str, cst.BaseExpression] | None:
    """Return what a name is another name of, and what gives it to the reference."""
    found: tuple[str, cst.BaseExpression] | None = None
    for _ in range(4):
        given = [
            value for target, value in function.scope.assignments if dotted_name(target) == name
        ]
        if len(given) != 1:
            break
        is_argument = name in function.scope.parameters
        source = same_module(given[0], function)
        if source is None or (is_argument and not _is_fallback(name, given[0], function)):
            return None
        name, place = source, given[0]
        found = (
            name,
            place if found is None or _REFERENCE.search(last_word(found[0])) else found[1],
        )
    return found


def _root(name: str, function: FunctionModel) -> str:
    known = _source(name, function)
    return name if known is None else known[0]


def _is_fallback(name: str, value: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether an argument is given something where it is None."""
    return any(
        type(node.test) is cst.Comparison
        and dotted_name(node.test.left) == name
        and is_none(node.test.comparisons[0].comparator)
        and any(each is value for each in walk(node.body))
        for node in function.scope.nodes_of(cst.If)
    )


def _is_trained(words: set[str], module: ModuleModel) -> bool:
    """Return whether an optimizer of the file is given the parameters of what is called so."""
    return any(
        type(node) is cst.Attribute
        and node.attr.value in {"parameters", "named_parameters"}
        and last_word(dotted_name(node.value)) in words
        for call in module.nodes_of(cst.Call)
        if module.makes_optimizer(call)
        for node in walk(call)
    )


def _are_compared(name: str, other: str, function: FunctionModel) -> bool:
    """Return whether one function runs both, the first without a graph and the other with one."""
    owner = function.scope.owner
    is_own = "." in name and owner is not None
    for scope in owner.methods.values() if is_own and owner is not None else [function.scope]:
        if not {last_word(name), last_word(other)} <= scope.words:
            continue
        known = function.module.function(scope)
        modes: dict[str, set[GradMode]] = {name: set(), other: set()}
        for event in known.events():
            if isinstance(event, (Call, Forward)) and type(event.node) is cst.Call:
                given = [dotted_name(each.value) for each in event.node.args]
                for path, found in modes.items():
                    if path in (dotted_name(event.node.func), *given):
                        found.add(event.mode)
        if modes[name] == {GradMode.DISABLED} and modes[other] - {GradMode.DISABLED}:
            return True
    return False
