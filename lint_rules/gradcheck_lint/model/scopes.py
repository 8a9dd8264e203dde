"""Know the functions, classes and imports of one file, and find what a name refers to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, overload

import libcst as cst

from gradcheck_lint.model.knowledge import ENGINE_MODULES, ENGINE_PACKAGES, INPLACE_METHODS
from gradcheck_lint.model.name_sources import Sources
from gradcheck_lint.model.syntax import ATOMS, assigned_pairs, child_list, dotted_name, walk
from gradcheck_lint.project.linking import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Part(Enum):
    """What a function has in its own source, before it is read."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and asked for all the time

    WRITE = "something is written to in place"
    BACKWARD = "backward is called"
    LOOP = "a loop, or a comprehension"


_A = TypeVar("_A", bound=cst.CSTNode)
_B = TypeVar("_B", bound=cst.CSTNode)
_C = TypeVar("_C", bound=cst.CSTNode)


class NodeIndex:
    """Some nodes by their types, so that who looks for a few goes through these alone."""

    __slots__ = ("_by_kind", "_joined")

    def __init__(self, nodes: Iterable[cst.CSTNode]) -> None:
        self._by_kind: dict[type[cst.CSTNode], list[tuple[int, cst.CSTNode]]] = {}
        self._joined: dict[tuple[type[cst.CSTNode], ...], Sequence[cst.CSTNode]] = {}
        for placed in enumerate(nodes):
            self._by_kind.setdefault(type(placed[1]), []).append(placed)

    def of(self, *kinds: type[cst.CSTNode]) -> Sequence[cst.CSTNode]:
        """Return the nodes that are of exactly these types, in their order."""
        known = self._joined.get(kinds)
        if known is None:
            placed = [pair for kind in kinds for pair in self._by_kind.get(kind, ())]
            if len(kinds) > 1:
                placed.sort(key=itemgetter(0))
            known = self._joined[kinds] = tuple([node for _, node in placed])
        return known


@dataclass(slots=True, eq=False)
class ClassScope:
    """A class of the file: its methods by name and its bases as the source names them."""

    name: str
    node: cst.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, FunctionScope] = field(default_factory=dict)
    _words: frozenset[str] | None = None

    @property
    def words(self) -> frozenset[str]:
        """Return every name, attribute and keyword that stands in the class, outside of methods."""
        if self._words is None:
            nodes, lambdas = _nodes_of(self.node.body)
            words = {node.value for node in nodes if type(node) is cst.Name}
            words.update(name for known in lambdas for name in names_below(known))
            self._words = frozenset(words)
        return self._words


