"""Say what a verdict on an event of a training step is, and which objects events share."""

# ruff: noqa: PLR0911 - each return is a verdict of its own

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.opaque_calls import Doubt, doubt_of, lowered, reservation, worst
from gradcheck_lint.model.flow import (
    Call,
    Event,
    Loop,
    Step,
    ZeroGrad,
)
from gradcheck_lint.model.function_class import has_decorator
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.syntax import bound_names, dotted_name, last_word, positional, walk
from gradcheck_lint.model.values import Kind, Origin, Value, Values, held_by, mentioned_by, sites
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_lint.model.paths import Occurrence


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Something out of order: ``kind`` says what, ``others`` are the events that show it.

    ``certain`` is False where only likelihood connects them. ``unknown`` are the calls that can't
    be looked into and might set it right, ``doubt`` says how likely one of them does.
    """

    code: str
    kind: str
    event: Event
    function: FunctionModel
    others: tuple[Event, ...] = ()
    certain: bool = True
    unknown: tuple[Call, ...] = ()
    doubt: Doubt = Doubt.NONE

    @property
    def severity(self) -> Severity:
        """Return how sure this is, with all that speaks against it."""
        return lowered(Severity.ERROR if self.certain else Severity.WARNING, self.doubt)

    @property
    def reservation(self) -> str:
        """Return what the message says of calls that can't be looked into."""
        return reservation(self.unknown, self.function)

    def unless(self, items: Iterable[Occurrence], act: re.Pattern[str]) -> Problem | None:
        """Return this with the doubt that calls on a path cast on it, None if one sets it right."""
        calls = [item.event for item in items if isinstance(item.event, Call)]
        return self.unless_done_by(calls, act)

    def unless_done_by(self, calls: Sequence[Call], act: re.Pattern[str]) -> Problem | None:
        """Return this with the doubt that calls cast on it, None if one of them sets it right."""
        doubt = worst(calls, act)
        if doubt is Doubt.CERTAIN:
            return None
        if doubt <= self.doubt:
            return self
        unknown = sorted(calls, key=lambda call: -doubt_of(call, act))
        return replace(self, unknown=tuple(unknown), doubt=doubt)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is judged at once: a loop, or a function as a whole."""

    function: FunctionModel
    loop: Loop | None

    @property
    def turn(self) -> int:
        """Return the iteration that is judged: the second of a loop."""
        return 0 if self.loop is None else 1

    def owns(self, item: Occurrence) -> bool:
        """Tell whether this unit is the innermost that the event repeats in."""
        innermost = item.leading.loops[-1:]
        if item.event is not item.leading and item.event.loops:
            return False
        return innermost == (() if self.loop is None else (self.loop.identity,))


ABSENT = Problem("", "", Event(cst.Name("x"), None, (), (), False), None)  # type: ignore[arg-type]
"""The verdict on an event that another iteration on the same path judges."""


def same(left: Occurrence, values: Values, right: Occurrence, others: Values) -> bool:
    """Tell whether two events are about the same object."""
    return bool(
        left.keys(values, getattr(left.event, "receiver", None))
        & right.keys(others, getattr(right.event, "receiver", None))
    )


def covers(zero: Occurrence, step: Occurrence) -> bool | None:
    """Tell whether a reset clears what a step uses; None if that is not known."""
    assert isinstance(zero.event, ZeroGrad)
    assert isinstance(step.event, Step)
    values, stepped = zero.event.values, step.event.values
    if zero.event.leaf and _is_of_no_optimizer(zero, step):
        return False
    if not values or zero.event.receiver is None:
        return None
    if same(zero, values, step, stepped):
        return True
    if _are_items_apart(zero, step):
        return False
    if zero.keys(values) & step.held(stepped):
        return True
    if zero.held(values) & step.held(stepped):
        return None
    if _is_of_other_model(zero, step):
        return False
    if _may_be_one_attribute(zero, step):
        return None
    if not all(_is_optimizer(value.kind, zero.event.receiver) for value in values):
        return None
    if not step.event.receiver or zero.event.receiver == step.event.receiver:
        return None
    if zero.owner is not step.owner and not all(
        value.kind is Kind.OPTIMIZER for value in (*values, *stepped)
    ):
        return None
    return False


def _are_items_apart(zero: Occurrence, step: Occurrence) -> bool:
    """Tell whether these are optimizers under different keys of one dictionary, made one by one."""
    assert isinstance(zero.event, ZeroGrad)
    assert isinstance(step.event, Step)
    values, stepped = zero.event.values, step.event.values
    if not all(value.kind is Kind.OPTIMIZER for value in (*values, *stepped)):
        return False
    first, second = zero.event.receiver or "", step.event.receiver or ""
    is_item = first.endswith("]") and second.endswith("]")
    return is_item and first != second and first.rpartition("[")[0] == second.rpartition("[")[0]


def _is_of_no_optimizer(zero: Occurrence, step: Occurrence) -> bool:
    """Tell whether the tensor whose gradient is zeroed can't be one that is stepped.

    The function that zeroes has made it, and the optimizer was there before, or has others.
    """
    assert isinstance(zero.event, ZeroGrad)
    assert isinstance(step.event, Step)
    made_before = frozenset({Origin.ARGUMENT, Origin.ATTRIBUTE})
    return bool(step.event.values) and all(
        zero.owner is not step.owner or _is_of_parameters(value.node)
        if value.kind is Kind.OPTIMIZER
        else value.origin in made_before
        for value in step.event.values
    )


def _is_of_parameters(optimizer: cst.CSTNode | None) -> bool:
    """Tell whether an optimizer is given the parameters of a model, and nothing else."""
    given = positional(optimizer) if type(optimizer) is cst.Call else []
    first = given[0] if given else None
    return type(first) is cst.Call and last_word(dotted_name(first.func)) == "parameters"


def _may_be_one_attribute(zero: Occurrence, step: Occurrence) -> bool:
    """Tell whether two attributes of ``self`` may give one object, by way of a property.

    The property may be another file's: ``self._optimizer`` is what ``self.optimizer`` returns.
    """
    first, second = _own_attribute(zero), _own_attribute(step)
    if first is None or second is None:
        return False
    if first.lstrip("_") == second.lstrip("_"):
        return True
    return _is_property(first, zero.owner) or _is_property(second, step.owner)


def _own_attribute(item: Occurrence) -> str | None:
    """Return the attribute of ``self`` that a step or a reset is a method of."""
    assert isinstance(item.event, (Step, ZeroGrad))
    root, _, attribute = (item.event.receiver or "").partition(".")
    scope = item.owner.scope
    is_own = scope.owner is not None and root == scope.first_parameter
    return attribute if is_own and attribute.isidentifier() else None


def _is_property(attribute: str, function: FunctionModel) -> bool:
    method = function.module.scopes.method(function.scope.owner, attribute)
    return method is not None and any(
        has_decorator(method, name) for name in ("property", "cached_property")
    )


def _is_of_other_model(zero: Occurrence, step: Occurrence) -> bool:
    """Tell whether a reset is of a model that was made apart from all that the optimizer owns."""
    assert isinstance(zero.event, ZeroGrad)
    assert isinstance(step.event, Step)
    values, stepped = zero.event.values, step.event.values
    if zero.owner is not step.owner or not all(map(_is_made_here, values)):
        return False
    if not all(value.kind is Kind.OPTIMIZER for value in stepped):
        return False
    owned = frozenset[int]().union(*(value.holds for value in stepped)) - sites(stepped)
    if not owned:
        return False  # nothing is known of what it owns
    models = {
        value for bound in zero.owner.bindings.values() for value in bound if value.site in owned
    }
    if {value.site for value in models} != owned or not all(map(_is_made_here, models)):
        return False
    made = frozenset(models)
    flowed, own = mentioned_by(values) | held_by(values), mentioned_by(made) | held_by(made)
    if flowed & owned or own & sites(values):
        return False
    return all(_is_setting(site, zero.owner) for site in flowed & own)


def _is_setting(site: int, function: FunctionModel) -> bool:
    """Tell by its name whether what two models were made of is a device or a set of options.

    What both were made of in different statements has a name, or is an attribute of what has one.
    """
    taken = function.module.taken_from(site)
    if taken is not None:
        return _is_setting(taken[1], function)
    names = [
        name
        for name, bound in function.bindings.items()
        if any(value.site == site for value in bound)
    ]
    return all(_SETTINGS.fullmatch(name) for name in names)


_SETTINGS = re.compile(
    r"device|opt|args|cfg|config|conf|hparams|hps?|dtype|\w+_(?:dim|size)|n[a-z]?"
)


def _is_made_here(value: Value) -> bool:
    """Tell whether a value is made by a call that stands in the function."""
    return type(value.node) is cst.Call and value.origin in {Origin.CALL, Origin.OTHER}


def _is_optimizer(kind: Kind, receiver: str) -> bool:
    last = last_word(receiver).lower()
    return kind is Kind.OPTIMIZER or (kind is Kind.UNKNOWN and "opt" in last)


def last_of(segment: Sequence[Occurrence], kind: type[Event]) -> int | None:
    """Return the place of the last event of a kind."""
    for index in range(len(segment) - 1, -1, -1):
        if isinstance(segment[index].event, kind):
            return index
    return None


def is_window(step: Occurrence, unit: Unit) -> bool:
    """Tell whether a step happens every so many iterations, or after all of a loop."""
    if unit.loop is None:
        return False
    if unit.loop.identity not in step.leading.loops:
        return True
    if not unit.owns(step):
        # The window is of a loop inside this one, so each turn of this one has whole windows.
        return False
    tests = unit.function.module.memo.setdefault("tests", {})
    key = id(unit.loop)
    if key not in tests:
        tests[key] = _tests_in(unit.loop.node)
    for branch, _ in step.leading.arms:
        test = tests[key].get(branch)
        if test is not None and any(
            type(node) is cst.BinaryOperation and type(node.operator) is cst.Modulo
            for node in walk(test)
        ):
            return True
    return False


def _tests_in(loop: cst.CSTNode) -> dict[int, cst.CSTNode]:
    """Return the tests of a loop's branches, or what the loop binds the name to that is tested."""
    tests: dict[int, cst.CSTNode] = {}
    bound: dict[str, cst.BaseExpression] = {}
    for node in walk(loop):
        if type(node) is cst.Assign:
            bound.update((name, node.value) for name in bound_names(node.targets[0].target))
        elif type(node) is cst.If:
            test: cst.BaseExpression = node.test
            while type(test) is cst.UnaryOperation:
                test = test.expression
            tests[id(node)] = bound.get(dotted_name(test) or "", test)
    return tests
