"""Tell by words alone whether something can reach a function, before anything is read.

What a name of a function holds comes from its own body, from the functions that it is defined in,
from the methods of its class and of that class's bases, or from a function or class of the file
that it names. So a word that none of these has is about nothing that the function sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.scopes import names_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_lint.model.scopes import ClassScope, FunctionScope, Scopes


class Nearness:
    """Which functions of one file have a word near them, each kind of word looked for once."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._known: dict[Callable[[str], bool], frozenset[int]] = {}
        self._users: dict[int, list[FunctionScope]] | None = None

    def has(self, scope: FunctionScope, is_wanted: Callable[[str], bool]) -> bool:
        """Tell whether a function, or what its values may come from, has a word of some kind."""
        known = self._known.get(is_wanted)
        if known is None:
            known = self._known[is_wanted] = self._all_with(is_wanted)
        return id(scope) in known

    def _all_with(self, is_wanted: Callable[[str], bool]) -> frozenset[int]:
        aliases = self._scopes.aliases_of(is_wanted)
        waiting = [
            scope
            for scope in self._scopes.functions
            if any(word in aliases or is_wanted(word) for word in self._own_words(scope))
        ]
        if not waiting:
            return frozenset()
        if self._users is None:
            self._users = self._all_users()
        found = {id(scope) for scope in waiting}
        while waiting:
            for user in self._users.get(id(waiting.pop()), ()):
                if id(user) not in found:
                    found.add(id(user))
                    waiting.append(user)
        return frozenset(found)

    def _own_words(self, scope: FunctionScope) -> frozenset[str]:
        """Return the words of a function, and those that stand in its class itself."""
        if scope.owner is None:
            return scope.words
        return scope.words | scope.owner.words

    def _all_users(self) -> dict[int, list[FunctionScope]]:
        """Return for each function those whose values may come from it."""
        by_name: dict[str, list[FunctionScope]] = {}
        for scope in self._scopes.functions[1:]:
            by_name.setdefault(scope.name.rpartition(".")[2], []).append(scope)
        for name, owner in self._scopes.classes.items():
            by_name.setdefault(name, []).extend(owner.methods.values())
        users: dict[int, list[FunctionScope]] = {}
        families: dict[int, tuple[FunctionScope, ...]] = {}
        for scope in self._scopes.functions:
            for source in self._sources(scope, by_name, families):
                users.setdefault(id(source), []).append(scope)
        return users

    def _sources(
        self,
        scope: FunctionScope,
        by_name: dict[str, list[FunctionScope]],
        families: dict[int, tuple[FunctionScope, ...]],
    ) -> Iterator[FunctionScope]:
        if scope.parent is not None:
            yield scope.parent
        if scope.owner is not None:
            family = families.get(id(scope.owner))
            if family is None:
                family = families[id(scope.owner)] = tuple(self._family(scope.owner))
            yield from family
        for word in self._own_words(scope) & by_name.keys():
            yield from by_name[word]

    def _family(self, owner: ClassScope) -> Iterator[FunctionScope]:
        for known in self._scopes.lineage(owner):
            yield from known.methods.values()


def writes_items(scope: FunctionScope) -> Iterator[tuple[cst.Subscript, cst.BaseExpression | None]]:
    """Yield every ``x[i]`` that a function assigns to, and what it assigns."""
    for node in scope.nodes:
        kind = type(node)
        targets: list[cst.CSTNode]
        if kind is cst.Assign:
            targets = [target.target for target in node.targets]  # type: ignore[attr-defined]
        elif kind is cst.AugAssign or kind is cst.AnnAssign:
            targets = [node.target]  # type: ignore[attr-defined]
        else:
            continue
        for target in targets:
            for part in (target,) if type(target) is cst.Subscript else _parts_of_target(target):
                yield part, node.value  # type: ignore[attr-defined]


def _parts_of_target(target: cst.CSTNode) -> Iterator[cst.Subscript]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            if type(element.value) is cst.Subscript:
                yield element.value
            else:
                yield from _parts_of_target(element.value)


def has_name(node: cst.CSTNode) -> bool:
    """Tell whether an expression has a name in it."""
    return next(names_below(node), None) is not None


def is_leaf_word(word: str) -> bool:
    """Tell whether a word makes a leaf that requires grad, or reaches one."""
    return (
        word.startswith("requires_grad")
        or word.endswith(("Parameter", "parameters", "Variable"))
        or word in {"weight", "bias"}
    )


def is_mode_word(word: str) -> bool:
    """Tell whether a word may turn recording on."""
    return word in {"enable_grad", "set_grad_enabled", "inference_mode"}
