"""Follow the paths through a loop or function, with what the functions it calls do."""

# ruff: noqa: PLR0911 - each kind of event has its own answer

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import libcst as cst

from gradcheck_lint.model.arguments import parameters_given
from gradcheck_lint.model.flow import (
    Backward,
    Block,
    Branch,
    Call,
    Clip,
    Event,
    Jump,
    JumpKind,
    Loop,
    Return,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.nearness import STEPS, Sought
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk
from gradcheck_lint.model.values import sites

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from gradcheck_lint.model.values import Values

PROTOCOL: Final = (
    Backward,
    Step,
    ZeroGrad,
    Clip,
    Unscale,
    ScalerUpdate,
    SchedulerStep,
)
"""What belongs to the order of a training step."""


def _is_act(word: str) -> bool:
    return word in STEPS or word in _OTHER_ACTS or any(part in word for part in _PARTS_OF_ACTS)


_OTHER_ACTS: Final = frozenset({"unscale_", "update", "setattr", "getattr"})
_PARTS_OF_ACTS: Final = ("backward", "grad", "zero")
ACTS: Final[Sought] = _is_act
"""What is named wherever such an event is, save for what is written in place."""

EFFECTS: Final = (*PROTOCOL, Jump, Return)

_WORDS: Final = re.compile(r"\w+")
_MOST_PATHS: Final = 64
_MOST_PAIRS: Final = 1024
_MOST_CALLS: Final = 5

Binding: TypeAlias = "Mapping[int, frozenset[int]]"


@dataclass(slots=True, eq=False)
class Occurrence:
    """An event on a path.

    ``leading`` is the event of the function in question that leads to it, ``owner`` the function
    that it is written in, ``binding`` what the owner's parameters are there. ``turn`` counts the
    iterations of the loop in question.
    """

    event: Event
    leading: Event
    owner: FunctionModel
    binding: Binding
    turn: int = 0

    @property
    def is_unclear(self) -> bool:
        """Tell whether this is a call that might do anything to gradients."""
        return isinstance(self.event, Call)

    def again(self, turn: int) -> Occurrence:
        """Return the same event in another iteration."""
        return Occurrence(self.event, self.leading, self.owner, self.binding, turn)

    def keys(self, values: Values, receiver: str | None = None) -> frozenset[Hashable]:
        """Return what identifies the objects in ``values``, across functions of the file."""
        found: set[Hashable] = set()
        for value in values:
            found.update(in_caller(value.site, self.binding, self.owner))
        scope = self.owner.scope
        first = scope.first_parameter
        if receiver and first and scope.owner and receiver.startswith(first + "."):
            found.add((scope.owner.name, receiver.removeprefix(first + ".")))
        return frozenset(found)

    def held(self, values: Values) -> frozenset[int]:
        """Return the objects that can be reached from ``values``, as the caller knows them."""
        found: set[int] = set()
        for value in values:
            for site in value.holds:
                found.update(in_caller(site, self.binding, self.owner))
        return frozenset(found)


def in_caller(site: int, binding: Binding, called: FunctionModel) -> frozenset[int]:
    """Return what a site of a called function is to its caller, also ``state["opt"].x``."""
    known = binding.get(site)
    if known is not None or not binding:
        return known or frozenset({site})
    key = called.module.taken_from(site)
    if key is None:
        return frozenset({site})
    how, base, *rest = key
    bases = in_caller(base, binding, called)
    if bases == {base}:
        return frozenset({site})
    return frozenset(called.module.intern((how, one, *rest)) for one in bases)


Path: TypeAlias = "tuple[Occurrence, ...]"


class TooManyPathsError(Exception):
    """There are more paths than are worth following."""


_event_of: Final = attrgetter("event")


@dataclass(slots=True, eq=False)
class _Partial:
    events: Path = ()
    decisions: tuple[tuple[str, int], ...] = ()
    left_by: JumpKind | None = None
    returned: bool = False

    @property
    def goes_on(self) -> bool:
        return self.left_by is None and not self.returned

    @property
    def key(self) -> tuple[object, ...]:
        """Return what two ways share that differ in their decisions alone."""
        return (tuple(map(_event_of, self.events)), self.left_by, self.returned)


@dataclass(slots=True)
class _Walk:
    function: FunctionModel
    binding: Binding
    leading: Event | None = None
    seen: frozenset[int] = frozenset()


def matters(function: FunctionModel) -> bool:
    """Tell whether a function has events of a training step itself; few by words need reading."""
    scope = function.scope
    may_act = Part.WRITE in scope.parts or function.module.near.has_itself(scope, ACTS)
    return may_act and any(isinstance(event, PROTOCOL) for event in function.events())


def turns(loop: Loop, function: FunctionModel) -> list[Path]:
    """Return the paths through two iterations of a loop; empty if there are too many."""
    try:
        once = _block(loop.body, _start(function), [_Partial()])
    except TooManyPathsError:
        return []
    ways = [way for way in _distinct(once) if way.left_by is not JumpKind.RAISE]
    first = [way for way in ways if way.left_by in {None, JumpKind.CONTINUE} and not way.returned]
    pairs = [(left, right) for left in first for right in ways]
    if any(way.decisions for way in first):
        changing = loop.targets | assigned_in(loop, function)
        pairs = [
            (left, right)
            for left, right in pairs
            if _agree(left.decisions, right.decisions, changing)
        ]
    if len(pairs) > _MOST_PAIRS:
        pairs = [(way, way) for way in first]
    paths = [(*left.events, *(item.again(1) for item in right.events)) for left, right in pairs]
    return _with_step_after(paths, loop, function)


def _with_step_after(paths: list[Path], loop: Loop, function: FunctionModel) -> list[Path]:
    """Lengthen the paths of a loop that makes no step by what leads to the step after it."""
    if any(isinstance(item.event, Step) for path in paths for item in path):
        return paths
    following = _items_after(function.block, loop)
    if not following:
        return paths
    try:
        ways = _block(Block(following), _start(function), [_Partial()])
    except TooManyPathsError:
        return paths
    tails: dict[tuple[int, ...], Path] = {}
    for way in ways:
        tail = _up_to_step(way.events)
        tails[tuple(id(item.event) for item in tail)] = tail
    if len(paths) * len(tails) > _MOST_PATHS:
        return paths
    return [(*path, *tail) for path in paths for tail in tails.values()]


def _up_to_step(path: Path) -> Path:
    """Return what lies before the first step, and that; nothing if other gradients come first."""
    for index, item in enumerate(path):
        if isinstance(item.event, Step):
            return tuple(known.again(1) for known in path[: index + 1])
        if isinstance(item.event, (Backward, ZeroGrad)):
            break
    return ()


def _items_after(block: Block, loop: Loop) -> list[Event | Branch | Loop] | None:
    """Return what follows a loop in its own block; None if the block does not hold it."""
    for index, item in enumerate(block.items):
        inner: list[Block] = []
        if isinstance(item, Loop):
            if item is loop:
                return block.items[index + 1 :]
            inner = [item.body, item.otherwise]
        elif isinstance(item, Branch):
            inner = item.arms
        for below in inner:
            found = _items_after(below, loop)
            if found is not None:
                return found
    return None


def once(function: FunctionModel) -> list[Path]:
    """Return the paths through a function; empty if there are too many."""
    try:
        ways = _block(function.block, _start(function), [_Partial()])
    except TooManyPathsError:
        return []
    return [way.events for way in _distinct(ways) if way.left_by is not JumpKind.RAISE]


def _start(function: FunctionModel) -> _Walk:
    return _Walk(function, {}, seen=frozenset({id(function.scope)}))


def _distinct(ways: Sequence[_Partial]) -> list[_Partial]:
    return list({(*way.key, way.decisions): way for way in ways}.values())


def assigned_in(loop: Loop, function: FunctionModel) -> frozenset[str]:
    """Return the last words of what a loop binds, which may differ in each iteration."""
    memo = function.module.memo
    key = ("assigned in", loop.identity)
    if key not in memo:
        found: set[str] = set()
        for node in walk(loop.node):
            if type(node) in _BINDING:
                found.update(bound_names(node.target))  # type: ignore[attr-defined]
        memo[key] = frozenset(name.rpartition(".")[2] for name in found)
    names: frozenset[str] = memo[key]
    return names


_BINDING: Final = frozenset({cst.AssignTarget, cst.AugAssign, cst.NamedExpr})


def _agree(
    left: Sequence[tuple[str, int]], right: Sequence[tuple[str, int]], changing: frozenset[str]
) -> bool:
    """Tell whether two iterations decide alike where a test can't change between them."""
    known = dict(left)
    return all(known.get(text, arm) == arm or _may_change(text, changing) for text, arm in right)


def _may_change(text: str, changing: frozenset[str]) -> bool:
    return (
        "%" in text
        or "(" in text
        or not changing.isdisjoint(_WORDS.findall(text))
        or (any(mark in text for mark in "<>=") and " is " not in text)
    )


def _block(block: Block, walk: _Walk, before: list[_Partial]) -> list[_Partial]:
    ways = before
    for item in _effects(block, walk):
        going = [way for way in ways if way.goes_on]
        if not going:
            break
        gone = [way for way in ways if not way.goes_on]
        ways = gone + _item(item, walk, going)
        if len(ways) > 8:  # noqa: PLR2004 - worth a look only when they are many
            ways = list({(way.key, way.decisions): way for way in ways}.values())
        if len(ways) > _MOST_PATHS:
            ways = _forget_decisions(ways)
    return ways


def _forget_decisions(ways: list[_Partial]) -> list[_Partial]:
    merged = {way.key: _Partial(way.events, (), way.left_by, way.returned) for way in ways}
    if len(merged) > _MOST_PATHS:
        raise TooManyPathsError
    return list(merged.values())


def _item(item: Event | Branch | Loop, walk: _Walk, ways: list[_Partial]) -> list[_Partial]:
    if isinstance(item, Branch):
        return _branch(item, walk, ways)
    if isinstance(item, Loop):
        return _inner_loop(item, walk, ways)
    if isinstance(item, PROTOCOL):
        return _extend(ways, _occurrence(item, walk))
    if isinstance(item, Call):
        return _call(item, walk, ways)
    if isinstance(item, Jump):
        return [_Partial(way.events, way.decisions, item.how) for way in ways]
    if isinstance(item, Return):
        return [_Partial(way.events, way.decisions, None, returned=True) for way in ways]
    return ways


def _extend(ways: list[_Partial], occurrence: Occurrence) -> list[_Partial]:
    return [_Partial((*way.events, occurrence), way.decisions) for way in ways]


def _occurrence(event: Event, walk: _Walk) -> Occurrence:
    return Occurrence(event, walk.leading or event, walk.function, walk.binding)


def _branch(branch: Branch, walk: _Walk, ways: list[_Partial]) -> list[_Partial]:
    decision = _decision(branch, walk)
    result: list[_Partial] = []
    for index, arm in enumerate(branch.arms):
        chosen = ways
        if decision is not None:
            text, is_negated = decision
            chosen = _deciding(ways, text, index ^ is_negated)
        if chosen:
            result += _block(arm, walk, chosen)
    return result


def _deciding(ways: list[_Partial], text: str, choice: int) -> list[_Partial]:
    """Return the ways on which a test may come out like this, each with that decision."""
    found: list[_Partial] = []
    for way in ways:
        known = dict(way.decisions).get(text)
        if known is None:
            found.append(_Partial(way.events, (*way.decisions, (text, choice))))
        elif known == choice:
            found.append(way)
    return found


def _decision(branch: Branch, walk: _Walk) -> tuple[str, int] | None:
    """Return the text of a test and whether it's negated, so that equal tests decide alike."""
    test = branch.test
    if test is None or len(branch.arms) != 2:  # noqa: PLR2004 - yes and no
        return None
    is_negated = 0
    while type(test) is cst.UnaryOperation and type(test.operator) is cst.Not:
        test, is_negated = test.expression, 1 - is_negated
    text = walk.function.module.text(test)
    for negation, plain in ((" is not None", " is None"), (" != ", " == ")):
        if negation in text:
            text, is_negated = text.replace(negation, plain), 1 - is_negated
    return text, is_negated


def _effects(block: Block, walk: _Walk) -> Sequence[Event | Branch | Loop]:
    """Return what of a block a path shows: many paths go through it, and little of it matters."""
    memo = walk.function.module.memo
    key = ("effects", id(block))
    if key not in memo:
        # The block is kept as well, so that no other one gets its `id`.
        memo[key] = block, [item for item in block.items if _is_effect(item, walk)]
    found: list[Event | Branch | Loop] = memo[key][1]
    return found


def _is_effect(item: Event | Branch | Loop, walk: _Walk) -> bool:
    if isinstance(item, Branch):
        return any(_effects(arm, walk) for arm in item.arms)
    if isinstance(item, Loop):
        return bool(_effects(item.body, walk))
    if isinstance(item, Call):
        if item.function is None:
            return _is_unclear(item, walk)
        called = walk.function.module.function(item.function)
        return _may_suspend(called) or _may_matter(called)
    return isinstance(item, EFFECTS)


def _inner_loop(loop: Loop, walk: _Walk, ways: list[_Partial]) -> list[_Partial]:
    """Take one way through an inner loop's body, and each again."""
    bodies = [
        body
        for body in {way.key: way for way in _block(loop.body, walk, [_Partial()])}.values()
        if body.left_by is not JumpKind.RAISE
    ]
    result: list[_Partial] = []
    for way in ways:
        for body in bodies:
            events = (*way.events, *body.events)
            if body.returned:
                result.append(_Partial(events, way.decisions, None, returned=True))
                continue
            if loop.runs_once or body.left_by is JumpKind.BREAK or not body.events:
                result.append(_Partial(events, way.decisions))
            else:
                result.append(_Partial((*events, *body.events), way.decisions))
    return result


def _call(call: Call, walk: _Walk, ways: list[_Partial]) -> list[_Partial]:
    if call.function is None:
        return _extend(ways, _occurrence(call, walk)) if _is_unclear(call, walk) else ways
    scope = call.function
    if id(scope) in walk.seen:
        return ways
    called = walk.function.module.function(scope)
    if _may_suspend(called):
        return _extend(ways, _occurrence(call, walk))
    if not _may_matter(called):
        return ways
    if len(walk.seen) > _MOST_CALLS:
        return _extend(ways, _occurrence(call, walk))
    binding = bound_in_callee(call, called, walk.function, walk.binding)
    inside = _Walk(called, binding, walk.leading or call, walk.seen | {id(scope)})
    try:
        within = _block(called.block, inside, [_Partial()])
    except TooManyPathsError:
        return _extend(ways, _occurrence(call, walk))
    bodies = {way.key[0]: way.events for way in within if way.left_by is not JumpKind.RAISE}
    return [
        _Partial((*way.events, *events), way.decisions)
        for way in ways
        for events in bodies.values()
    ]


def _may_suspend(called: FunctionModel) -> bool:
    """Tell whether a function hands control to its caller in between."""
    memo = called.module.memo
    key = ("suspends", id(called.scope))
    if key not in memo:
        memo[key] = any(isinstance(event, Call) and event.suspends for event in called.events())
    return bool(memo[key])


def _may_matter(called: FunctionModel) -> bool:
    """Return whether a path through a function has anything to show."""
    memo = called.module.memo
    key = ("matters", id(called.scope))
    if key not in memo:
        memo[key] = False
        memo[key] = any(
            isinstance(event, PROTOCOL)
            or (isinstance(event, Call) and _calls_what_matters(event, called))
            for event in called.events()
        )
    return bool(memo[key])


def _calls_what_matters(call: Call, function: FunctionModel) -> bool:
    if call.function is None:
        return _is_unclear(call, _start(function))
    return _may_matter(function.module.function(call.function))


def bound_parameters(call: Call, called: FunctionModel) -> Binding:
    """Say which sites of the caller the parameters of a called function stand for."""
    given = values_of_parameters(call, called)
    return {parameter: sites(values) for parameter, values in given.items()}


def values_of_parameters(call: Call, called: FunctionModel) -> Mapping[int, Values]:
    """Say what the parameters of a called function hold, by their sites."""
    is_method = call.method is not None or bool(called.scope.owner and call.is_constructor)
    return parameters_given(called.scope, call.arguments, is_method=is_method)


def bound_in_callee(
    call: Call, called: FunctionModel, caller: FunctionModel, binding: Binding
) -> Binding:
    """Say what the parameters of a called function are, where its caller has ``binding``."""
    return {
        parameter: frozenset().union(*(in_caller(site, binding, caller) for site in found))
        for parameter, found in bound_parameters(call, called).items()
    }


def _is_unclear(call: Call, walk: _Walk) -> bool:
    """Tell whether a call that can't be looked into might do something to gradients."""
    if call.function is not None:
        return False
    if call.suspends:
        return True
    name = call.method
    if type(call.node) is cst.Call:
        name = name or (dotted_name(call.node.func) or "").rpartition(".")[2]
    if name is not None and "backward" in name and not name.endswith(("_sync", "_hook")):
        return True
    return not call.harmless and bool(call.handed & walk.function.holders)
