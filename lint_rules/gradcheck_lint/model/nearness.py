"""Tell by words alone which functions can reach something, over the call graph of one file.

What a name of a function holds comes from its own body, from the functions around it, from its
class, or from a function or class of the file that it names. So a word that none of these has is
about nothing that the function sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gradcheck_lint.model.scopes import ClassScope, FunctionScope, Scopes

Sought: TypeAlias = Callable[[str], bool]
"""Whether a word is of some kind."""


def ANY_MODE(word: str) -> bool:  # noqa: N802 - one kind of word among others
    """Return whether a word may turn recording on or off."""
    return word.endswith("_grad") or "grad_enabled" in word or word == "inference_mode"


MODE: Final[Sought] = frozenset({"enable_grad", "set_grad_enabled", "inference_mode"}).__contains__
"""What may turn recording on."""


def BACKWARD(word: str) -> bool:  # noqa: N802 - as above
    """Return whether a word is about what differentiates, or has been differentiated."""
    return "backward" in word


CUTS: Final[Sought] = frozenset(
    {"detach", "detach_", "data", "item", "tolist", "numpy", "tensor", "from_numpy", "as_tensor"}
    | {"no_grad", "inference_mode", "argmax", "argmin", "round", "sign", "floor", "ceil", "long"}
    | {"gt", "lt", "ge", "le", "eq", "ne", "bool", "int", "float", "topk", "where"}
).__contains__
"""What may take the graph of a value away."""

STEPS: Final = frozenset({"step", "first_step", "second_step"})
"""What may be the step of an optimizer, a scheduler or a scaler."""


class Nearness:
    """Which functions of one file have a word near them, each kind of word looked for once."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._known: dict[Sought, frozenset[int]] = {}
        self._wanted: dict[Sought, frozenset[str]] = {}
        self._vocabulary: frozenset[str] | None = None
        self._users: dict[int, list[int]] | None = None

    def has(self, scope: FunctionScope, sought: Sought) -> bool:
        """Return whether a function, or what its values may come from, has a word of some kind."""
        known = self._known.get(sought)
        if known is None:
            known = self._known[sought] = self._all_with(sought)
        return id(scope) in known

    def has_itself(self, scope: FunctionScope, sought: Sought) -> bool:
        """Return whether the source of a function, or of its class, has a word of some kind."""
        return self._has_itself(scope, self._words_of(sought))

    def _all_with(self, sought: Sought) -> frozenset[int]:
        """Return the functions that have a word themselves, and all that use them."""
        wanted = self._words_of(sought)
        if not wanted:
            return frozenset()
        if self._users is None:
            self._users = _users_of_functions(self._scopes)
        waiting = [id(scope) for scope in self._scopes.functions if self._has_itself(scope, wanted)]
        found = set(waiting)
        while waiting:
            for user in self._users.get(waiting.pop(), ()):
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return frozenset(found)

    def _words_of(self, sought: Sought) -> frozenset[str]:
        """Return the words of the file that are of some kind, or stand for what is."""
        known = self._wanted.get(sought)
        if known is None:
            if self._vocabulary is None:
                scopes = self._scopes
                of_functions = (scope.words for scope in scopes.functions)
                of_classes = (owner.words for owner in scopes.classes.values())
                self._vocabulary = frozenset().union(*of_functions, *of_classes)
            of_kind = filter(sought, self._vocabulary)
            known = self._scopes.aliases_of(sought).union(of_kind)
            self._wanted[sought] = known
        return known

    def _has_itself(self, scope: FunctionScope, wanted: frozenset[str]) -> bool:
        owner = scope.owner
        if owner is not None and not wanted.isdisjoint(self._scopes.class_words(owner)):
            return True
        return not wanted.isdisjoint(scope.words)


def _users_of_functions(scopes: Scopes) -> dict[int, list[int]]:
    """Return who may use each function, both by their ``id``.

    A function uses the functions and classes that it names, those that it is defined in, and the
    methods of its own class and of the bases of that, which nobody has to name.
    """
    users: dict[int, list[int]] = {}
    families: dict[int, tuple[FunctionScope, ...]] = {}
    for scope in scopes.functions:
        for used in _named(scope.words, scopes):
            users.setdefault(id(used), []).append(id(scope))
        if scope.parent is not None:
            users.setdefault(id(scope.parent), []).append(id(scope))
        owner = scope.owner
        if owner is not None:
            family = families.get(id(owner))
            if family is None:
                family = families[id(owner)] = _family(owner, scopes)
            for used in family:
                users.setdefault(id(used), []).append(id(scope))
    return users


def _family(owner: ClassScope, scopes: Scopes) -> tuple[FunctionScope, ...]:
    """Return the methods of a class and of its bases, and what the bodies of these name."""
    methods = (method for known in scopes.lineage(owner) for method in known.methods.values())
    return (*methods, *_named(scopes.class_words(owner), scopes))


def _named(words: Collection[str], scopes: Scopes) -> Iterator[FunctionScope]:
    for word in scopes.by_name.keys() & words:
        yield from scopes.by_name[word]
