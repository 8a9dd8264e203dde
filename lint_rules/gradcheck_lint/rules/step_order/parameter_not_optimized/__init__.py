"""GCS307: a layer that no optimizer owns."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import has_weights
from gradcheck_lint.analyses.made_in_forward import late_parameters
from gradcheck_lint.analyses.spent_iterators import spent_uses
from gradcheck_lint.model.flow import Attach, Call, Event, Return, Step
from gradcheck_lint.model.nearness import STEPS
from gradcheck_lint.model.syntax import assigned_once, dotted_name, walk
from gradcheck_lint.model.values import Kind, Values, all_are, held_by, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.parameter_not_optimized.attaching_methods import (
    attached_by_methods,
)
from gradcheck_lint.rules.step_order.parameter_not_optimized.late_layers import attached_later
from gradcheck_lint.rules.step_order.parameter_not_optimized.unlisted_parts import unlisted_parts
from gradcheck_lint.rules.step_order.parameter_not_optimized.unowned import unowned
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradcheck_lint.model.module import FunctionModel


_GROUPS: Final = re.compile(rb"add_param_group|\[\s*[\"']params[\"']\s*\]")
"""What adds parameters to an optimizer."""


class ParameterNotOptimized(Rule):
    """An optimizer is made without a layer that is trained through, or before it is put in."""

    entry = catalogue.PARAMETER_NOT_OPTIMIZED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every layer that is attached after an optimizer was made that is used later."""
        yield from unowned(function)
        yield from _of_spent_iterators(function)
        for late in late_parameters(function):
            yield Violation(
                late.node,
                f"`{late.name}` is made when the model runs for the first time: an optimizer that "
                "was made before does not own it, and it never learns",
                Severity.WARNING,
                "make it in the constructor, or run the model once before the optimizer is made",
                (
                    *(() if late.first is None else ((late.first, "nothing at first"),)),
                    (late.optimizer, "an optimizer"),
                ),
            )
        yield from attached_by_methods(function)
        yield from unlisted_parts(function)
        has_groups = function.module.matches(_GROUPS)
        if not has_groups:
            yield from attached_later(function)
        words = function.scope.words
        if has_groups or (STEPS.isdisjoint(words) and "parameters" not in words):
            return
        events = list(function.events())
        attached = [
            event
            for event in events
            if isinstance(event, Attach)
            and all(has_weights(value, function) for value in event.attached)
        ]
        uses = [*_steps(events), *_kept(function, events)] if attached else []
        if not uses:
            return
        order = {id(node): place for place, node in enumerate(walk(function.scope.node))}
        for event in attached:
            place = order.get(id(event.node), 0)
            owned = sites(event.values) | sites(event.replaced)
            if _is_seen_to(function, event, order):
                continue
            for use in uses:
                made = [order.get(id(value.node), len(order)) for value in use.optimizers]
                if not made or max(made) >= place or events.index(event) > use.place:
                    continue
                if any(_may_add_to(known, use.optimizers) for known in events):
                    continue
                if owned & held_by(use.optimizers):
                    how = "added" if type(event.node) is cst.Call else "replaced"
                    yield Violation(
                        event.node,
                        f"`{event.path}` is {how} after the optimizer was made from the model's "
                        "parameters: the new layer gets gradients and is never trained",
                        use.severity,
                        "change the model first, then make the optimizer",
                        ((use.node, "this optimizer still has the old parameters"),),
                    )
                    break


def _is_seen_to(function: FunctionModel, event: Attach, order: Mapping[int, int]) -> bool:
    """Tell whether something else is done with a layer than to run it.

    Another optimizer may be given it; it may be a copy, or frozen; or be taken out again.
    """
    name = event.path.rpartition(".")[-1]
    before = order.get(id(event.node), 0)
    for node in walk(function.module.tree):
        place = order.get(id(node))
        if place is not None and place <= before:
            continue
        if type(node) is cst.Attribute and node.attr.value in _SEES_TO:
            if name in (dotted_name(node.value) or "").split("."):
                return True
        elif place is not None:
            target, _ = assigned_once(node)
            if target is not None and dotted_name(target) == event.path:
                return True
    return False


_SEES_TO: Final = frozenset(
    {"parameters", "named_parameters", "requires_grad_", "requires_grad", "load_state_dict"}
)


class _Use(NamedTuple):
    """What is done with an optimizer, after how many events, and how sure it is that it steps."""

    optimizers: Values
    place: int
    node: cst.CSTNode
    severity: Severity


def _steps(events: Sequence[Event]) -> Iterator[_Use]:
    for place, event in enumerate(events):
        if isinstance(event, Step) and all_are(event.values, Kind.OPTIMIZER):
            yield _Use(event.values, place, event.node, Severity.ERROR)


def _kept(function: FunctionModel, events: Sequence[Event]) -> Iterator[_Use]:
    """Yield the optimizers that outlive the function: it returns them, or an object has them."""
    itself = f"{function.scope.first_parameter}."
    is_method = function.scope.owner is not None
    returned = [
        within
        for event in events
        if isinstance(event, Return)
        for value in event.values
        for within in (value, *chain.from_iterable(value.parts))
    ]
    for name, values in function.bindings.items():
        (only, *others) = values or (None,)
        if only is None or others or only.kind is not Kind.OPTIMIZER or only.node is None:
            continue
        if (is_method and name.startswith(itself)) or any(only.site == r.site for r in returned):
            yield _Use(values, len(events), only.node, Severity.WARNING)


_OPTIMIZER: Final = re.compile(r"optim|SGD|Adam", re.IGNORECASE)


def _may_add_to(event: Event, optimizers: Values) -> bool:
    """Tell whether a call that can't be looked into is handed the optimizer."""
    if not isinstance(event, Call) or event.function is not None or event.harmless:
        return False
    if event.is_used and _makes_schedule(event.node):
        return False
    return not event.handed.isdisjoint(sites(optimizers))


def _makes_schedule(node: cst.CSTNode) -> bool:
    name = dotted_name(node.func) if type(node) is cst.Call else None
    return name is not None and _SCHEDULES.search(name.lower()) is not None


_SCHEDULES: Final = re.compile(r"sched|warm_?up|lr")


def _of_spent_iterators(function: FunctionModel) -> Iterator[Violation]:
    """Yield the optimizers that get no parameters, since an iterator has none left."""
    for use in spent_uses(function):
        if use.how == "optimizer":
            when = (
                "has none left from the second time on" if use.again else "was gone through before"
            )
            yield Violation(
                use.node,
                f"`{use.path}` is an iterator that {when}: the optimizer gets none of its "
                "parameters",
                Severity.ERROR if not use.again and "." not in use.path else Severity.WARNING,
                f"make a list of it: `{use.path} = list(...)`",
                ((use.by, "made once" if use.again else "used up here"),),
            )
