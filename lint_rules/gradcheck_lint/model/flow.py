"""Say what a function does, in order: events, branches and loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import libcst as cst

from gradcheck_lint.model.beginnings import NO_BEGINNING, Beginning
from gradcheck_lint.model.scopes import FunctionScope
from gradcheck_lint.model.values import NOTHING, Values

if TYPE_CHECKING:
    from collections.abc import Iterator


class GradMode(Enum):
    """Whether operations are recorded; ``AMBIENT`` is whatever the caller has."""

    __hash__ = object.__hash__  # as in ``Kind``

    ENABLED = "enabled"
    DISABLED = "disabled"
    AMBIENT = "ambient"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Event:
    """Something of interest that happens at ``node``.

    ``arms`` are the branches it lies in, each as (branch, arm); ``loops`` the loops, both
    outermost first. ``expects_error`` is True inside ``pytest.raises`` or a ``try`` that catches
    what torch raises.
    """

    node: cst.CSTNode
    mode: GradMode
    loops: tuple[int, ...]
    arms: tuple[tuple[int, int], ...]
    expects_error: bool


@dataclass(slots=True, eq=False)
class Backward(Event):
    """``.backward()`` is called on ``values``.

    ``scaled`` tells that a gradient scaler has multiplied them, ``partial`` that only some inputs
    get gradients, ``by_engine`` that an engine calls it, as ``accelerator.backward(loss)`` does.
    ``seeded`` tells that it is given a gradient that was computed: what it's called on is no loss.
    """

    values: Values = NOTHING
    retains_graph: bool = False
    creates_graph: bool = False
    scaled: bool = False
    partial: bool = False
    by_engine: bool = False
    seeded: bool = False


class Proof(Enum):
    """How sure it is that the object is an optimizer of torch."""

    PROVEN = "proven"
    NAMED = "an argument or attribute whose name says so"
    OPAQUE = "made by a function that could not be looked into"


@dataclass(slots=True, eq=False)
class Step(Event):
    """An optimizer's ``step()`` is called; ``receiver`` is its dotted name, if it has one.

    ``scaler`` is the gradient scaler that makes the step, if one does.
    """

    receiver: str | None = None
    values: Values = NOTHING
    proof: Proof = Proof.PROVEN
    scaler: Values = NOTHING
    closure: bool = False


@dataclass(slots=True, eq=False)
class ZeroGrad(Event):
    """Gradients are zeroed, deleted or overwritten: those of ``values`` if they are known.

    ``clears`` is False where something else may take their place. ``leaf`` are the sites of the
    tensor whose gradient it is, where the function itself has made that.
    """

    receiver: str | None = None
    values: Values = NOTHING
    clears: bool = True
    leaf: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Clip(Event):
    """Gradients are clipped: those of the parameters in ``values``."""

    values: Values = NOTHING


@dataclass(slots=True, eq=False)
class Unscale(Event):
    """``scaler.unscale_(optimizer)``; ``values`` are the optimizer."""

    values: Values = NOTHING
    scaler: Values = NOTHING


@dataclass(slots=True, eq=False)
class ScalerUpdate(Event):
    """``scaler.update()``."""

    scaler: Values = NOTHING


@dataclass(slots=True, eq=False)
class SchedulerStep(Event):
    """A learning rate scheduler's ``step()`` is called."""

    receiver: str | None = None
    values: Values = NOTHING
    proof: Proof = Proof.PROVEN


@dataclass(slots=True, eq=False)
class ModeSwitch(Event):
    """``model.train()`` or ``model.eval()``; ``training`` is None where that is not known."""

    receiver: str | None = None
    values: Values = NOTHING
    training: bool | None = None


@dataclass(slots=True, eq=False)
class Freeze(Event):
    """``requires_grad`` of ``values`` is set to ``wanted``, None where that is not known."""

    values: Values = NOTHING
    wanted: bool | None = None


@dataclass(slots=True, eq=False)
class Forward(Event):
    """A model is called; ``values`` are the model, ``passed`` each thing that it is given."""

    receiver: str = ""
    values: Values = NOTHING
    passed: tuple[Values, ...] = ()
    result: Values = NOTHING


@dataclass(slots=True, eq=False)
class Attach(Event):
    """A layer or parameter is put into an attribute or item of an object, for another."""

    path: str = ""
    values: Values = NOTHING
    attached: Values = NOTHING
    replaced: Values = NOTHING


class StoreKind(Enum):
    """How a value is kept."""

    APPEND = "append"
    ACCUMULATE = "accumulate"


@dataclass(slots=True, eq=False)
class Store(Event):
    """A value is put into a container or added to a running sum called ``target``."""

    how: StoreKind = StoreKind.APPEND
    target: str = ""
    target_values: Values = NOTHING
    stored: Values = NOTHING
    stored_node: cst.CSTNode | None = None
    beginning: Beginning = NO_BEGINNING

    @property
    def loop(self) -> int:
        """Return the loop that makes more and more: the innermost that makes what is stored.

        A loop around the store alone, as over the entries of a dictionary, puts the same there.
        """
        made_in = {loop for value in self.stored for loop in value.loops}
        return next((loop for loop in reversed(self.loops) if loop in made_in), self.loops[-1])


@dataclass(slots=True, eq=False)
class InPlace(Event):
    """``values`` are written to in place; ``operation`` is how the source spells it."""

    values: Values = NOTHING
    target: cst.BaseExpression | None = None
    operation: str = ""
    written: Values = NOTHING
    source: cst.BaseExpression | None = None