@dataclass(slots=True, eq=False)
class FunctionScope:
    """A function of the file, or the file's own top level (``node`` is then the module)."""

    name: str
    node: cst.FunctionDef | cst.Module
    owner: ClassScope | None = None
    parent: FunctionScope | None = None
    nested: dict[str, FunctionScope] = field(default_factory=dict)
    _nodes: tuple[tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...]] | None = None
    _index: NodeIndex | None = None
    _assignments: tuple[tuple[cst.BaseExpression, cst.BaseExpression], ...] | None = None
    _parts: frozenset[Part] | None = None
    _words: frozenset[str] | None = None
    sources: Sources | None = None
    """What ``name_sources`` has read of the body, once it was asked."""
    linked: bool = False
    """Whether this is a function of another file."""
    borrowed: dict[str, tuple[FunctionScope, str]] = field(default_factory=dict)
    """The values that a top level has from others: which top level, and by what name."""

    @property
    def nodes(self) -> tuple[cst.CSTNode, ...]:
        """Return the nodes of the body, without functions, classes and lambdas inside it.

        They are looked up once: many rules go through them. Who wants those of some types asks
        for ``nodes_of`` these.
        """
        return self.nodes_and_lambdas[0]

    @overload
    def nodes_of(self, kind: type[_A], /) -> Sequence[_A]: ...
    @overload
    def nodes_of(self, kind: type[_A], other: type[_B], /) -> Sequence[_A | _B]: ...
    @overload
    def nodes_of(
        self, kind: type[_A], other: type[_B], third: type[_C], /
    ) -> Sequence[_A | _B | _C]: ...
    def nodes_of(self, *kinds: type[cst.CSTNode]) -> Sequence[cst.CSTNode]:
        """Return those of ``nodes`` that are of exactly these types, in the order of the source."""
        if self._index is None:
            self._index = NodeIndex(self.nodes)
        return self._index.of(*kinds)

    @property
    def assignments(self) -> Sequence[tuple[cst.BaseExpression, cst.BaseExpression]]:
        """Return the targets of all assignments with their values, as ``assigned_pairs``."""
        if self._assignments is None:
            found = self.nodes_of(cst.Assign, cst.AnnAssign)
            self._assignments = tuple(pair for node in found for pair in assigned_pairs(node))
        return self._assignments

    @property
    def small_statements(self) -> Sequence[cst.CSTNode]:
        """Return the assignments, calls and the like of the body, in order, as ``nodes`` has them.

        Expressions are not entered for that.
        """
        found: list[cst.CSTNode] = []
        stack = child_list(self.body)
        stack.reverse()
        while stack:
            current = stack.pop()
            kind = type(current)
            if kind is cst.SimpleStatementLine or kind is cst.SimpleStatementSuite:
                found.extend(current.body)  # type: ignore[attr-defined]
            elif kind in _BLOCKS:
                below = child_list(current)
                below.reverse()
                stack += below
        return found

    @property
    def parts(self) -> frozenset[Part]:
        """Return which parts the function has."""
        if self._parts is None:
            self._parts = frozenset(_parts_of(self.nodes_with_lambdas))
        return self._parts

    @property
    def words(self) -> frozenset[str]:
        """Return every name, attribute and keyword of the body, and of lambdas inside it."""
        if self._words is None:
            nodes, lambdas = self.nodes_and_lambdas
            words = {node.value for node in nodes if type(node) is cst.Name}
            words.update(name for known in lambdas for name in names_below(known))
            self._words = frozenset(words)
        return self._words

    @property
    def body(self) -> cst.BaseSuite | cst.Module:
        """Return what holds the statements."""
        return self.node if isinstance(self.node, cst.Module) else self.node.body

    @property
    def nodes_and_lambdas(self) -> tuple[tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...]]:
        """Return the nodes of the body as ``nodes``, and the lambdas."""
        if self._nodes is None:
            self._nodes = _nodes_of(self.body)
        return self._nodes

    @property
    def nodes_with_lambdas(self) -> Iterator[cst.CSTNode]:
        """Yield the nodes of the body, and those of lambdas inside it."""
        nodes, lambdas = self.nodes_and_lambdas
        yield from nodes
        for known in lambdas:
            yield from walk(known)

    def encloses(self, other: FunctionScope) -> bool:
        """Tell whether another function is defined in this one, or in a class or function there."""
        around = other.parent
        while around is not None and around is not self:
            around = around.parent
        return around is self

    @property
    def parameters(self) -> frozenset[str]:
        """Return the names of all parameters."""
        if isinstance(self.node, cst.Module):
            return frozenset()
        known = self.node.params
        plain = (*known.posonly_params, *known.params, *known.kwonly_params)
        rest = (known.star_arg, known.star_kwarg)
        return frozenset(each.name.value for each in (*plain, *rest) if type(each) is cst.Param)

    @property
    def first_parameter(self) -> str | None:
        """Return the name of the first positional parameter, ``self`` in a method."""
        if isinstance(self.node, cst.Module):
            return None
        parameters = (*self.node.params.posonly_params, *self.node.params.params)
        return parameters[0].name.value if parameters else None


_CLOSED = frozenset({cst.FunctionDef, cst.ClassDef, cst.Lambda})


def _nodes_of(body: cst.CSTNode) -> tuple[tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...]]:
    """Return the nodes below ``body``, and the lambdas that were left out of them."""
    found: list[cst.CSTNode] = []
    lambdas: list[cst.CSTNode] = []
    stack = [body]
    while stack:
        current = stack.pop()
        kind = type(current)
        if kind in _CLOSED:
            if kind is cst.Lambda:
                lambdas.append(current)
            continue
        found.append(current)
        if kind not in ATOMS:
            below = child_list(current)
            below.reverse()
            stack += below
    return tuple(found), tuple(lambdas)


_WRITING_KEYWORDS = frozenset({"out", "inplace"})


