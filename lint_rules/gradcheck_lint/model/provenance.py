"""Tell what the tensors that a function writes to may be made of, before the function is read.

Most writes in place go to what an argument or a layer gave, about which no rule has anything to
say. The names of a function are followed back through its own assignments, those of the functions
around it and of the attributes of the file, to the words of the calls and attributes that made
them. Arithmetic ends a trail, for its result is a tensor of its own, save in containers. Order and
branches are not looked at: whatever a name is bound to anywhere counts.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from gradcheck_lint.model.knowledge import INPLACE_METHODS
from gradcheck_lint.model.python_tree import (
    blocks_of,
    child_nodes,
    head_nodes,
    parts_of_target,
    walk_python,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gradcheck_lint.model.scopes import FunctionScope, Scopes


@dataclass(frozen=True, slots=True)
class Write:
    """A write in place to ``target``; ``source`` is what is assigned to an item of it."""

    target: ast.expr
    statement: ast.stmt
    index: ast.expr | None = None
    source: ast.expr | None = None
    in_loop: bool = False

    @property
    def moves(self) -> bool:
        """Tell whether an item is written whose index is made of a name."""
        return self.index is not None and any(
            isinstance(node, ast.Name) for node in walk_python(self.index)
        )


class Bound(NamedTuple):
    """What a name is bound to; ``is_item`` where that is only put into what it holds.

    ``contained`` says that only containers come through.
    """

    source: ast.expr
    contained: bool = False
    is_item: bool = False


class _Body:
    """What the statements of one function bind and write to."""

    __slots__ = ("bound", "returned", "writes")

    def __init__(self, nodes: Sequence[ast.stmt], imported: Callable[[ast.expr], str]) -> None:
        self.bound: dict[str, list[Bound]] = {}
        """What each name is bound to, and what is put into it."""
        self.returned: list[ast.expr] = []
        self.writes: list[Write] = []
        _Collector(self, imported).statements(nodes, in_loop=False)


class Provenance:
    """Where the tensors of one file come from, each function looked at once."""

    def __init__(self, scopes: Scopes, tree: ast.Module) -> None:
        self._scopes = scopes
        self._tree = tree
        self._bodies: dict[int, _Body] = {}
        self._attributes: dict[str, list[tuple[ast.expr, FunctionScope]]] | None = None
        self._by_name: dict[str, list[FunctionScope]] | None = None
        self._known: dict[tuple[int, int | str], frozenset[str]] = {}

    def writes(self, scope: FunctionScope) -> Sequence[Write]:
        """Return every write in place in the source of a function."""
        return self._body(scope).writes

    def bound(self, scope: FunctionScope) -> Mapping[str, Sequence[Bound]]:
        """Return what each name of a function is bound to, and what is put into it."""
        return self._body(scope).bound

    def returned(self, scope: FunctionScope) -> Sequence[ast.expr]:
        """Return every expression that a function returns."""
        return self._body(scope).returned

    def words(self, scope: FunctionScope, node: ast.expr) -> frozenset[str]:
        """Return the words of what an expression of a function may be made of."""
        # A name means the same wherever it stands in a function: order is not looked at.
        key = (id(scope), dotted(node) or id(node))
        known = self._known.get(key)
        if known is None:
            waiting = [(node, scope, False)]
            known = self._known[key] = frozenset(self._traced(waiting))
        return known

    def words_of_whole(self, scope: FunctionScope, node: ast.expr) -> frozenset[str]:
        """Return the words of what an expression itself is, whatever is put into its items."""
        if not isinstance(node, ast.Name):
            return self.words(scope, node)
        key = (id(scope), f"{node.id}[]")
        known = self._known.get(key)
        if known is None:
            waiting = self._bindings(scope, node.id, contained=False, with_items=False)
            known = self._known[key] = frozenset(self._traced(waiting))
        return known

    def is_bound(self, scope: FunctionScope, name: str) -> bool:
        """Tell whether a function, or one around it, binds a name to anything."""
        return bool(self._bindings(scope, name, contained=False, with_items=False))

    def _body(self, scope: FunctionScope) -> _Body:
        known = self._bodies.get(id(scope))
        if known is None:
            nodes = scope.statements or ()
            known = self._bodies[id(scope)] = _Body(nodes, self._imported)
        return known

    def _imported(self, node: ast.expr) -> str:
        """Return the full name of what was imported, "" for anything else."""
        path = dotted(node)
        return (self._scopes.resolve_import(path) or "") if path else ""

    def _traced(self, waiting: list[_Item]) -> Iterator[str]:
        seen: set[tuple[int, int, bool]] = set()
        while waiting:
            item = waiting.pop()
            node, scope, contained = item
            key = (id(node), id(scope), contained)
            if key in seen:
                continue
            seen.add(key)
            kind = type(node)
            if kind is ast.Name:
                waiting.extend(self._bindings(scope, node.id, contained=contained))  # type: ignore[attr-defined]
            elif kind is ast.Call:
                yield from self._of_call(node, scope, waiting, contained=contained)  # type: ignore[arg-type]
            elif kind is ast.Attribute:
                attribute: str = node.attr  # type: ignore[attr-defined]
                if not contained:
                    yield attribute
                waiting.append((node.value, scope, contained))  # type: ignore[attr-defined]
                waiting.extend(
                    (source, owner, contained) for source, owner in self._assigned(attribute)
                )
            elif kind is ast.BinOp:
                waiting.extend((part, scope, True) for part in (node.left, node.right))  # type: ignore[attr-defined]
            elif kind in _DISPLAYS:
                waiting.extend((part, scope, False) for part in _parts(node))
            elif kind not in _NO_TENSORS:
                waiting.extend((part, scope, contained) for part in _parts(node))

    def _of_call(
        self,
        node: ast.Call,
        scope: FunctionScope,
        waiting: list[_Item],
        *,
        contained: bool,
    ) -> Iterator[str]:
        func = node.func
        imported = self._imported(func)
        # What numpy makes is no tensor, and no memory of one as far as it's followed.
        of_numpy = imported.startswith("numpy.") and not self._may_hide(scope, func)
        if not contained:
            for keyword in node.keywords:
                if keyword.arg == "requires_grad" and not _is_false(keyword.value):
                    yield "requires_grad"
                if keyword.arg is None:
                    yield "**"
            if imported:
                last = imported.rpartition(".")[2]
                yield f"numpy.{last}" if of_numpy else last
        if of_numpy or imported.startswith("torch."):
            return
        name = ""
        hands_on = bool(imported)
        if type(func) is ast.Name:
            name, hands_on = func.id, True
        elif type(func) is ast.Attribute:
            name = func.attr
            waiting.append((func.value, scope, contained))
        else:
            waiting.append((func, scope, contained))
        if name and not contained:
            yield name
        for made in self._functions(name):
            waiting.extend((value, made, contained) for value in self._body(made).returned)
        if hands_on:
            inside = contained and name not in _CONTAINERS
            waiting.extend((argument, scope, inside) for argument in node.args)

    def _may_hide(self, scope: FunctionScope, node: ast.expr) -> bool:
        """Tell whether a function, or one around it, binds the first name of a path itself."""
        while isinstance(node, ast.Attribute):
            node = node.value
        name = getattr(node, "id", "")
        around: FunctionScope | None = scope
        while around is not None:
            if name in around.parameters or name in self._body(around).bound:
                return True
            around = around.parent
        return False

    def _bindings(
        self, scope: FunctionScope, name: str, *, contained: bool, with_items: bool = True
    ) -> list[_Item]:
        found: list[_Item] = []
        around: FunctionScope | None = scope
        while around is not None:
            is_own = False
            for each in self._body(around).bound.get(name, ()):
                if with_items or not each.is_item:
                    found.append((each.source, around, contained or each.contained))
                is_own = is_own or not each.is_item
            # What is only put into a name leaves it to the functions around.
            around = None if is_own else around.parent
        return found

    def _functions(self, name: str) -> Sequence[FunctionScope]:
        if self._by_name is None:
            self._by_name = {}
            for scope in self._scopes.functions[1:]:
                self._by_name.setdefault(scope.name.rpartition(".")[2], []).append(scope)
        return self._by_name.get(name, ())

    def _assigned(self, attribute: str) -> Sequence[tuple[ast.expr, FunctionScope]]:
        """Return what the file assigns to attributes of a name, of whatever object."""
        if self._attributes is None:
            self._attributes = {}
            owners = {id(scope.statements): scope for scope in self._scopes.functions}
            self._collect(self._tree.body, self._scopes.top, owners, in_class=False)
        return self._attributes.get(attribute, ())

    def _collect(
        self,
        nodes: Sequence[ast.stmt],
        scope: FunctionScope,
        owners: dict[int, FunctionScope],
        *,
        in_class: bool,
    ) -> None:
        assert self._attributes is not None
        for node in nodes:
            kind = type(node)
            if kind is ast.Expr:
                if type(node.value) is ast.Call:  # type: ignore[attr-defined]
                    self._note_call(node.value, scope)  # type: ignore[attr-defined]
            elif kind in _FUNCTIONS:
                self._collect_function(node, scope, owners, in_class=in_class)
            elif kind is ast.ClassDef:
                self._collect(node.body, scope, owners, in_class=True)  # type: ignore[attr-defined]
            else:
                targets, source = _assignment(node)
                if source is not None:
                    for target in targets:
                        if in_class or type(target) is not ast.Name:
                            self._note_target(target, source, scope, in_class=in_class)
                for block in blocks_of(node):
                    self._collect(block, scope, owners, in_class=in_class)

    def _collect_function(
        self,
        node: Any,
        scope: FunctionScope,
        owners: dict[int, FunctionScope],
        *,
        in_class: bool,
    ) -> None:
        inner = owners.get(id(node.body), scope)
        self._collect(node.body, inner, owners, in_class=False)
        if in_class and node.decorator_list:
            # A property is read like an attribute.
            for value in self._body(inner).returned:
                self._note(node.name, value, inner)

    def _note_target(
        self, target: ast.expr, source: ast.expr, scope: FunctionScope, *, in_class: bool
    ) -> None:
        for part in parts_of_target(target):
            if isinstance(part, ast.Attribute):
                self._note(part.attr, source, scope)
            elif isinstance(part, ast.Name) and in_class:
                self._note(part.id, source, scope)

    def _note(self, attribute: str, source: ast.expr, scope: FunctionScope) -> None:
        assert self._attributes is not None
        self._attributes.setdefault(attribute, []).append((source, scope))

    def _note_call(self, node: ast.Call, scope: FunctionScope) -> None:
        """Note ``x.register_parameter("w", p)``, ``setattr(x, "w", p)``, ``self.l.append(p)``."""
        assert self._attributes is not None
        values = [value for value in node.args if not isinstance(value, ast.Constant)]
        names = [value.value for value in node.args if isinstance(value, ast.Constant)]
        if isinstance(node.func, ast.Attribute) and node.func.attr in _ADDERS:
            receiver = node.func.value
            if isinstance(receiver, ast.Subscript):
                receiver = receiver.value
            if isinstance(receiver, ast.Attribute):
                names.append(receiver.attr)
        for name in names:
            if isinstance(name, str):
                known = self._attributes.setdefault(name, [])
                known.extend((value, scope) for value in values)


_Item: TypeAlias = "tuple[ast.expr, FunctionScope, bool]"
"""An expression of a function on a trail; True where only containers come through."""


class _Collector:
    """Go through the statements of a function, and through their expressions."""

    def __init__(self, body: _Body, imported: Callable[[ast.expr], str]) -> None:
        self._body = body
        self._imported = imported

    def statements(self, nodes: Sequence[ast.stmt], *, in_loop: bool) -> None:
        for node in nodes:
            kind = type(node)
            if kind in _DEFINITIONS:
                continue
            is_loop = kind in _LOOPS
            targets, source = _assignment(node)
            for target in targets:
                self._assign(target, source, node if kind in _ASSIGNMENTS else None, in_loop)
            if kind is ast.AugAssign:
                target = node.target  # type: ignore[attr-defined]
                is_item = isinstance(target, ast.Subscript)
                root, index = (target.value, target.slice) if is_item else (target, None)
                self._body.writes.append(Write(root, node, index, node.value, in_loop))  # type: ignore[attr-defined]
                if isinstance(root, ast.Name):
                    # `+=` on a list keeps the list and adds to it.
                    self._bind(root.id, Bound(node.value, contained=True))  # type: ignore[attr-defined]
            elif kind is ast.Return:
                if node.value is not None:  # type: ignore[attr-defined]
                    self._body.returned.append(node.value)  # type: ignore[attr-defined]
            elif kind is ast.With or kind is ast.AsyncWith:
                for item in node.items:  # type: ignore[attr-defined]
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, item.context_expr)
            self._expressions(node, in_loop=in_loop or kind is ast.While)
            for block in blocks_of(node):
                self.statements(block, in_loop=in_loop or is_loop)

    def _assign(
        self,
        target: ast.expr,
        source: ast.expr | None,
        writing: ast.stmt | None = None,
        in_loop: bool = False,
    ) -> None:
        """Note what a target is bound to; ``writing`` is the statement that writes to items."""
        if source is None:
            return
        for part in parts_of_target(target):
            if isinstance(part, ast.Name):
                self._bind(part.id, Bound(source))
            elif isinstance(part, ast.Subscript):
                if writing is not None:
                    made = Write(part.value, writing, part.slice, source, in_loop)
                    self._body.writes.append(made)
                if isinstance(part.value, ast.Name):
                    self._bind(part.value.id, Bound(source, is_item=True))

    def _bind(self, name: str, bound: Bound) -> None:
        self._body.bound.setdefault(name, []).append(bound)

    def _expressions(self, node: ast.stmt, *, in_loop: bool) -> None:
        """Look for calls that write, and for names that expressions bind."""
        waiting: list[Any] = head_nodes(node)
        while waiting:
            current = waiting.pop()
            kind = type(current)
            while kind is ast.Attribute:
                current = current.value
                kind = type(current)
            if kind is ast.Name or kind is ast.Constant:
                continue
            if kind is ast.Call:
                self._note_write(current, node, in_loop=in_loop)
            elif kind is ast.comprehension:
                self._assign(current.target, current.iter)
            elif kind is ast.NamedExpr:
                self._assign(current.target, current.value)
            waiting += child_nodes(current)

    def _note_write(self, node: ast.Call, statement: ast.stmt, *, in_loop: bool) -> None:
        func, roots = node.func, []
        name = ""
        if type(func) is ast.Attribute:
            name = func.attr
            if name in INPLACE_METHODS:
                roots.append(func.value)
            elif name in _ADDERS:
                receiver = func.value.value if type(func.value) is ast.Subscript else func.value
                if type(receiver) is ast.Name:
                    for argument in node.args:
                        self._bind(receiver.id, Bound(argument, is_item=True))
        elif type(func) is ast.Name:
            name = func.id
        writes = name in INPLACE_METHODS
        for keyword in node.keywords:
            if keyword.arg == "out":
                roots.append(keyword.value)
            elif keyword.arg == "inplace" and not _is_false(keyword.value):
                writes = True
        imported = self._imported(func) if writes or type(func) is ast.Name else ""
        writes = writes or imported.rpartition(".")[2] in INPLACE_METHODS
        if writes and ".init." not in imported:
            roots.extend(node.args[:1])
        self._body.writes.extend(Write(root, statement, in_loop=in_loop) for root in roots)


_DEFINITIONS: Final = frozenset(
    {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom}
)
_FUNCTIONS: Final = frozenset({ast.FunctionDef, ast.AsyncFunctionDef})
_LOOPS: Final = frozenset({ast.For, ast.AsyncFor, ast.While})
_ASSIGNMENTS: Final = frozenset({ast.Assign, ast.AnnAssign})
_DISPLAYS: Final = frozenset(
    {
        *(ast.List, ast.Tuple, ast.Set, ast.Dict),
        *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    }
)
_NO_TENSORS: Final = frozenset(
    {ast.Constant, ast.Compare, ast.UnaryOp, ast.JoinedStr, ast.Lambda, ast.Slice}
)
_CONTAINERS: Final = frozenset(
    {"list", "tuple", "set", "sorted", "reversed", "iter", "dict", "enumerate", "zip", "chain"}
)
_ADDERS: Final = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
)


def _assignment(node: ast.stmt) -> tuple[Sequence[ast.expr], ast.expr | None]:
    """Return what a statement binds or assigns to, and to what."""
    kind = type(node)
    if kind is ast.Assign:
        return node.targets, node.value  # type: ignore[attr-defined]
    if kind is ast.AnnAssign:
        return (node.target,), node.value  # type: ignore[attr-defined]
    if kind is ast.For or kind is ast.AsyncFor:
        return (node.target,), node.iter  # type: ignore[attr-defined]
    return (), None


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that the value of another may be, or may hold."""
    kind = type(node)
    if kind is ast.Subscript:
        yield node.value  # type: ignore[attr-defined]
    elif kind is ast.IfExp:
        yield node.body  # type: ignore[attr-defined]
        yield node.orelse  # type: ignore[attr-defined]
    else:
        waiting: list[ast.AST] = [node]
        while waiting:
            for child in child_nodes(waiting.pop()):
                if isinstance(child, ast.expr):
                    yield child
                elif isinstance(child, ast.comprehension):
                    waiting.append(child)


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for such an expression, "" for any other."""
    parts: list[str] = []
    while type(node) is ast.Attribute:
        parts.append(node.attr)
        node = node.value
    if type(node) is not ast.Name:
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
