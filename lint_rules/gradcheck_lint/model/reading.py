"""Carry what reading one function needs: its scope, its state, and where its events go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from gradcheck_lint.model.calls import read_call
from gradcheck_lint.model.expressions import look_up
from gradcheck_lint.model.flow import Block, GradMode
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.state import Recorder, State
from gradcheck_lint.model.values import NOTHING, Kind, Value, Values, join

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import libcst as cst

    from gradcheck_lint.model.nearness import Nearness
    from gradcheck_lint.model.scopes import FunctionScope, Scopes


class Surroundings(Protocol):
    """What a function can see of its module."""

    scopes: Scopes
    near: Nearness
    may_freeze: bool
    """Whether the file turns ``requires_grad`` off somewhere."""

    @property
    def models_on_self(self) -> frozenset[str]:
        """Return ``self.<attribute>`` of all that gives its parameters or has ``eval()``."""
        ...

    @property
    def zeroed_names(self) -> frozenset[str]:
        """Return the last words of all whose ``zero_grad()`` the file calls."""
        ...

    def bindings_around(self, scope: FunctionScope, name: str) -> Values:
        """Return everything that the enclosing functions and the module bind to ``name``."""
        ...

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of a node on one line."""
        ...

    def class_attribute(self, class_name: str, attribute: str) -> Values:
        """Return everything that the methods of a class bind to ``self.<attribute>``."""
        ...

    def returns_no_graph(self, scope: FunctionScope) -> bool:
        """Tell whether nothing that a function of the file returns can have a graph."""
        ...

    def mode_at_yield(self, scope: FunctionScope) -> GradMode | None:
        """Return the grad mode in which a generator hands control to its caller, if it is one."""
        ...

    def returned_by(self, scope: FunctionScope, given: Mapping[int, Values]) -> Values:
        """Return what a function of the file returns for such arguments."""
        ...

    def returns_optimizer(self, scope: FunctionScope) -> bool:
        """Tell whether a function of the file returns an optimizer of torch, whatever happens."""
        ...


_Attribute: TypeAlias = "tuple[Value, Values]"
"""A value, and what one of its attributes may hold."""


def may_write(scope: FunctionScope, scopes: Scopes) -> bool:
    """Return whether a function writes in place, or may run layers that overwrite their input."""
    if Part.WRITE in scope.parts:
        return True
    if scope.owner is None or not scope.name.endswith(".forward"):
        return False
    maker = scopes.method(scope.owner, "__init__")
    return maker is not None and not maker.words.isdisjoint({"inplace", "True"})


class Reading:
    """The reading of one function, statement by statement."""

    def __init__(
        self, scope: FunctionScope, surroundings: Surroundings, mode: GradMode, recorder: Recorder
    ) -> None:
        self.scope = scope
        self.surroundings = surroundings
        self.scopes = surroundings.scopes
        self.may_freeze = surroundings.may_freeze
        self.state = State({}, mode)
        self.recorder = recorder
        self.bindings: dict[str, Values] = {}
        self.statement_value: cst.CSTNode | None = None
        """The expression that is a statement of its own, so that nobody uses its value."""
        self.drained_by: cst.Call | None = None
        """The last call that runs the generator it's handed to its end, as ``sum`` does."""
        self.notes_saves = may_write(scope, self.scopes)
        """Whether what operations save is of interest: only where something is written to."""
        self.own_site = 0
        """The site of ``self`` in a method, 0 elsewhere."""
        self.family: Hashable = None
        """What the class shares with its bases, so that attributes are the same in all methods."""
        self.attributes: dict[tuple[int, str, frozenset[int], tuple[int, ...]], _Attribute] = {}
        """What attributes of values hold, by value, name, what may have changed it, and loops."""
        self._around: dict[str, Values] = {}
        self._free: dict[str, Values] = {}
        self._methods: dict[tuple[str, str], FunctionScope | None] = {}
        self.reads_context = False
        """Whether the expression being read is what a ``with`` statement enters."""

    def bind(self, path: str, values: Values) -> None:
        """Let a dotted name hold ``values`` from here on."""
        self.state.bind(path, values)
        self.bindings[path] = join(self.bindings.get(path, NOTHING), values)

    def look_up(self, path: str) -> Values:
        """Return what a dotted name may hold here."""
        return look_up(self, self.state, path)

    def read_call(self, node: cst.Call) -> Values:
        """Return what a call may evaluate to, and record what it does."""
        return read_call(self, node)

    def free_name(self, name: str) -> Values:
        """Return what a name that is not local may hold."""
        nested = self.scope.nested.get(name)
        if nested is not None:
            value = self.recorder.value(Kind.FUNCTION, nested.node, function=nested)
            return frozenset({value})
        return self._bindings_around(name) or self._free.get(name) or self._make_free(name)

    def _make_free(self, name: str) -> Values:
        site = self.recorder.intern(("free", name))
        node = self.scope.node
        value = self.recorder.value(Kind.UNKNOWN, node, site=site, name=name, loops=())
        made = self._free[name] = frozenset({value})
        return made

    def _bindings_around(self, name: str) -> Values:
        known = self._around.get(name)
        if known is None:
            known = self._around[name] = self.surroundings.bindings_around(self.scope, name)
        return known

    def source_of(self, node: cst.CSTNode) -> str:
        """Return the source of a node on one line."""
        return self.surroundings.text(node)

    def class_attribute(self, class_name: str, attribute: str) -> Values:
        """Return everything that the methods of a class bind to ``self.<attribute>``."""
        return self.surroundings.class_attribute(class_name, attribute)

    def method(self, class_name: str, name: str) -> FunctionScope | None:
        """Return a method of a class of this file or of its bases, None if it has none here."""
        key = (class_name, name)
        if key not in self._methods:
            self._methods[key] = self.scopes.method(self.scopes.classes.get(class_name), name)
        return self._methods[key]

    def qualified(self, dotted: str | None) -> str | None:
        """Return the full name of an imported thing, or None if the name is bound otherwise."""
        if dotted is None:
            return None
        root = dotted.partition(".")[0]
        if root in self.state.names or self._bindings_around(root):
            return None
        return self.scopes.resolve_import(dotted)

    def arm(self, node: cst.CSTNode, index: int) -> _Arm:
        """Record events into a block of their own, as arm ``index`` of a branch at ``node``."""
        return _Arm(self.recorder, (id(node), index))


class _Arm:
    """A context that records into a new block; a generator would take three times as long."""

    __slots__ = ("_around", "_place", "_recorder")

    def __init__(self, recorder: Recorder, place: tuple[int, int]) -> None:
        self._recorder = recorder
        self._place = place
        self._around = recorder.block, recorder.arms

    def __enter__(self) -> Block:
        block = self._recorder.block = Block()
        self._recorder.arms = (*self._around[1], self._place)
        return block

    def __exit__(self, *_: object) -> None:
        self._recorder.block, self._recorder.arms = self._around