@dataclass(slots=True, eq=False)
class SetData(Event):
    """``x.data = y``: ``values`` get other memory, which autograd does not see."""

    values: Values = NOTHING


@dataclass(slots=True, eq=False)
class Save(Event):
    """The operation at ``node`` saves ``values`` for backward; ``is_tensor`` if they surely are."""

    values: Values = NOTHING
    is_tensor: bool = True


@dataclass(slots=True, eq=False)
class Call(Event):
    """A function is called that may be looked into (``function``) or not (None).

    ``method`` is the name after the last dot of a method call. ``handed`` are the sites of the
    objects that it can reach, ``mentions`` those of the values that flow into it. A function that
    is handed on as a value counts as called, with ``referenced`` True. ``on`` are the objects
    that a method is called on. ``suspends`` tells that anything may happen meanwhile. ``result`` is
    what a function that may be looked into returns.
    """

    function: FunctionScope | None = None
    method: str | None = None
    handed: frozenset[int] = frozenset()
    mentions: frozenset[int] = frozenset()
    harmless: bool = False
    referenced: bool = False
    arguments: tuple[tuple[int | str, Values], ...] = ()
    on: frozenset[int] = frozenset()
    is_constructor: bool = False
    is_used: bool = False
    suspends: bool = False
    result: Values = NOTHING


@dataclass(slots=True, eq=False)
class Return(Event):
    """The function is left with ``values``."""

    values: Values = NOTHING


class JumpKind(Enum):
    """How a path leaves its block."""

    BREAK = "break"
    CONTINUE = "continue"
    RAISE = "raise"


@dataclass(slots=True, eq=False)
class Jump(Event):
    """A ``break``, ``continue`` or ``raise``."""

    how: JumpKind = JumpKind.BREAK


@dataclass(slots=True, eq=False)
class Block:
    """Items that happen one after another."""

    items: list[Item] = field(default_factory=list)

    def events(self) -> Iterator[Event]:
        """Yield every event, also those inside branches and loops, in source order."""
        for item in self.items:
            if isinstance(item, Event):
                yield item
            elif isinstance(item, Branch):
                for arm in item.arms:
                    yield from arm.events()
            else:
                yield from item.body.events()
                yield from item.otherwise.events()

    def loops(self) -> Iterator[Loop]:
        """Yield every loop, outer loops before the loops inside them."""
        for item in self.items:
            if isinstance(item, Branch):
                for arm in item.arms:
                    yield from arm.loops()
            elif isinstance(item, Loop):
                yield item
                yield from item.body.loops()
                yield from item.otherwise.loops()


@dataclass(slots=True, eq=False)
class Branch:
    """Exactly one of ``arms`` happens; an arm that does nothing is an empty block."""

    identity: int
    arms: list[Block]
    test: cst.BaseExpression | None = None


@dataclass(slots=True, eq=False)
class Loop:
    """``body`` may happen many times; ``targets`` are the names that a ``for`` binds."""

    identity: int
    node: cst.CSTNode
    body: Block
    otherwise: Block
    targets: frozenset[str]
    runs_once: bool
    arms: tuple[tuple[int, int], ...] = ()


Item: TypeAlias = Event | Branch | Loop


class _Outcome(Enum):
    NEXT = "next"
    BREAK = "break"
    CONTINUE = "continue"
    LEAVE = "leave"


_JUMPS = {
    JumpKind.BREAK: _Outcome.BREAK,
    JumpKind.CONTINUE: _Outcome.CONTINUE,
    JumpKind.RAISE: _Outcome.LEAVE,
}


def can_repeat(loop: Loop, event: Event) -> bool:
    """Tell whether some path leads from ``event`` to the next iteration of ``loop``."""
    outcomes = _outcomes_after(loop.body, event)
    return outcomes is not None and bool(outcomes & {_Outcome.NEXT, _Outcome.CONTINUE})


def _outcomes_after(block: Block, event: Event) -> set[_Outcome] | None:
    """Return how control can leave ``block`` after ``event``; None if it is not in there."""
    for index, item in enumerate(block.items):
        inside: set[_Outcome] | None = None
        if item is event:
            inside = _outcomes_of_item(item)
        elif isinstance(item, Branch):
            for arm in item.arms:
                inside = _outcomes_after(arm, event)
                if inside is not None:
                    break
        elif isinstance(item, Loop):
            inside = _outcomes_after(item.body, event)
            if inside is not None:
                inside = _after_loop(inside)
        if inside is not None:
            if _Outcome.NEXT not in inside:
                return inside
            return (inside - {_Outcome.NEXT}) | _outcomes_of(block.items[index + 1 :])
    return None


def _outcomes_of(items: list[Item]) -> set[_Outcome]:
    result: set[_Outcome] = set()
    for item in items:
        outcomes = _outcomes_of_item(item)
        result |= outcomes - {_Outcome.NEXT}
        if _Outcome.NEXT not in outcomes:
            return result
    return result | {_Outcome.NEXT}


def _outcomes_of_item(item: Item) -> set[_Outcome]:
    if isinstance(item, Jump):
        return {_JUMPS[item.how]}
    if isinstance(item, Return):
        return {_Outcome.LEAVE}
    if isinstance(item, Branch):
        return set().union(*(_outcomes_of(arm.items) for arm in item.arms))
    if isinstance(item, Loop):
        return _after_loop(_outcomes_of(item.body.items))
    return {_Outcome.NEXT}


def _after_loop(inside: set[_Outcome]) -> set[_Outcome]:
    return {_Outcome.NEXT} | (inside & {_Outcome.LEAVE})