def names_below(node: cst.CSTNode) -> Iterator[str]:
    """Yield every name, attribute and keyword of a node."""
    for inner in walk(node):
        if type(inner) is cst.Name:
            yield inner.value


_LOOPS = frozenset({cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp})


def _parts_of(nodes: Iterable[cst.CSTNode]) -> Iterator[Part]:
    for node in nodes:
        kind = type(node)
        if kind is cst.Attribute:
            yield from _parts_by_name(node.attr.value)  # type: ignore[attr-defined]
        elif kind is cst.Name:
            yield from _parts_by_name(node.value)  # type: ignore[attr-defined]
        elif kind is cst.Arg:
            if _keyword_of(node) in _WRITING_KEYWORDS:
                yield Part.WRITE
        elif kind is cst.AssignTarget or kind is cst.AnnAssign:
            if type(node.target) is cst.Subscript:  # type: ignore[attr-defined]
                yield Part.WRITE
        elif kind is cst.AugAssign:
            yield Part.WRITE
        elif kind in _LOOPS:
            yield Part.LOOP


def _keyword_of(node: cst.CSTNode) -> str | None:
    return node.keyword.value if type(node) is cst.Arg and node.keyword is not None else None


def _parts_by_name(name: str) -> Iterator[Part]:
    if name in INPLACE_METHODS:
        yield Part.WRITE
    if "backward" in name:
        yield Part.BACKWARD


@dataclass(frozen=True, slots=True, eq=False)
class LinkedTree:
    """What is read of another file of the project together with this one.

    ``bindings`` say what its names stand for that it has from others.
    """

    path: str
    tree: cst.Module
    bindings: Mapping[str, Target]


