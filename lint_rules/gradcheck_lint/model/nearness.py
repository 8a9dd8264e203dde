"""Tell by words alone whether something can reach a function, before anything is read.

What a name of a function holds comes from its own body, from what the functions around it bind to
that name, from what the file binds to an attribute of that name, or from a function or class of the
file that it names. So a word that none of these has is about nothing that the function sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.links import Links
from gradcheck_lint.model.scopes import names_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.provenance import Provenance
    from gradcheck_lint.model.scopes import FunctionScope, Scopes


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """A kind of word, and what the text of a function must match beside having one.

    ``is_act`` says that it is about what a function does, itself or in what it calls; otherwise it
    is about what its values may come from as well.
    """

    is_one: Callable[[str], bool]
    text: re.Pattern[str] | None = None
    is_act: bool = False


def _is_leaf_word(word: str) -> bool:
    return (
        word.startswith("requires_grad")
        or word.endswith(("Parameter", "parameters", "Variable"))
        or word in {"weight", "bias"}
    )


def _is_mode_word(word: str) -> bool:
    return word in {"enable_grad", "set_grad_enabled", "inference_mode"}


LEAF: Final = Sought(
    _is_leaf_word,
    re.compile(
        r"requires_grad\w*\s*[=(]\s*(?!False\b)|Parameter\b|parameters\s*\(|Variable\b"
        r"|\.[\s\\]*(?:weight|bias)\b"
    ),
)
"""What makes a leaf that requires grad, or reaches one."""

ANY_MODE: Final = Sought(
    lambda word: word.endswith("_grad") or "grad_enabled" in word or word == "inference_mode",
    is_act=True,
)
"""What may turn recording on or off."""

MODE: Final = Sought(_is_mode_word, is_act=True)
"""What may turn recording on."""


def _is_backward_word(word: str) -> bool:
    return "backward" in word


_BACKWARD_CALL = re.compile(r"backward\w*\s*\(")
BACKWARD: Final = Sought(_is_backward_word, _BACKWARD_CALL)
"""What differentiates, or has been differentiated."""

CALLS_BACKWARD: Final = Sought(_is_backward_word, _BACKWARD_CALL, is_act=True)
"""What differentiates."""

STEPS: Final = frozenset({"step", "first_step", "second_step"})
STEP: Final = Sought(STEPS.__contains__, re.compile(r"step\s*\("), is_act=True)
"""What may be the step of an optimizer, a scheduler or a scaler."""


class Nearness:
    """Which functions of one file have a word near them, each kind of word looked for once."""

    def __init__(self, scopes: Scopes, provenance: Provenance | None) -> None:
        self._scopes = scopes
        self._provenance = provenance
        self._known: dict[Sought, frozenset[int]] = {}
        self._links: dict[bool, Links] = {}
        self._wanted: dict[Sought, frozenset[str]] = {}
        self._vocabulary: frozenset[str] | None = None

    def has(self, scope: FunctionScope, sought: Sought) -> bool:
        """Tell whether a function, or what its values may come from, has a word of some kind."""
        known = self._known.get(sought)
        if known is None:
            known = self._known[sought] = self._all_with(sought)
        return id(scope) in known

    def has_itself(self, scope: FunctionScope, sought: Sought) -> bool:
        """Tell whether the source of a function, or of its class, has a word of some kind."""
        return self._has_itself(scope, sought, self._words_of(sought))

    def users_of(self, functions: Iterable[FunctionScope]) -> frozenset[int]:
        """Return the functions whose values may come from some functions, and those themselves."""
        found: list[Hashable] = [id(scope) for scope in functions]
        return self._users_of(found, acts=False) if found else frozenset()

    def _all_with(self, sought: Sought) -> frozenset[int]:
        wanted = self._words_of(sought)
        if not wanted:
            return frozenset()
        waiting: list[Hashable] = [
            id(scope) for scope in self._scopes.functions if self._has_itself(scope, sought, wanted)
        ]
        waiting.extend(self._linked(acts=sought.is_act).variables_with(wanted))
        return self._users_of(waiting, acts=sought.is_act)

    def _linked(self, *, acts: bool) -> Links:
        links = self._links.get(acts)
        if links is None:
            links = self._links[acts] = Links(self._scopes, self._provenance, acts=acts)
        return links

    def _users_of(self, waiting: list[Hashable], *, acts: bool) -> frozenset[int]:
        """Return the functions that use some functions or variables, these functions included."""
        links = self._linked(acts=acts)
        found = set(waiting)
        while waiting:
            for user in links.users.get(waiting.pop(), ()):
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return frozenset(node for node in found if isinstance(node, int))

    def _words_of(self, sought: Sought) -> frozenset[str]:
        """Return the words of the file that are of some kind, or stand for what is."""
        known = self._wanted.get(sought)
        if known is None:
            if self._vocabulary is None:
                scopes = self._scopes
                of_functions = (scope.words for scope in scopes.functions)
                of_classes = (owner.words for owner in scopes.classes.values())
                self._vocabulary = frozenset().union(*of_functions, *of_classes)
            of_kind = filter(sought.is_one, self._vocabulary)
            known = self._scopes.aliases_of(sought.is_one).union(of_kind)
            self._wanted[sought] = known
        return known

    def _has_itself(self, scope: FunctionScope, sought: Sought, wanted: frozenset[str]) -> bool:
        owner = scope.owner
        if owner is not None and not wanted.isdisjoint(self._scopes.class_words(owner)):
            return True
        found = wanted & scope.words
        if not found or sought.text is None or not all(map(sought.is_one, found)):
            return bool(found)
        text = scope.text
        return text is None or sought.text.search(text) is not None


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
