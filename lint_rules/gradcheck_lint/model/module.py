"""Build the function models of one file, each once, for all rules."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import libcst as cst

from gradcheck_lint.model.attributes import class_assignments, collect_attributes
from gradcheck_lint.model.callers import given_by_callers
from gradcheck_lint.model.expressions import read
from gradcheck_lint.model.flow import Block, Call, Event, GradMode, Loop, Return
from gradcheck_lint.model.grad_mode import initial_mode
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.nearness import CUTS, Nearness
from gradcheck_lint.model.reading import Reading
from gradcheck_lint.model.returning import returned_by, returns_plainly, without_forwards
from gradcheck_lint.model.scopes import ClassScope, FunctionScope, LinkedTree, NodeIndex, Scopes
from gradcheck_lint.model.state import Recorder
from gradcheck_lint.model.statements import StatementReader
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk
from gradcheck_lint.model.torch_functions import makes_optimizer
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Values, all_are, join, replace
from gradcheck_lint.project.linking import NO_UNIT

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from gradcheck_lint.project.linking import Unit

_Node = TypeVar("_Node", bound=cst.CSTNode)

_TURNS_GRAD_OFF = re.compile(
    rb"\.requires_grad\s*=(?!=|\s*True\b)|\.requires_grad_\((?!\s*(?:True\b|\)))"
)
_MOST_CALLERS = 8
"""How far up what callers hand over is looked up."""
_MOST_CALLS = 10
"""How deep what a called function returns is looked up."""
_GIVES_PARAMETERS = re.compile(
    rb"(self\.\w+)(?:\.(?:(?:named_)?parameters|eval)\(|\s*=[^=\n]*\.eval\(\)\s*$)", re.MULTILINE
)
_ZEROES = re.compile(rb"""(?:\b(\w+)|\[["'](\w+)["']\])\.zero_grad\(""")
_WORD = re.compile(rb"\w")
_TARGET_NAME = re.compile(r"y|y_true|(?:\w+_)?(?:targets?|labels?|ground_truth)")
"""How arguments are called that hold what a model is to answer, which has no graph as a rule."""
_SETTING_NAME = re.compile(
    r"t|k|n|tau|temp\w*|alpha|beta\d?|gamma|eps\w*|lr|lam\w*|lmbda|margin|sigma|smooth\w*|clip\w*"
    r"|dim|momentum|decay|threshold|(?:\w+_)?(?:coeff?|scale|steps?|size|rate|ratio|factor|epochs?)",
    re.IGNORECASE,
)
"""How arguments with a number for their default are called that no tensor is given for."""
_NOT_KNOWN: Mapping[int, Values] = MappingProxyType({})
_SETS_MODE_FOR_ALL = re.compile(rb"(?m)^\s*[\w.]*\bset_grad_enabled\(")


class FunctionModel:
    """What one function does, told once for every rule, and read when a rule first asks.

    ``block`` is its flow of events; ``bindings`` everything that each name is ever bound to;
    ``holders`` the sites of objects that own parameters (models, optimizers, callables).
    """

    __slots__ = ("_calls", "_events", "_reading", "memo", "module", "scope")

    def __init__(self, scope: FunctionScope, module: ModuleModel) -> None:
        self.scope = scope
        self.module = module
        self._reading: Reading | None = None
        self._events: tuple[Event, ...] | None = None
        self._calls: dict[int, Call] | None = None
        self.memo: dict[Hashable, Any] = {}
        """What rules have found out of this reading and want to know again."""

    @property
    def block(self) -> Block:
        """Return what happens, in order."""
        return self.reading.recorder.block

    @property
    def bindings(self) -> dict[str, Values]:
        """Return everything that each name is ever bound to."""
        return self.reading.bindings

    @property
    def holders(self) -> set[int]:
        """Return the sites of objects that own parameters."""
        return self.reading.recorder.holders

    @property
    def mode(self) -> GradMode:
        """Return the grad mode that the function starts in."""
        return initial_mode(self.module.scopes, self.scope)

    @property
    def runs_in_engine(self) -> bool:
        """Tell whether an engine such as Lightning calls the function, and does what it leaves."""
        return self.module.scopes.runs_in_engine(self.scope)

    @property
    def reading(self) -> Reading:
        """Read the function's body, once."""
        if self._reading is None:
            self._reading = self.module.read(self.scope)
        return self._reading

    @property
    def is_read(self) -> bool:
        """Return whether the function's body was read."""
        return self._reading is not None

    def forget(self) -> None:
        """Read the function again when it is asked for."""
        self._reading = self._events = self._calls = None
        self.memo.clear()

    @property
    def qualified_name(self) -> str | None:
        """Return the name that reports show: ``Trainer.fit``, None at the top level."""
        return None if isinstance(self.scope.node, cst.Module) else self.scope.name

    def loops(self) -> Iterator[Loop]:
        """Yield every loop of the function, outer loops first."""
        yield from self.block.loops()

    def events(self) -> Iterator[Event]:
        """Yield every event of the function in source order."""
        if self._events is None:
            self._events = tuple(self.block.events())
        return iter(self._events)

    def call_at(self, node: cst.CSTNode) -> Call | None:
        """Return the first event that is the call at a node, None if there is none."""
        if self._calls is None:
            calls = [event for event in self.events() if isinstance(event, Call)]
            self._calls = {id(event.node): event for event in reversed(calls)}
        return self._calls.get(id(node))


class ModuleModel:
    """The models of all functions of one file, and what they share."""

    def __init__(
        self,
        tree: cst.Module,
        source: bytes,
        linked: Sequence[LinkedTree] = (),
        unit: Unit = NO_UNIT,
    ) -> None:
        self.tree = tree
        self.source = b"".join((source, *(known.text.encode() for known in unit.slices)))
        """What is read, with what other files of the project give."""
        self.scopes = Scopes(tree, linked, unit.bindings, unit.path)
        self.near = Nearness(self.scopes)
        self.may_freeze = _has(source, b"requires_grad", _TURNS_GRAD_OFF)
        self.sets_mode_for_all = _has(source, b"set_grad_enabled", _SETS_MODE_FOR_ALL)
        self._models: dict[int, FunctionModel] = {}
        self._readings: dict[int, Reading] = {}
        self._finished: set[int] = set()
        self._attributes: dict[tuple[str, str], Values] = {}
        self._assigned: dict[int, dict[str, list[cst.BaseExpression | None]]] = {}
        self._interned: dict[Hashable, int] = {}
        self._origins: dict[int, Hashable] = {}
        self.unrecorded: set[int] = set()
        """The nodes whose result has no graph because nothing is recorded there."""
        self._asking: list[int] = []
        """The functions whose callers are being read."""
        self._asking_for: set[tuple[str, str]] = set()
        """The attributes whose sources are being read, by class and name."""
        self._left_out = 0
        """How often something was not asked, since it was being read."""
        self._nested = 0
        """How many functions are being read, each while another one is."""
        self._provisional: set[int] = set()
        """The functions that were read without all that is told of them elsewhere."""
        self._read_again: set[int] = set()
        """Those of them that were forgotten, which happens once."""
        self._depth = 0
        self._returns_optimizer: dict[int, bool] = {}
        self._optimizer_words: frozenset[str] | None = None
        self._models_on_self: frozenset[str] | None = None
        self._zeroed_names: frozenset[str] | None = None
        self._texts: dict[int, str] = {}
        self.memo: dict[Hashable, Any] = {}
        """What rules have found out and want to know again."""

    def mentions(self, *words: bytes) -> bool:
        """Tell whether the source has one of these words, which is looked for once."""
        key = ("mentions", words)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = any(word in self.source for word in words)
        return bool(known)

    def matches(self, expression: re.Pattern[bytes]) -> bool:
        """Tell whether an expression matches in the source, where it is looked for once."""
        key = ("matches", expression)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = expression.search(self.source) is not None
        return bool(known)

    @property
    def models_on_self(self) -> frozenset[str]:
        """Return ``self.<attribute>`` of all that gives its parameters or has ``eval()``."""
        if self._models_on_self is None:
            gives = b"self" in self.source and self.mentions(b"parameters(", b".eval()")
            found = _GIVES_PARAMETERS.finditer(self.source) if gives else ()
            self._models_on_self = frozenset(
                match[1].decode() for match in found if _begins_word(match)
            )
        return self._models_on_self

    @property
    def zeroed_names(self) -> frozenset[str]:
        """Return the last words of all whose ``zero_grad()`` the file calls."""
        if self._zeroed_names is None:
            found = _ZEROES.finditer(self.source) if b"zero_grad" in self.source else ()
            self._zeroed_names = frozenset(match[match.lastindex or 0].decode() for match in found)
        return self._zeroed_names

    def release(self) -> None:
        """Let go of everything, so that nothing of the tree waits for the garbage collector.

        Models, scopes and what was read refer to one another in circles. A collection that has
        to find out costs a tenth of the time of the whole file.
        """
        for known in (self._models, self._readings, self._attributes, self._assigned, self.memo):
            known.clear()
        self.__dict__.pop("_index", None)
        self.scopes.release()

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of an expression on one line, without parentheses of its own."""
        known = self._texts.get(id(node))
        if known is None:
            known = self._texts[id(node)] = self._text_by_tree(node)
        return known

    def code(self, node: cst.CSTNode) -> str:
        """Return the source of a node on one line, to be quoted or put elsewhere."""
        return " ".join(self.tree.code_for_node(node).split())

    def _text_by_tree(self, node: cst.CSTNode) -> str:
        code = self.tree.code_for_node(node)
        openings, closings = getattr(node, "lpar", ()), getattr(node, "rpar", ())
        for opening, closing in zip(openings, reversed(closings), strict=True):
            end = len(code) - len(self.tree.code_for_node(closing))
            code = code[len(self.tree.code_for_node(opening)) : end]
        return " ".join(code.split())

    def nodes_of(self, kind: type[_Node]) -> Sequence[_Node]:
        """Return all nodes of the file that are of exactly this type, in order."""
        return cast("Sequence[_Node]", self._index.of(kind))

    @cached_property
    def _index(self) -> NodeIndex:
        return NodeIndex(walk(self.tree))

    def functions(self) -> Iterator[FunctionModel]:
        """Yield the model of every function, the top level first."""
        for scope in self.scopes.functions:
            yield self.function(scope)

    def own_functions(self) -> Iterator[FunctionModel]:
        """Yield the functions of the file itself, without those of other files."""
        for scope in self.scopes.functions:
            if not scope.linked:
                yield self.function(scope)

    def function(self, scope: FunctionScope) -> FunctionModel:
        """Return the model of a function."""
        known = self._models.get(id(scope))
        if known is None:
            known = self._models[id(scope)] = FunctionModel(scope, self)
        return known

    def read(self, scope: FunctionScope) -> Reading:
        """Read a function, after those that it is defined in, and after those that call it."""
        if scope.parent is not None and id(scope.parent) not in self._readings:
            _ = self.function(scope.parent).reading
        mode = initial_mode(self.scopes, scope)
        around = None if scope.parent is None else self._readings[id(scope.parent)].recorder
        recorder = Recorder(
            interned=self._interned,
            unrecorded=self.unrecorded,
            models=set() if around is None else set(around.models),
        )
        left_out, self._nested = self._left_out, self._nested + 1
        given = self._given_by_callers(scope, recorder)
        reading = Reading(scope, self, mode, recorder)
        self._readings[id(scope)] = reading
        _bind_parameters(reading, given)
        StatementReader(reading).read_body(scope.body)
        self._finished.add(id(scope))
        self.function(scope).forget()
        if scope.parent is None:
            self._forget_all_but(scope)
        elif self._left_out > left_out:
            self._provisional.add(id(scope))
        self._left_out, self._nested = left_out, self._nested - 1
        if not self._nested:
            self._forget_provisional(but=scope)
        return reading

    def _forget_provisional(self, *, but: FunctionScope) -> None:
        """Forget what was read while something that it rests on was being read, once."""
        for key in self._provisional - {id(but)}:
            self._forget_once(self._models[key])
        self._provisional.clear()

    def _forget_once(self, known: FunctionModel) -> None:
        key = id(known.scope)
        if known.is_read and key not in self._read_again:
            known.forget()
            self._readings.pop(key, None)
            self._finished.discard(key)
            self._provisional.discard(key)
            self._read_again.add(key)

    def _forget_all_but(self, top: FunctionScope) -> None:
        """Forget the functions that were read before a top level that calls them was known."""
        for known in [known for known in self._models.values() if top.encloses(known.scope)]:
            if known.is_read:
                known.forget()
                self._readings.pop(id(known.scope), None)
                self._finished.discard(id(known.scope))
                self._attributes.clear()
                self.memo.clear()

    def _given_by_callers(self, scope: FunctionScope, recorder: Recorder) -> Mapping[int, Values]:
        node = scope.node
        if isinstance(node, cst.Module) or len(self._asking) >= _MOST_CALLERS:
            return {}
        self._asking.append(id(scope))
        given = given_by_callers(self, scope, recorder)
        self._asking.pop()
        return given

    def callers_of(self, scope: FunctionScope) -> Iterator[FunctionModel]:
        """Yield the functions that may call one by its name and have been, or can be, read."""
        for caller in self._naming(scope):
            if self._is_being_read(caller):
                self._left_out += 1
            else:
                yield self.function(caller)

    def _naming(self, scope: FunctionScope) -> Sequence[FunctionScope]:
        name = scope.name.rpartition(".")[2]
        if name == "__init__" and scope.owner is not None:
            name = scope.owner.name.rpartition(".")[2]
        if name != "forward":
            return self._named_in.get(name, ())
        # A model is called by others than its own methods, under any name.
        return [
            caller
            for caller in self.scopes.functions
            if name in caller.words or (caller.owner is not scope.owner and not caller.linked)
        ]

    def _is_being_read(self, scope: FunctionScope) -> bool:
        is_begun = id(scope) in self._readings and id(scope) not in self._finished
        return is_begun or id(scope) in self._asking

    @cached_property
    def _named_in(self) -> dict[str, list[FunctionScope]]:
        """Return the functions that name each function or class, in the order of the source."""
        names = self.scopes.by_name.keys() | self.scopes.classes.keys()
        found: dict[str, list[FunctionScope]] = {}
        for scope in self.scopes.functions:
            for word in names & scope.words:
                found.setdefault(word, []).append(scope)
        return found

    def bindings_around(self, scope: FunctionScope, name: str) -> Values:
        """Return everything that the enclosing functions and the module bind to ``name``."""
        if name in scope.borrowed:
            return self._borrowed(*scope.borrowed[name])
        around = scope.parent
        while around is not None:
            if name in around.borrowed:
                return self._borrowed(*around.borrowed[name])
            if id(around) in self._finished and name in self._readings[id(around)].bindings:
                return self._readings[id(around)].bindings[name]
            nested = around.nested.get(name)
            if nested is not None:
                own = Recorder(interned=self._interned, unrecorded=self.unrecorded)
                return frozenset({own.value(Kind.FUNCTION, nested.node, function=nested)})
            around = around.parent
        return NOTHING

    def _borrowed(self, top: FunctionScope, name: str) -> Values:
        """Return what the top level of another file binds to a name."""
        if id(top) in self._readings and id(top) not in self._finished:
            return NOTHING  # the files import each other
        return self.function(top).bindings.get(name, NOTHING)

    def class_attribute(self, class_name: str, attribute: str) -> Values:
        """Return everything that the methods of a class bind to ``self.<attribute>``.

        A class that is only partly known (a base from another file, an attribute that is bound in
        a way that can't be read) says nothing.
        """
        key = (class_name, attribute)
        known = self._attributes.get(key)
        if known is not None:
            return known
        if key in self._asking_for:
            self._left_out += 1
            return NOTHING
        left_out = self._left_out
        self._asking_for.add(key)
        found = self._read_attribute(class_name, attribute)
        self._asking_for.discard(key)
        if self._left_out == left_out:
            self._attributes[key] = found
        return found

    def _read_attribute(self, class_name: str, attribute: str) -> Values:
        owner = self.scopes.classes.get(class_name.rpartition(".")[2])
        sources: list[tuple[cst.BaseExpression | None, FunctionScope | None]] = [
            (source, method)
            for scope in self.scopes.lineage(owner)
            for method in scope.methods.values()
            for source in self._assigned_in(method).get(attribute, [])
        ]
        sources = sources or [(known, None) for known in self._in_class_body(owner, attribute)]
        if not sources or any(source is None for source, _ in sources):
            return NOTHING
        reading = Reading(
            self.scopes.top,
            self,
            GradMode.ENABLED,
            Recorder(interned=self._interned, unrecorded=self.unrecorded),
        )
        if owner is not None:
            _bind_self(reading, owner)
        found, is_moved = NOTHING, False
        for source, method in sources:
            if _moves_itself(source, attribute, method):
                is_moved = True
            elif source is not None:
                values = self._local_of(method, source) or read(reading, source)
                if any(value.kind is Kind.UNKNOWN for value in values):
                    return NOTHING
                found = join(found, values)
        if is_moved and not all_are(found, Kind.MODULE, Kind.INSTANCE):
            return NOTHING
        if self.may_freeze and any(value.kind in {Kind.LEAF, Kind.LEAF_VIEW} for value in found):
            return NOTHING
        return frozenset(replace(value, loops=()) for value in found)

    def _local_of(self, method: FunctionScope | None, source: cst.BaseExpression) -> Values:
        """Return what a name holds in a method, nothing for other expressions."""
        if method is None or type(source) is not cst.Name:
            return NOTHING
        if id(method) in self._readings and id(method) not in self._finished:
            self._left_out += 1
            return NOTHING
        known = self.function(method)
        if id(method) in self._provisional and not any(
            map(self._is_being_read, self._naming(method))
        ):
            self._forget_once(known)
        held = known.bindings.get(source.value, NOTHING)
        self._left_out += id(method) in self._provisional
        return held

    def _in_class_body(
        self, owner: ClassScope | None, attribute: str
    ) -> list[cst.BaseExpression | None]:
        """Return what the nearest class that has the attribute in its own body gives it."""
        for scope in self.scopes.lineage(owner):
            if attribute in scope.words:
                found = [
                    source
                    for target, source in class_assignments(scope.node)
                    if dotted_name(target) == attribute
                ]
                if found:
                    return found
        return []

    def _assigned_in(self, method: FunctionScope) -> dict[str, list[cst.BaseExpression | None]]:
        known = self._assigned.get(id(method))
        if known is None:
            known = self._assigned[id(method)] = {}
            collect_attributes(method, known)
        return known

    def returns_no_graph(self, scope: FunctionScope) -> bool:
        """Tell whether nothing that a function of the file returns can have a graph.

        That is one whose decorator turns recording off, and which returns what it computed itself.
        """
        key = ("returns no graph", id(scope))
        if key not in self.memo:
            self.memo[key] = False
            mode = initial_mode(self.scopes, scope)
            if mode is GradMode.DISABLED and not isinstance(scope.node, cst.Module):
                # Not kept: what is known of the functions around it may not be complete yet.
                recorder = Recorder(interned=self._interned)
                reading = Reading(scope, self, mode, recorder)
                _bind_parameters(reading)
                StatementReader(reading).read_body(scope.node.body)
                returns = [event for event in recorder.block.events() if isinstance(event, Return)]
                self.memo[key] = bool(returns) and all(
                    all_are(event.values, Kind.PLAIN) for event in returns
                )
        return bool(self.memo[key])

    def intern(self, key: Hashable) -> int:
        """Return the site that stands for ``key``, as a recorder's."""
        return self._interned.setdefault(key, -1 - len(self._interned))

    def on_self(self, site: int) -> tuple[str, str] | None:
        """Return the family of classes and the name where a site is an attribute of ``self``."""
        key = self._origin_of(site)
        is_own = isinstance(key, tuple) and key[0] == "attribute" and isinstance(key[1], str)
        return (key[1], key[2]) if is_own else None  # type: ignore[index]

    def taken_from(self, site: int) -> tuple[str, int, Hashable] | None:
        """Return how a site was taken from another, which, and by what name, if it was."""
        key = self._origin_of(site)
        is_part = isinstance(key, tuple) and key[0] in {"item", "attribute"}
        return key if is_part and isinstance(key[1], int) else None  # type: ignore[index, return-value]

    def _origin_of(self, site: int) -> Hashable:
        if site >= 0:
            return None
        if len(self._origins) < len(self._interned):
            self._origins = {made: key for key, made in self._interned.items()}
        return self._origins.get(site)

    def returned_by(self, scope: FunctionScope, given: Mapping[int, Values] = _NOT_KNOWN) -> Values:
        """Return what a function of the file returns for such arguments, by their parameters.

        Which of them have a graph makes a difference where the function may cut it. Functions that
        call one another in a circle or a long chain say nothing.
        """
        with_graph = frozenset(key for key, values in given.items() if _has_graph(values))
        if with_graph and not self.near.has(scope, CUTS):
            with_graph = frozenset()
        key = ("returned by", id(scope), with_graph)
        if key not in self.memo:
            if self._depth >= _MOST_CALLS:
                return NOTHING
            self.memo[key] = NOTHING
            if not isinstance(scope.node, cst.Module) and returns_plainly(scope):
                self._depth += 1
                found = returned_by(self._block_for_caller(scope, with_graph))
                self.memo[key] = without_forwards(found, with_graph)
                self._depth -= 1
        known: Values = self.memo[key]
        return known

    def _block_for_caller(
        self, scope: FunctionScope, with_graph: frozenset[int] = frozenset()
    ) -> Block:
        """Read a function for a call that gives some of its parameters a graph."""
        if id(scope) in self._finished and not with_graph:
            return self.function(scope).block
        # Not kept: what is known of its callers and of the functions around it isn't complete yet.
        mode = initial_mode(self.scopes, scope)
        recorder = Recorder(interned=self._interned, unrecorded=self.unrecorded)
        reading = Reading(scope, self, mode, recorder)
        given = {
            known: frozenset({recorder.value(Kind.UNKNOWN, scope.node, **_computed(known))})
            for known in with_graph
        }
        _bind_parameters(reading, given)
        assert not isinstance(scope.node, cst.Module)
        StatementReader(reading).read_body(scope.node.body)
        return recorder.block

    def returns_optimizer(self, scope: FunctionScope) -> bool:
        """Tell whether a function of the file returns an optimizer of torch, whatever happens."""
        known = self._returns_optimizer.get(id(scope))
        if known is None:
            known = self._returns_optimizer[id(scope)] = self._can_only_return_optimizer(scope)
        return known

    def _can_only_return_optimizer(self, scope: FunctionScope) -> bool:
        if isinstance(scope.node, cst.Module):
            return False
        if not self._may_name_optimizer(scope):
            return False
        returned: list[cst.BaseExpression | None] = []
        assigned: dict[str, list[cst.BaseExpression]] = {}
        for node in scope.small_statements:
            if type(node) is cst.Return:
                returned.append(node.value)
            elif type(node) is cst.Assign:
                for target in node.targets:
                    for name in bound_names(target.target):
                        assigned.setdefault(name, []).append(node.value)
        sources: list[cst.BaseExpression | None] = []
        for value in returned:
            sources.extend(assigned.get(dotted_name(value) or "") or [value])
        return bool(sources) and all(self.makes_optimizer(source) for source in sources)

    def _may_name_optimizer(self, scope: FunctionScope) -> bool:
        if self._optimizer_words is None:
            own = (name for name, owner in self.scopes.classes.items() if self._steps(owner))
            self._optimizer_words = self.scopes.imports_below("optim") | {"optim"} | set(own)
        return not self._optimizer_words.isdisjoint(scope.words)

    def _steps(self, owner: ClassScope) -> bool:
        return self.scopes.derives_from(owner, "torch.optim.")

    def makes_optimizer(self, node: cst.CSTNode | None) -> bool:
        """Tell whether this calls an optimizer class of torch, or one that derives from it."""
        if type(node) is not cst.Call:
            return False
        name = dotted_name(node.func) or ""
        own = self.scopes.classes.get(name)
        if own is not None:
            is_scheduler = self.scopes.derives_from(own, "torch.optim.lr_scheduler.")
            return self.scopes.derives_from(own, "torch.optim.") and not is_scheduler
        return makes_optimizer(self.scopes.resolve_import(name) or "")

    def mode_at_yield(self, scope: FunctionScope) -> GradMode | None:
        """Return the grad mode in which a generator hands control to its caller, if it is one."""
        key = ("mode at yield", id(scope))
        if key not in self.memo:
            self.memo[key] = None
            if scope.nodes_of(cst.Yield):
                events = self._block_for_caller(scope).events()
                modes = {event.mode for event in events if type(event.node) is cst.Yield}
                self.memo[key] = modes.pop() if len(modes) == 1 else GradMode.UNKNOWN
        mode: GradMode | None = self.memo[key]
        return mode

    def modes_of_callers(self, scope: FunctionScope) -> frozenset[GradMode]:
        """Return the grad modes that the calls of a function in this file are made in.

        Methods count as called wherever a method of their name is, since what it is called on is
        not always known. A function that nobody here calls has none.
        """
        if self.sets_mode_for_all:
            return frozenset({GradMode.UNKNOWN})
        modes: set[GradMode] = set()
        waiting, seen = [scope], {id(scope)}
        while waiting:
            called = waiting.pop()
            calls = [
                (mode, caller)
                for mode, caller in self._calls_of(called)
                # A function that calls itself says nothing about who called it first.
                if mode is not GradMode.AMBIENT or caller is not called
            ]
            if not calls and called is not scope:
                modes.add(GradMode.ENABLED)
            for mode, caller in calls:
                if mode is not GradMode.AMBIENT:
                    modes.add(mode)
                elif id(caller) not in seen:
                    seen.add(id(caller))
                    waiting.append(caller)
        if not modes and len(seen) > 1:
            modes.add(GradMode.ENABLED)
        return frozenset(modes)

    def _calls_of(self, scope: FunctionScope) -> list[tuple[GradMode, FunctionScope]]:
        """Return the grad mode of every call of a function, with the function that calls it."""
        key = "calls by name and function"
        if key not in self.memo:
            known: dict[Hashable, list[tuple[GradMode, FunctionScope]]] = {}
            for caller in list(self.functions()):
                for event in caller.events():
                    if isinstance(event, Call):
                        made = (event.mode, caller.scope)
                        called, name = event.function, event.method
                        if name is not None and _is_on_super(event.node):
                            called, name = (
                                self.scopes.inherited_method(caller.scope.owner, name),
                                None,
                            )
                        if called is not None:
                            known.setdefault(id(called), []).append(made)
                        if name is not None:
                            known.setdefault(name, []).append(made)
            self.memo[key] = known
        calls: dict[Hashable, list[tuple[GradMode, FunctionScope]]] = self.memo[key]
        by_name = scope.name.rpartition(".")[2] if scope.owner is not None else None
        return [*calls.get(id(scope), []), *calls.get(by_name, [])]


def _computed(parameter: int) -> dict[str, Any]:
    """Return what is known of a parameter that a model has computed: it went through something."""
    return {
        "site": parameter,
        "loops": (),
        "origin": Origin.ARGUMENT,
        "through": frozenset({parameter}),
    }


def _has_graph(values: Values) -> bool:
    return any(value.kind is Kind.HISTORY or value.through for value in values)


def _has(source: bytes, word: bytes, pattern: re.Pattern[bytes]) -> bool:
    """Tell whether a pattern matches, which needs a word that is found much faster."""
    return word in source and pattern.search(source) is not None


def _begins_word(match: re.Match[bytes]) -> bool:
    """Tell whether a match is no end of a longer word: a pattern that begins so is slow."""
    before = match.string[match.start() - 1 : match.start()]
    return _WORD.fullmatch(before) is None


def _moves_itself(
    source: cst.BaseExpression | None, attribute: str, method: FunctionScope | None
) -> bool:
    """Tell whether an attribute gets itself, as a module does: ``self.net = self.net.cuda()``."""
    func = source.func if type(source) is cst.Call else None
    return (
        method is not None
        and type(func) is cst.Attribute
        and func.attr.value in SAME_MODULE_METHODS
        and dotted_name(func.value) == f"{method.first_parameter}.{attribute}"
    )


def _is_on_super(node: cst.CSTNode) -> bool:
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    owner = node.func.value
    return type(owner) is cst.Call and dotted_name(owner.func) == "super"


def _bind_parameters(reading: Reading, given: Mapping[int, Values] = _NOT_KNOWN) -> None:
    node = reading.scope.node
    if isinstance(node, cst.Module):
        return
    parameters = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    stars = (node.params.star_arg, node.params.star_kwarg)
    parameters.extend(star for star in stars if type(star) is cst.Param)
    for parameter in parameters:
        values = given.get(id(parameter)) or _argument(reading, parameter)
        reading.bind(parameter.name.value, values)
        if names_target(parameter.name.value) and "backward" in reading.scope.words:
            # Where it is not differentiated, the caller may give it a graph.
            reading.recorder.batches.update(value.site for value in values)
    owner = reading.scope.owner
    first = reading.scope.first_parameter
    is_static = any(
        dotted_name(decorator.decorator) in {"staticmethod", "classmethod"}
        for decorator in node.decorators
    )
    if owner is not None and first is not None and not is_static:
        name = owner.name.rpartition(".")[2]
        value = reading.recorder.value(
            Kind.INSTANCE, parameters[0], name=name, origin=Origin.ARGUMENT
        )
        reading.bind(first, frozenset({value}))
        reading.recorder.holders.add(value.site)
        reading.own_site = value.site
        reading.family = _family(reading, owner)


@lru_cache(maxsize=4096)
def names_target(name: str) -> bool:
    """Tell by its name whether an argument holds what a model is to answer."""
    return _TARGET_NAME.fullmatch(name) is not None


def _bind_self(reading: Reading, owner: ClassScope) -> None:
    """Let ``self`` be the object of a class where nothing else is known."""
    key = ("self", _family(reading, owner))
    value = reading.recorder.value(
        Kind.INSTANCE,
        owner.node,
        site=reading.recorder.intern(key),
        name=owner.name.rpartition(".")[2],
        origin=Origin.ARGUMENT,
    )
    reading.state.bind("self", frozenset({value}))
    reading.own_site, reading.family = value.site, _family(reading, owner)


def _family(reading: Reading, owner: ClassScope) -> str:
    return [scope.name for scope in reading.scopes.lineage(owner)][-1]


def _argument(reading: Reading, parameter: cst.Param) -> Values:
    annotation = parameter.annotation.annotation if parameter.annotation else None
    kind, origin = Kind.UNKNOWN, Origin.ARGUMENT
    if annotation is not None and makes_optimizer(
        reading.scopes.resolve_import(dotted_name(annotation) or "") or ""
    ):
        kind = Kind.OPTIMIZER
    elif _is_setting(parameter, annotation):
        kind = Kind.NUMBER
    return frozenset({reading.recorder.value(kind, parameter, origin=origin)})


def _is_setting(parameter: cst.Param, annotation: cst.BaseExpression | None) -> bool:
    """Tell whether an argument is a number by its annotation, or by its default and its name."""
    if annotation is not None:
        return type(annotation) is cst.Name and annotation.value in {"float", "int", "bool"}
    default = parameter.default
    # Types are compared, since isinstance() is slow for abstract classes.
    if type(default) is cst.UnaryOperation:
        default = default.expression
    if type(default) is not cst.Float and type(default) is not cst.Integer:
        return False
    return _SETTING_NAME.fullmatch(parameter.name.value) is not None