class Scopes:
    """Hold the scopes and imports of one module, and of what is read together with it."""

    def __init__(
        self,
        module: cst.Module,
        linked: Sequence[LinkedTree] = (),
        bindings: Mapping[str, Target] = MappingProxyType({}),
        path: str = "",
    ) -> None:
        self.top = FunctionScope("<module>", module)
        self.functions: list[FunctionScope] = [self.top]
        """Those of the file itself first."""
        self.classes: dict[str, ClassScope] = {}
        self._imports: dict[str, str] = {}
        self._imported: set[str] = set()
        self._resolved: dict[str, str | None] = {}
        self._class_words: dict[int, frozenset[str]] = {}
        self._by_name: dict[str, list[FunctionScope]] | None = None
        self._uses_engine: bool | None = None
        self._bindings = bindings
        self.dotted = frozenset(
            local
            for each in (bindings, *(known.bindings for known in linked))
            for local in each
            if "." in local
        )
        """The names that are taken from modules: ``models.Net`` after ``import models``."""
        self._collect(module, self.top, None, "")
        own = len(self.functions)
        tops = {path: self.top}
        for known in linked:
            top = tops[known.path] = FunctionScope("<module>", known.tree)
            self.functions.append(top)
            self._bindings = known.bindings
            self._collect(known.tree, top, None, "")
        for scope in self.functions[own:]:
            scope.linked = True
        self._bind(self.top, bindings, tops)
        for known in linked:
            self._bind(tops[known.path], known.bindings, tops)

    def _bind(
        self,
        top: FunctionScope,
        bindings: Mapping[str, Target],
        tops: Mapping[str, FunctionScope],
    ) -> None:
        """Let the names of a file that it has from others stand for what they are there."""
        for local, (path, name) in bindings.items():
            source = tops.get(path)
            if source is None or local in top.nested:
                continue
            if name in source.nested:
                top.nested[local] = source.nested[name]
            elif name in self.classes:
                self.classes.setdefault(local, self.classes[name])
            else:
                top.borrowed[local] = source, name

    def release(self) -> None:
        """Undo the circles between scopes, which nobody may ask from here on."""
        for scope in self.functions:
            scope.parent = scope.owner = None
            scope.nested.clear()
        for known in self.classes.values():
            known.methods.clear()
        self.functions.clear()
        self.classes.clear()
        self._by_name = None

    def resolve_import(self, dotted: str) -> str | None:
        """Return the full name of what ``dotted`` was imported as, or None.

        ``import torch.nn as nn`` makes ``nn.Linear`` resolve to ``torch.nn.Linear``. Names that
        are imported twice from different places resolve to nothing.
        """
        known = self._resolved.get(dotted, "")
        if known == "":
            known = self._resolved[dotted] = self._resolve(dotted)
        return known

    def _resolve(self, dotted: str) -> str | None:
        root, _, rest = dotted.partition(".")
        origin = None if dotted in self.dotted else self._imports.get(root)
        if not origin:
            return None
        full = f"{origin}.{rest}" if rest else origin
        return _CANONICAL.sub(lambda match: _ALIASES[match.group()], full)

    def imports_below(self, part: str) -> frozenset[str]:
        """Return the names that stand for what was imported from a package with such a part."""
        return frozenset(local for local, full in self._imports.items() if part in full.split("."))

    def aliases_of(self, is_wanted: Callable[[str], bool]) -> frozenset[str]:
        """Return the names that stand for imported things with certain last names."""
        return frozenset(
            local
            for local, full in self._imports.items()
            if is_wanted(full.rpartition(".")[2]) and not is_wanted(local)
        )

    @property
    def uses_engine(self) -> bool:
        """Tell whether the file imports an engine that can manage a training loop."""
        if self._uses_engine is None:
            self._uses_engine = any(map(_is_engine, self._imported))
        return self._uses_engine

    def runs_in_engine(self, scope: FunctionScope) -> bool:
        """Tell whether an engine calls a function: a method of a class that the engine knows.

        That is one that derives from a class of the engine, or from one of another file.
        """
        around: FunctionScope | None = scope
        while around is not None and around.owner is None:
            around = around.parent
        if around is None or not self.uses_engine:
            return False
        bases = [base for known in self.lineage(around.owner) for base in known.bases]
        return any(self._may_be_of_engine(base) for base in bases)

    def _may_be_of_engine(self, base: str) -> bool:
        full = self.resolve_import(base)
        if full is None or full == "object" or base in self.classes:
            return False
        return _is_engine(full) or full.partition(".")[0] not in {"torch", "abc", "typing", "enum"}

    def method(self, owner: ClassScope | None, name: str) -> FunctionScope | None:
        """Find a method in a class or in its bases in the same file."""
        for scope in self.lineage(owner):
            if name in scope.methods:
                return scope.methods[name]
        return None

    def inherited_method(self, owner: ClassScope | None, name: str) -> FunctionScope | None:
        """Find the method that ``super().<name>`` means, if a base in this file has it."""
        bases = (scope for scope in self.lineage(owner) if scope is not owner)
        return next((base.methods[name] for base in bases if name in base.methods), None)

    def lineage(self, owner: ClassScope | None) -> Iterator[ClassScope]:
        """Yield a class and its bases of the same file, nearest first."""
        waiting = [owner] if owner else []
        seen: set[int] = set()
        while waiting:
            scope = waiting.pop(0)
            if id(scope) in seen:
                continue
            seen.add(id(scope))
            yield scope
            waiting.extend(self.classes[base] for base in scope.bases if base in self.classes)

    @property
    def by_name(self) -> Mapping[str, Sequence[FunctionScope]]:
        """Return the functions by their last names, and the methods by those of their classes."""
        if self._by_name is None:
            self._by_name = {}
            for scope in self.functions[1:]:
                self._by_name.setdefault(scope.name.rpartition(".")[2], []).append(scope)
            for name, owner in self.classes.items():
                self._by_name.setdefault(name, []).extend(owner.methods.values())
        return self._by_name

    def class_words(self, owner: ClassScope) -> frozenset[str]:
        """Return the words of a class and of its bases in the same file, outside of methods."""
        known = self._class_words.get(id(owner))
        if known is None:
            known = frozenset[str]().union(*(scope.words for scope in self.lineage(owner)))
            self._class_words[id(owner)] = known
        return known

    def is_made_to_order(self, owner: ClassScope | None) -> bool:
        """Tell whether arguments of a class are read by a base, which may then wrap its methods.

        ``class Solver(Implicit, solve=cg)`` hands them to a metaclass or ``__init_subclass__``.
        """
        return any(scope.node.keywords for scope in self.lineage(owner))

    def derives_from(self, owner: ClassScope | None, prefix: str) -> bool:
        """Tell whether a class has a base whose full name starts with ``prefix``.

        Well-known modules of other packages count as ``torch.nn.Module``.
        """
        bases = (
            self.resolve_import(base) or "" for scope in self.lineage(owner) for base in scope.bases
        )
        return any(
            base.startswith(prefix)
            or (base in _OTHER_MODULES and "torch.nn.Module".startswith(prefix))
            for base in bases
        )

    def _collect(
        self,
        node: cst.CSTNode,
        function: FunctionScope,
        owner: ClassScope | None,
        prefix: str,
    ) -> None:
        # Statements nest, expressions do not hold definitions: only blocks are entered.
        # Types are compared, since isinstance() is slow for abstract classes.
        for child in child_list(node):
            kind = type(child)
            if kind is cst.SimpleStatementLine:
                for statement in child.body:  # type: ignore[attr-defined]
                    if type(statement) in _IMPORTS:
                        self._add_import(statement)
            elif kind in _IMPORTS:  # `if x: import y`
                self._add_import(child)  # type: ignore[arg-type]
            elif kind in _BLOCKS:
                self._collect(child, function, owner, prefix)
            elif type(child) is cst.FunctionDef:
                self._add_function(child, function, owner, prefix)
            elif type(child) is cst.ClassDef:
                self._add_class(child, function, prefix)

    def _add_function(
        self, node: cst.FunctionDef, parent: FunctionScope, owner: ClassScope | None, prefix: str
    ) -> None:
        name = f"{prefix}{node.name.value}"
        scope = FunctionScope(name, node, owner=owner, parent=parent)
        self.functions.append(scope)
        if owner is None:
            parent.nested[node.name.value] = scope
        else:
            owner.methods[node.name.value] = scope
        self._collect(node.body, scope, None, f"{name}.")

    def _add_class(self, node: cst.ClassDef, function: FunctionScope, prefix: str) -> None:
        names = [dotted_name(base.value) for base in node.bases]
        bases = tuple(name for name in names if name is not None)
        scope = ClassScope(f"{prefix}{node.name.value}", node, bases)
        self.classes[node.name.value] = scope
        self._collect(node.body, function, scope, f"{scope.name}.")

    def _add_import(self, node: cst.Import | cst.ImportFrom) -> None:
        module, origin = "", ""
        if type(node) is cst.ImportFrom:
            module = "." * len(node.relative) + (dotted_name(node.module) or "")
            origin = f"{module}."
        names = node.names
        if isinstance(names, cst.ImportStar):
            self._imported.add(module)
            return
        for alias in names:
            name = dotted_name(alias.name) or ""
            full = f"{origin}{name}"
            self._imported.add(full)
            local = dotted_name(alias.asname.name) if alias.asname else None
            if (local or name) in self._bindings:
                continue
            if local is None and type(node) is cst.Import:
                local = full = name.partition(".")[0]
            local = local or name
            if self._imports.setdefault(local, full) != full:
                self._imports[local] = ""


