"""Tell who uses whom in a file: functions, and variables that more than one of them sees."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

from gradcheck_lint.model.python_tree import child_nodes, walk_python

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

    from gradcheck_lint.model.provenance import Provenance
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope, Scopes


class Links:
    """Who uses whom: functions go by their ``id``, variables by their name, wherever bound.

    A function uses the functions and classes that it names, and the variables that it names if a
    function around it binds them or if they are attributes. A variable uses what its sources name;
    where only ``acts`` count, not what is called there, for that has been done: what may be done
    later are the functions and lambdas that a source hands on.
    """

    def __init__(self, scopes: Scopes, provenance: Provenance | None, *, acts: bool) -> None:
        self._scopes = scopes
        self._provenance = provenance
        self._acts = acts
        self.users: dict[Hashable, list[Hashable]] = {}
        self._words: dict[str, set[str]] = {}
        self._functions = scopes.by_name
        self._known_to_give: dict[str, bool] = {}
        if provenance is not None:
            for scope in scopes.functions:
                self._add_variables(scope, provenance)
        for name, words in self._words.items():
            self._use(name, words)
        families: dict[int, tuple[FunctionScope, ...]] = {}
        for scope in scopes.functions:
            self._use(id(scope), scope.words)
            for word in self._functions.keys() & scope.words if not acts else ():
                for called in self._functions[word]:
                    self._add(id(scope), id(called))  # what it hands over
            if provenance is None and scope.parent is not None:
                self._add(id(scope.parent), id(scope))
            if scope.owner is not None:
                self._use(id(scope), scopes.class_words(scope.owner))
                family = families.get(id(scope.owner))
                if family is None:
                    family = families[id(scope.owner)] = tuple(self._family(scope.owner))
                for method in family:
                    self._add(id(method), id(scope))

    def variables_with(self, wanted: frozenset[str]) -> Iterator[str]:
        """Yield the variables that something with one of these words is bound to."""
        for name, words in self._words.items():
            if not wanted.isdisjoint(words):
                yield name

    def _add(self, source: Hashable, user: Hashable) -> None:
        self.users.setdefault(source, []).append(user)

    def _use(self, user: Hashable, words: Collection[str]) -> None:
        for word in self._functions.keys() & words:
            for scope in self._functions[word]:
                self._add(id(scope), user)
        for word in self._words.keys() & words:
            self._add(word, user)

    def _family(self, owner: ClassScope) -> Iterator[FunctionScope]:
        """Yield the methods that may run in another without anybody naming them."""
        for known in self._scopes.lineage(owner):
            for name, method in known.methods.items():
                is_syntax = name == "forward" or (name.startswith("__") and name != "__init__")
                if self._provenance is None or is_syntax:
                    yield method

    def _add_variables(self, scope: FunctionScope, provenance: Provenance) -> None:
        """Note what a function binds that others can see."""
        if scope is self._scopes.top or scope.nested or not _SHARING.isdisjoint(scope.words):
            for name, sources in provenance.bound(scope).items():
                for bound in sources:
                    self._bind(name, bound.source)
        for target, node in scope.attribute_bindings:
            for name in _attributes_of(target):
                self._bind(name, node)
        if scope.text is not None and not _ADDING.isdisjoint(scope.words):
            for match in _ADDED.finditer(scope.text):
                self._words.setdefault(match[1] or match[2], set()).update(scope.words)

    def _bind(self, name: str, source: ast.expr) -> None:
        self._words.setdefault(name, set()).update(self._named_in(source))

    def _named_in(self, source: ast.expr) -> Iterator[str]:
        waiting: list[ast.AST] = [source]
        while waiting:
            node = waiting.pop()
            kind = type(node)
            if kind is ast.Name:
                yield node.id  # type: ignore[attr-defined]
            elif kind is ast.Call and self._acts:
                waiting.extend(self._parts_of_call(node))  # type: ignore[arg-type]
            elif kind is ast.Lambda:
                yield from _all_names(node)
            else:
                if kind is ast.Attribute:
                    yield node.attr  # type: ignore[attr-defined]
                elif kind is ast.keyword and node.arg is not None:  # type: ignore[attr-defined]
                    yield node.arg  # type: ignore[attr-defined]
                waiting.extend(child_nodes(node))

    def _parts_of_call(self, node: ast.Call) -> Iterator[ast.AST]:
        """Yield what the result of a call may be, or do when it is called itself."""
        yield from node.args
        yield from node.keywords
        func = node.func
        name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", None)
        if name is None or self._gives_function(name):
            yield func
        elif isinstance(func, ast.Attribute):
            yield func.value

    def _gives_function(self, name: str) -> bool:
        """Tell whether the result of a call may do later what the called function can do."""
        known = self._known_to_give.get(name)
        if known is None:
            self._known_to_give[name] = True
            is_class = name in self._scopes.classes
            known = is_class or any(map(self._returns_function, self._functions.get(name, ())))
            self._known_to_give[name] = known
        return known

    def _returns_function(self, scope: FunctionScope) -> bool:
        assert self._provenance is not None
        return bool(
            scope.nested
            or not _MAKERS.isdisjoint(scope.words)
            or any(
                name in self._functions
                for returned in self._provenance.returned(scope)
                for name in self._named_in(returned)
            )
        )


def _all_names(node: ast.AST) -> Iterator[str]:
    for inner in walk_python(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def _attributes_of(target: Any) -> Iterator[str]:
    for node in walk_python(target):
        if isinstance(node, ast.Attribute):
            yield node.attr


_MAKERS: Final = frozenset({"lambda", "partial", "yield"})
_SHARING: Final = frozenset({"global", "nonlocal"})
_ADDING: Final = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "setattr"),
        *("register_parameter", "register_buffer", "register_module", "add_module"),
    }
)
_ADDED: Final = re.compile(
    r"\.\s*(\w+)\s*(?:\[[^\]]*\]\s*)?\.\s*"
    r"(?:append|appendleft|extend|insert|add|update|setdefault)\s*\("
    r"|(?:setattr|register_\w+|add_module)\s*\([^\"'()]*[\"'](\w+)[\"']"
)
"""``self.losses.append(``, ``setattr(self, "loss",``."""
