"""Read statements: assignments, branches, loops, ``with`` and ``try``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.arithmetic import combine
from gradcheck_lint.model.attaching import may_hold_layers
from gradcheck_lint.model.beginnings import Beginnings, first_time
from gradcheck_lint.model.carried import carried_names
from gradcheck_lint.model.elements import bind_target, element_of
from gradcheck_lint.model.entries import note_entry, note_update
from gradcheck_lint.model.expressions import look_up, read
from gradcheck_lint.model.flow import (
    Attach,
    Block,
    Event,
    GradMode,
    InPlace,
    Jump,
    JumpKind,
    Loop,
    Return,
    SetData,
    Store,
    StoreKind,
    ZeroGrad,
)
from gradcheck_lint.model.grad_mode import catches_torch_errors, expects_error, mode_inside
from gradcheck_lint.model.growing import added_to_item, added_to_list, joined_to
from gradcheck_lint.model.methods import set_requires_grad
from gradcheck_lint.model.own_leaves import own_leaf
from gradcheck_lint.model.state import State, as_kind, join_states
from gradcheck_lint.model.statement_forms import (
    OPERATORS,
    counter_of,
    is_loader,
    pattern_names,
    runs_once,
    static_truth,
    targets,
    terms,
)
from gradcheck_lint.model.syntax import (
    boolean,
    bound_names,
    dotted_name,
    first_word,
    is_literal,
    is_none,
    string_index,
)
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Values,
    aliased_by,
    all_are,
    replace,
    through_all,
    with_entry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradcheck_lint.model.reading import Reading

_PASSES = ((2, 7), (3, 5), (5, 4))
"""How often loops of up to so many levels are read, since each level multiplies the passes."""
_SUMS = frozenset({cst.BinaryOperation, cst.IfExp})
_GROWN = frozenset({cst.Call, cst.List, cst.BinaryOperation})
_DISPLAYS = frozenset({cst.List, cst.Tuple})
_PATIENCE = 3
"""Names that still change when fewer passes are left count as unknown from then on."""


class StatementReader:
    """Read the statements of one function into its block."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._breaks: list[list[State]] = []
        self._continues: list[list[State]] = []
        self._beginnings = Beginnings()
        self._counter: str | None = None
        self._carried: dict[int, frozenset[str]] = {}

    def read_body(self, body: cst.BaseSuite | cst.Module) -> None:
        """Read every statement of a body, or of a line."""
        # Types are looked up, since isinstance() is slow for abstract classes.
        for statement in body.body:
            reader = self._readers.get(type(statement))
            if reader is not None:
                reader(self, statement)

    # Simple statements

    def _read_expression(self, node: cst.Expr) -> None:
        reading = self._reading
        reading.statement_value = node.value
        read(reading, node.value)
        reading.statement_value = None

    def _read_assignment(self, node: cst.Assign) -> None:
        values = read(self._reading, node.value)
        for target in node.targets:
            self._assign(target.target, values, node.value)

    def _read_annotated(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, read(self._reading, node.value), node.value)

    def _read_return(self, node: cst.Return) -> None:
        reading = self._reading
        values = read(reading, node.value) if node.value is not None else NOTHING
        reading.recorder.event(Return, node, reading.state.mode, values=values)
        reading.state.dead = True

    def _read_assertion(self, node: cst.Assert) -> None:
        read(self._reading, node.test)

    def _assign(
        self, target: cst.BaseExpression, values: Values, source: cst.BaseExpression
    ) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            self._note_gradients(target, source)
            bind_target(self._reading, target, values)
            return
        if type(target) is cst.Subscript:
            self._write_item(target, values, source)
            return
        path = dotted_name(target)
        if type(target) is cst.Attribute:
            base = read(self._reading, target.value)
            if target.attr.value == "grad":
                self._note_gradient(target, base, source)
            elif target.attr.value == "data":
                mode = self._reading.state.mode
                self._reading.recorder.event(SetData, target, mode, values=base)
            elif target.attr.value == "requires_grad":
                set_requires_grad(self._reading, target, base, wanted=boolean(source))
            self._note_attached(target, base, values)
            self._give_attribute(target, base, values)
        if path is not None:
            if type(source) in _SUMS:
                self._note_running_sum(target, path, source)
            # An attribute may grow by each call of a method.
            if type(source) in _GROWN and (self._reading.recorder.loops or "." in path):
                self._note_growth(target, path, values, source)
            self._reading.bind(path, values)

    def _note_gradients(self, target: cst.Tuple | cst.List, source: cst.BaseExpression) -> None:
        """Note the gradients that are set by ``x.grad, y.grad = ...``."""
        for element in target.elements:
            inner = element.value
            if isinstance(inner, (cst.Tuple, cst.List)):
                self._note_gradients(inner, source)
            elif type(inner) is cst.Attribute and inner.attr.value == "grad":
                self._note_gradient(inner, read(self._reading, inner.value), source)

    def _note_gradient(
        self, target: cst.Attribute, base: Values, source: cst.BaseExpression
    ) -> None:
        reading = self._reading
        reading.recorder.event(
            ZeroGrad,
            target,
            reading.state.mode,
            values=base,
            clears=is_none(source),
            leaf=own_leaf(reading, target),
        )

    def _give_attribute(self, target: cst.Attribute, base: Values, values: Values) -> None:
        """Let an object have what is assigned to its attribute, under all its names."""
        key = target.attr.value
        for value in base:
            if value.kind is Kind.INSTANCE and value.site != self._reading.own_site:
                self._reading.state.replace_site(
                    value.site, lambda known: with_entry(known, key, values)
                )

    def _note_attached(self, target: cst.BaseExpression, base: Values, values: Values) -> None:
        """Record ``model.head = nn.Linear(...)``."""
        reading = self._reading
        if not all_are(values, Kind.MODULE, Kind.LEAF) or not may_hold_layers(reading, base):
            return
        path = dotted_name(target)
        reading.recorder.event(
            Attach,
            target,
            reading.state.mode,
            path=path or self._reading.source_of(target),
            values=base,
            attached=values,
            replaced=NOTHING if path is None else reading.look_up(path),
        )

    def _note_running_sum(
        self, target: cst.BaseExpression, path: str, source: cst.BaseExpression
    ) -> None:
        """Record ``total = total + loss``, also with weights, also as one of two choices."""
        if type(source) is cst.IfExp:
            choices = (source.body, source.orelse)
            first = first_time(source.test, self._counter)
            if first is not None and first.path in {None, path}:
                start = choices[first.arm]
                if (begins := dotted_name(start)) is not None:
                    self._beginnings.note(path, self._reading.look_up(begins), start)
            for choice in choices:
                self._note_running_sum(target, path, choice)
            return
        known = terms(source)
        others = [term for term in known if dotted_name(term) != path]
        if len(known) < 2 or len(others) == len(known) or not others:  # noqa: PLR2004 - two operands
            return
        self._store_named(target, path, others)

    def _note_growth(
        self,
        target: cst.BaseExpression,
        path: str,
        values: Values,
        source: cst.BaseExpression,
    ) -> None:
        """Record ``seen = torch.cat([seen, x])``, ``losses = losses + [loss]``."""
        held = self._reading.look_up(path)
        joined = joined_to(path, source, self._reading.scopes)
        if joined is not None:
            self._store(target, path, values, joined, held=held, how=StoreKind.APPEND)
        if all_are(held, Kind.CONTAINER):
            self._store_named(target, path, added_to_list(path, source), how=StoreKind.APPEND)

    def _store_named(
        self,
        target: cst.BaseExpression,
        path: str,
        added: Sequence[cst.BaseExpression],
        *,
        how: StoreKind = StoreKind.ACCUMULATE,
    ) -> None:
        """Record what is added to a name, of that what has a name itself."""
        held = self._reading.look_up(path)
        for term in added:
            if isinstance(term, (cst.Name, cst.Attribute)):
                values = self._reading.look_up(dotted_name(term) or "")
                self._store(target, path, values, term, held=held, how=how)

    def _store(
        self,
        node: cst.CSTNode,
        path: str,
        stored: Values,
        stored_node: cst.CSTNode,
        *,
        held: Values,
        how: StoreKind = StoreKind.ACCUMULATE,
    ) -> None:
        self._reading.recorder.event(
            Store,
            node,
            self._reading.state.mode,
            how=how,
            target=path,
            target_values=held,
            stored=stored,
            stored_node=stored_node,
            beginning=self._beginnings.of(path),
        )

    def _event(self, kind: type[Event], node: cst.CSTNode) -> None:
        self._reading.recorder.event(kind, node, self._reading.state.mode)

    def _write_item(
        self, target: cst.Subscript, values: Values, source: cst.BaseExpression
    ) -> None:
        reading = self._reading
        base = read(reading, target.value)
        read(reading, target)
        self._write(
            target, target.value, base, "subscript assignment", written=values, source=source
        )
        if dotted_name(target.value) and not all_are(base, Kind.CONTAINER, Kind.TUPLE):
            self._note_attached(target, base, values)
        path = dotted_name(target.value)
        loops = reading.recorder.loops
        if path and loops and type(source) is cst.BinaryOperation:
            self._store_named(target, path, added_to_item(target, source, reading.source_of))
        if path:
            keys = [each.slice.value for each in target.slice if type(each.slice) is cst.Index]
            note_entry(reading, target, path, keys=keys, values=values, source=source)
        key = string_index(target)
        for value in base:
            if key is not None and value.kind in {Kind.CONTAINER, Kind.UNKNOWN}:
                reading.state.replace_site(value.site, lambda known: with_entry(known, key, values))
            elif value.kind is Kind.CONTAINER or (
                value.kind is Kind.PLAIN and not all_are(values, Kind.PLAIN, Kind.NUMBER)
            ):
                changed = Kind.CONTAINER if value.kind is Kind.CONTAINER else Kind.UNKNOWN
                reading.state.replace_site(value.site, as_kind(changed, parts=(), entries=()))

    def _write(
        self,
        node: cst.CSTNode,
        target: cst.BaseExpression,
        values: Values,
        operation: str,
        *,
        written: Values = NOTHING,
        source: cst.BaseExpression | None = None,
    ) -> None:
        self._reading.recorder.event(
            InPlace,
            node,
            self._reading.state.mode,
            values=values,
            target=target,
            operation=operation,
            written=written,
            source=source,
        )

    def _read_augmented(self, node: cst.AugAssign) -> None:
        reading = self._reading
        added = read(reading, node.value)
        target: cst.BaseExpression = node.target
        root = target.value if type(target) is cst.Subscript else target
        held = read(reading, root)
        if root is not target:
            read(reading, target)
        path = dotted_name(root)
        if path is not None and path.endswith("grad") and is_literal(node.value):
            # `p.grad *= 0` forgets the gradient.
            self._event(ZeroGrad, node)
        if type(node.operator) is cst.MatrixMultiplyAssign:
            if path is not None and root is target:
                reading.bind(path, combine(reading, node, node.operator, held, added))
            return
        operator = OPERATORS.get(type(node.operator), "augmented assignment")
        self._write(node, root, held, f"`{operator}`", written=added, source=node.value)
        if path is None:
            return
        if all_are(held, Kind.CONTAINER) and type(node.value) in _DISPLAYS:
            self._store(node, path, added, node.value, held=held, how=StoreKind.APPEND)
        elif type(node.operator) is cst.AddAssign or type(node.operator) is cst.SubtractAssign:
            self._store(node, path, added, node.value, held=held)
        elif type(node.operator) is cst.BitOrAssign and root is target:
            note_update(reading, node, root, written=node.value, given=added)
        if root is target:
            self._rebind_augmented(node, path, held, added)

    def _rebind_augmented(
        self, node: cst.AugAssign, path: str, held: Values, added: Values
    ) -> None:
        reading = self._reading
        leaves = (Kind.LEAF, Kind.LEAF_VIEW)
        plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
        if all_are(held, *leaves) or all_are(held, Kind.CONTAINER):
            return
        if all_are(held, Kind.PLAIN):
            if not all_are(added, *plain) and reading.state.mode is not GradMode.DISABLED:
                for value in held:
                    reading.state.replace_site(value.site, as_kind(Kind.UNKNOWN))
            return
        made = combine(reading, node, node.operator, held, added)
        # A tensor is still the same one.
        shared = aliased_by(held)
        reading.bind(path, frozenset(replace(v, aliases=v.aliases | shared) for v in made))

    def _read_delete(self, node: cst.Del) -> None:
        deleted: Sequence[cst.BaseExpression] = [node.target]
        if type(node.target) is cst.Tuple:
            deleted = [element.value for element in node.target.elements]
        for target in deleted:
            path = dotted_name(target)
            if type(target) is cst.Attribute and target.attr.value == "grad":
                self._event(ZeroGrad, target)
            elif path is not None:
                self._reading.state.drop(path)

    def _read_jump(self, node: cst.Break | cst.Continue | cst.Raise) -> None:
        reading = self._reading
        if type(node) is cst.Raise:
            if node.exc is not None:
                read(reading, node.exc)
            how = JumpKind.RAISE
        elif type(node) is cst.Break:
            how = JumpKind.BREAK
            self._leave_loop(self._breaks)
        else:
            how = JumpKind.CONTINUE
            self._leave_loop(self._continues)
        reading.recorder.event(Jump, node, reading.state.mode, how=how)
        reading.state.dead = True

    def _leave_loop(self, ends: list[list[State]]) -> None:
        # Python's parser lets a stray `break` pass; its compiler is the one that objects.
        if ends:
            ends[-1].append(self._reading.state.copy())

    # Branches

    def _read_if(self, node: cst.If) -> None:
        reading = self._reading
        read(reading, node.test)
        static = static_truth(node.test)
        if static is True:
            self.read_body(node.body)
            return
        before = reading.state.copy()
        since = len(before.written)
        arms: list[Block] = []
        ends: list[State] = []
        first = first_time(node.test, self._counter) if reading.recorder.loops else None
        if static is None:
            self._read_arm(node, node.body, arms, ends)
            if first is not None and first.arm == 0:
                self._beginnings.note_arm(first, node.body, reading.state.names)
        reading.state = before
        if node.orelse is not None:
            body = node.orelse if type(node.orelse) is cst.If else node.orelse.body
            self._read_arm(node, body, arms, ends)
            if first is not None and first.arm == 1 and isinstance(body, cst.BaseSuite):
                self._beginnings.note_arm(first, body, reading.state.names)
        else:
            arms.append(Block())
            ends.append(before)
        reading.recorder.branch(node, arms, node.test if len(arms) > 1 else None)
        self._join(ends, since)

    def _read_arm(
        self,
        node: cst.CSTNode,
        body: cst.BaseSuite | cst.If,
        arms: list[Block],
        ends: list[State],
    ) -> None:
        with self._reading.arm(node, len(arms)) as block:
            if type(body) is cst.If:
                self._read_if(body)
            else:
                self.read_body(body)  # type: ignore[arg-type]
        arms.append(block)
        ends.append(self._reading.state)

    def _join(self, ends: Sequence[State], since: int) -> None:
        joined = ends[0]
        for end in ends[1:]:
            joined = join_states(joined, end, self._look_up, since)
        self._reading.state = joined

    def _look_up(self, state: State, path: str) -> Values:
        return look_up(self._reading, state, path)

    def _read_match(self, node: cst.Match) -> None:
        reading = self._reading
        read(reading, node.subject)
        before = reading.state.copy()
        since = len(before.written)
        arms: list[Block] = [Block()]
        ends: list[State] = [before]
        for case in node.cases:
            reading.state = before.copy()
            for name in pattern_names(case.pattern):
                reading.bind(name, reading.recorder.unknown(case))
            self._read_arm(node, case.body, arms, ends)
        reading.recorder.branch(node, arms)
        self._join(ends, since)

    # Loops

    def _read_loop(self, node: cst.For | cst.While) -> None:
        reading, recorder = self._reading, self._reading.recorder
        iterated = read(reading, node.iter) if type(node) is cst.For else NOTHING
        outer_block, outer_loops = recorder.block, recorder.loops
        outer_counter, self._counter = self._counter, counter_of(node)
        recorder.loops = (*outer_loops, id(node))
        entry, since = reading.state, len(reading.state.written)
        passes = _passes_at(len(recorder.loops))
        exits: list[State] = []
        body = Block()
        given_up: set[str] = set()
        for left in reversed(range(passes)):
            if left == 0:
                entry = self._forgotten(node, entry, set(entry.names))
            recorder.block = body = Block()
            reading.state = entry.copy()
            self._breaks.append([])
            self._continues.append([])
            self._read_iteration(node, iterated)
            ends = [reading.state, *self._continues.pop()]
            exits = self._breaks.pop()
            joined = entry
            for end in ends:
                joined = join_states(joined, end, self._look_up, since)
            changing = _changing(entry, joined, since)
            if left < _PATIENCE:
                given_up |= changing
                joined = self._forgotten(node, joined, given_up)
            if joined.mode is entry.mode and joined.names == entry.names:
                break
            settled = self._is_settled(node, entry, joined, changing)
            entry = joined
            if settled:
                break
        recorder.block, recorder.loops = outer_block, outer_loops
        self._counter = outer_counter
        reading.state = entry
        otherwise = Block()
        if node.orelse is not None:
            recorder.block = otherwise
            self.read_body(node.orelse.body)
            recorder.block = outer_block
        recorder.block.items.append(
            Loop(id(node), node, body, otherwise, targets(node), runs_once(node), recorder.arms)
        )
        after = reading.state
        if _ends_by_break_alone(node) and exits:
            after = exits[0]
        self._join([after, *exits], since)

    def _is_settled(
        self, node: cst.For | cst.While, before: State, after: State, changing: set[str]
    ) -> bool:
        """Tell whether another iteration would see nothing of what has changed in this one."""
        if before.mode is not after.mode or _ends_by_break_alone(node):
            return False
        carried = self._carried.get(id(node))
        if carried is None:
            carried = self._carried[id(node)] = carried_names(node)
        return carried.isdisjoint(map(first_word, changing))

    def _read_iteration(self, node: cst.For | cst.While, iterated: Values) -> None:
        reading = self._reading
        if isinstance(node, cst.For):
            bind_target(reading, node.target, element_of(reading, iterated, node.target))
            self._bind_counter(node)
            if is_loader(node.iter):
                reading.recorder.over_data.add(id(node))
                for name in bound_names(node.target):
                    found = reading.look_up(name)
                    if all_are(found, Kind.UNKNOWN) and not through_all(found):
                        reading.recorder.batches.update(value.site for value in found)
        else:
            read(reading, node.test)
        self.read_body(node.body)

    def _bind_counter(self, node: cst.For) -> None:
        """Let the number of ``for i, x in enumerate(...)`` be another one in each iteration."""
        counter = counter_of(node)
        if counter is not None and type(node.target) is cst.Tuple:
            reading = self._reading
            if all_are(reading.look_up(counter), Kind.NUMBER):
                number = reading.recorder.value(Kind.NUMBER, node.target.elements[0].value)
                reading.state.bind(counter, frozenset({number}))

    def _forgotten(self, node: cst.CSTNode, state: State, names: set[str]) -> State:
        """Let names hold something unknown, as it may be after any number of iterations."""
        recorder = self._reading.recorder
        forgotten = state.copy()
        for name in names:
            site = recorder.intern(("forgotten", id(node), name))
            value = recorder.value(Kind.UNKNOWN, node, site=site)
            forgotten.put(name, frozenset({value}))
        return forgotten

    # Contexts, errors and definitions

    def _read_with(self, node: cst.With) -> None:
        reading, recorder = self._reading, self._reading.recorder
        mode, expected = reading.state.mode, recorder.expects_error
        for item in node.items:
            reading.reads_context = True
            values = read(reading, item.item)
            reading.reads_context = False
            reading.state.mode = mode_inside(reading, item.item, reading.state.mode)
            recorder.expects_error = recorder.expects_error or expects_error(item.item)
            if item.asname is not None:
                bind_target(reading, item.asname.name, values)
        self.read_body(node.body)
        reading.state.mode, recorder.expects_error = mode, expected

    def _read_try(self, node: cst.Try | cst.TryStar) -> None:
        reading, recorder = self._reading, self._reading.recorder
        before, expected = reading.state.copy(), recorder.expects_error
        since = len(before.written)
        recorder.expects_error = expected or catches_torch_errors(node)
        self.read_body(node.body)
        recorder.expects_error = expected
        raised = join_states(before, reading.state, self._look_up, since)
        raised.dead = False
        if node.orelse is not None:
            self.read_body(node.orelse.body)
        arms: list[Block] = [Block()]
        ends: list[State] = [reading.state]
        for handler in node.handlers:
            reading.state = raised.copy()
            if handler.name is not None:
                reading.bind(dotted_name(handler.name.name) or "", recorder.unknown(handler))
            self._read_arm(node, handler.body, arms, ends)
        recorder.branch(node, arms)
        self._join(ends, since)
        if node.finalbody is not None:
            dead, reading.state.dead = reading.state.dead, False
            self.read_body(node.finalbody.body)
            reading.state.dead = reading.state.dead or dead

    def _read_definition(self, node: cst.FunctionDef) -> None:
        reading = self._reading
        scope = reading.scope.nested.get(node.name.value)
        if scope is not None:
            value = reading.recorder.value(Kind.FUNCTION, node, function=scope)
            reading.bind(node.name.value, frozenset({value}))

    _readers: ClassVar[dict[type[cst.CSTNode], Callable[..., None]]] = {
        cst.SimpleStatementLine: read_body,
        cst.If: _read_if,
        cst.For: _read_loop,
        cst.While: _read_loop,
        cst.With: _read_with,
        cst.Try: _read_try,
        cst.TryStar: _read_try,
        cst.Match: _read_match,
        cst.FunctionDef: _read_definition,
        cst.Expr: _read_expression,
        cst.Assign: _read_assignment,
        cst.AnnAssign: _read_annotated,
        cst.AugAssign: _read_augmented,
        cst.Return: _read_return,
        cst.Break: _read_jump,
        cst.Continue: _read_jump,
        cst.Raise: _read_jump,
        cst.Del: _read_delete,
        cst.Assert: _read_assertion,
    }


def _ends_by_break_alone(node: cst.For | cst.While) -> bool:
    return type(node) is cst.While and boolean(node.test) is True


def _changing(before: State, after: State, since: int) -> set[str]:
    was, held = before.names.get, after.names.get
    return {
        name
        for name in after.written_since(since)
        if name in after.names and held(name) is not was(name) and held(name) != was(name)
    }


def _passes_at(depth: int) -> int:
    """Return how often a loop at this depth may be read; the last time, nothing is known."""
    return next((passes for limit, passes in _PASSES if depth <= limit), 1)