def _is_engine(name: str) -> bool:
    """Tell whether what is imported manages the training loop, or is a part of what does."""
    if name.partition(".")[0] in ENGINE_PACKAGES and not name.startswith("lightning.fabric"):
        return True
    return any(name == module or name.startswith(module + ".") for module in ENGINE_MODULES)


_IMPORTS = frozenset({cst.Import, cst.ImportFrom})
_BLOCKS = frozenset(
    {
        cst.IndentedBlock,
        cst.SimpleStatementSuite,
        cst.If,
        cst.Else,
        cst.For,
        cst.While,
        cst.With,
        cst.Try,
        cst.TryStar,
        cst.ExceptHandler,
        cst.ExceptStarHandler,
        cst.Finally,
        cst.Match,
        cst.MatchCase,
    }
)

_OTHER_MODULES = frozenset(
    {
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "pytorch_lightning.LightningModule",
        "pytorch_lightning.core.LightningModule",
        "transformers.PreTrainedModel",
    }
)

_ALIASES: Mapping[str, str] = {
    "torch.autograd.grad_mode.": "torch.",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.enable_grad": "torch.enable_grad",
    "torch.autograd.inference_mode": "torch.inference_mode",
    "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
    "torch.autograd.function.Function": "torch.autograd.Function",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "torch.nn.modules.module.Module": "torch.nn.Module",
}
_CANONICAL = re.compile("^(?:" + "|".join(map(re.escape, _ALIASES)) + ")")
