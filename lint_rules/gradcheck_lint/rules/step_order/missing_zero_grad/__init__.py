"""GCS301: a training loop that never zeroes the gradients that it steps with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.hidden_effects import ZEROING, may_act_unseen
from gradcheck_lint.analyses.intervals import come_round, may_be_whole
from gradcheck_lint.analyses.opaque_calls import (
    ZEROES,
    Doubt,
    doubt_of,
    lowered,
    reservation,
    worst,
)
from gradcheck_lint.analyses.repeated_calls import is_training_step
from gradcheck_lint.model.flow import (
    Backward,
    Block,
    Call,
    Event,
    Loop,
    Proof,
    Step,
    ZeroGrad,
    can_repeat,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.paths import Binding, Occurrence, bound_in_callee
from gradcheck_lint.model.scopes import FunctionScope
from gradcheck_lint.model.syntax import dotted_name, first_word
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.missing_zero_grad.closures import unzeroed_closures
from gradcheck_lint.rules.step_order.missing_zero_grad.hand_steps import unzeroed_hand_steps
from gradcheck_lint.rules.step_order.missing_zero_grad.handed_gradients import (
    Handed,
    never_cleared,
)
from gradcheck_lint.rules.step_order.missing_zero_grad.per_iteration_optimizer import is_made_anew
from gradcheck_lint.rules.step_order.problem import Problem, covers
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class _Effects:
    """What one iteration does to gradients, also through functions of the same file.

    Each backward and step comes with the event of this loop's own function that leads to it, each
    step also with the function that it is in and the calls that lead there.
    """

    scope: FunctionScope
    backwards: list[tuple[Event, Backward]] = field(default_factory=list)
    steps: list[tuple[Event, Step, FunctionModel, tuple[Call, ...]]] = field(default_factory=list)
    zeroes: list[Occurrence] = field(default_factory=list)
    bindings: dict[tuple[Call, ...], Binding] = field(default_factory=dict)
    """What the parameters of the functions that these calls lead to are to the loop's function."""
    unknown: list[Call] = field(default_factory=list)
    """The calls that can't be looked into and may zero gradients."""
    calls_back: bool = False
    """Whether callbacks are called, of which nothing is known."""


class MissingZeroGrad(Rule):
    """Gradients that ``step()`` has used are added to and used again."""

    entry = catalogue.MISSING_ZERO_GRAD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step that repeats in a loop without its gradients being zeroed."""
        if function.runs_in_engine:
            yield from _of_training_step(function)
            return
        for found in unzeroed_hand_steps(function):
            yield Violation(
                found.node,
                f"`{found.name}` is changed by `{found.name}.grad`, which every backward() of this "
                "loop adds to and nothing zeroes: each step uses the sum of all gradients so far",
                Severity.WARNING,
                f"set `{found.name}.grad = None` after the step",
                (
                    (found.backward.node, "added to the gradients here, in every iteration"),
                    (found.loop.node, "the loop that repeats it"),
                ),
            )
        yield from map(_handed_on, never_cleared(function))
        yield from starmap(_called_again, unzeroed_closures(function))
        if not function.module.near.has(function.scope, BACKWARD):
            return
        handled: set[int] = set()
        for problem in problems(function, self.entry.code):
            handled.add(id(problem.event))
            yield _used_again(problem)
        for loop in reversed(list(function.loops())):
            effects = _effects_of(loop.body, function)
            if not effects.backwards:
                continue
            for leading, step, owner, calls in effects.steps:
                if id(step) in handled:
                    continue
                if first_word(step.receiver) in loop.targets and owner is function:
                    continue  # a loop around this one may come to each optimizer again
                handled.add(id(step))
                doubt = worst(effects.unknown, ZEROES)
                used = Occurrence(step, leading, owner, effects.bindings[calls])
                if doubt is Doubt.CERTAIN or loop.runs_once or _is_zeroed(used, effects):
                    continue
                severity = self._severity(function, loop, leading, effects, step)
                if severity is None or is_made_anew(loop, step, owner, calls):
                    continue
                if may_act_unseen(function, ZEROING):
                    continue
                severity = lowered(severity, doubt)
                yield self._violation(function, loop, step, effects, severity)

    def _severity(
        self,
        function: FunctionModel,
        loop: Loop,
        leading: Event,
        effects: _Effects,
        step: Step,
    ) -> Severity | None:
        by_engine = any(backward.by_engine for _, backward in effects.backwards)
        source = function.module.source
        if by_engine and (b"eepspeed" in source or b"eepSpeed" in source):
            # Its engines zero gradients when they step, also behind Accelerate and Fabric.
            return None
        if not can_repeat(loop, leading):
            return None
        certain = any(
            backward.arms[: len(leading.arms)] == leading.arms for backward, _ in effects.backwards
        )
        if not certain:
            # The step happens on fewer paths than backward: a window, perhaps of the whole loop.
            is_whole = _zeroes_anywhere(function) and not _repeats_within(loop, leading, effects)
            return None if is_whole else Severity.WARNING
        is_sure = step.proof is not Proof.OPAQUE and not by_engine and not effects.calls_back
        return Severity.ERROR if is_sure else Severity.WARNING

    def _violation(
        self,
        function: FunctionModel,
        loop: Loop,
        step: Step,
        effects: _Effects,
        severity: Severity,
    ) -> Violation:
        receiver = step.receiver or "the optimizer"
        call = f"`{receiver}.step()`" if step.receiver else "the optimizer's step()"
        outside = _zero_outside(function, loop)
        message = (
            f"{call} repeats in this loop on gradients that no path of the loop zeroes, so every "
            "step uses the sum of all backwards before it"
        )
        related: list[tuple[cst.CSTNode, str]] = [
            (effects.backwards[0][1].node, "added to the gradients here, in every iteration"),
            (loop.node, "the loop that repeats it"),
        ]
        if outside is not None:
            message += "; the zero_grad() outside the loop doesn't run between two steps"
            related.append((outside.node, "zeroed here, outside the loop"))
        by_doubt = sorted(effects.unknown, key=lambda call: -doubt_of(call, ZEROES))
        message += reservation(by_doubt, function)
        hint = f"call `{receiver}.zero_grad()` in the loop, before backward() or after step()"
        if step.receiver is None:
            hint = "call zero_grad() in the loop, before backward() or after step()"
        return Violation(step.node, message, severity, hint, tuple(related))


def _used_again(problem: Problem) -> Violation:
    step = problem.event
    assert isinstance(step, Step)
    receiver = step.receiver or "the optimizer"
    first, backward = problem.others
    return Violation(
        step.node,
        "this step uses the gradients of the step before it once more: nothing zeroes them before "
        "the backward() in between adds to them" + problem.reservation,
        min(problem.severity, Severity.WARNING if step.proof is Proof.OPAQUE else Severity.ERROR),
        f"call `{receiver}.zero_grad()` between the steps, before backward()",
        ((first.node, "the step before"), (backward.node, "adds to what that step has used")),
    )


def _called_again(step: Step, closure: cst.CSTNode) -> Violation:
    return Violation(
        closure,
        "L-BFGS calls this closure several times in each step, and the closure does not zero the "
        "gradients: each call adds to those of the calls before",
        Severity.WARNING,
        "call `optimizer.zero_grad()` in the closure, before its backward()",
        ((step.node, "handed to the optimizer here"),),
    )


def _handed_on(found: Handed) -> Violation:
    return Violation(
        found.backward.node,
        f"this adds to the gradients of `{found.model}`, which are handed to other parameters and "
        "which nothing zeroes: the optimizer clears those of its own parameters alone, and each "
        "step uses the sum of all gradients so far",
        Severity.WARNING,
        f"call `{found.model}.zero_grad()` before this",
        ((found.node, "handed on here"), (found.step.node, "used here")),
    )


def _of_training_step(function: FunctionModel) -> Iterator[Violation]:
    """Yield the steps of Lightning's manual optimization whose gradients nothing zeroes."""
    if not is_training_step(function) or "manual_backward" not in function.scope.words:
        return
    effects = _effects_of(function.block, function)
    doubt = worst(effects.unknown, ZEROES)
    if doubt is Doubt.CERTAIN or not effects.backwards:
        return
    for leading, step, owner, calls in effects.steps:
        if not _is_zeroed(Occurrence(step, leading, owner, effects.bindings[calls]), effects):
            receiver = step.receiver or "the optimizer"
            yield Violation(
                step.node,
                f"`{receiver}.step()` runs for each batch on gradients that nothing here zeroes, "
                "so every step uses the sum of all backwards before it"
                + reservation(effects.unknown, function),
                lowered(Severity.WARNING, doubt),
                f"call `{receiver}.zero_grad()` before manual_backward()",
                ((effects.backwards[0][1].node, "added to the gradients here, for each batch"),),
            )


def _is_zeroed(used: Occurrence, effects: _Effects) -> bool:
    """Tell whether a reset in the loop clears, or may clear, what a step uses."""
    return any(covers(zero, used) is not False for zero in effects.zeroes)


def _effects_of(block: Block, function: FunctionModel) -> _Effects:
    effects = _Effects(function.scope, bindings={(): {}})
    for event in block.events():
        _collect(effects, event, event, function, ())
    return effects


def _collect(
    effects: _Effects,
    leading: Event,
    event: Event,
    function: FunctionModel,
    calls: tuple[Call, ...],
    *,
    inner: bool = False,
) -> None:
    """Add one event, and what the functions that it calls do.

    What an ``inner`` loop of a called function steps is judged there.
    """
    if isinstance(event, ZeroGrad):
        effects.zeroes.append(Occurrence(event, leading, function, effects.bindings[calls]))
    elif inner and isinstance(event, (Backward, Step)):
        return
    elif isinstance(event, Backward):
        effects.backwards.append((leading, event))
    elif isinstance(event, Step):
        effects.steps.append((leading, event, function, calls))
    elif isinstance(event, Call):
        if event.function is None:
            if event.suspends or (not event.harmless and _may_reset(event, function)):
                effects.unknown.append(event)
            elif _CALLBACK.search(_name_of(event)) is not None:
                effects.calls_back = True
        elif event.function not in (effects.scope, *(call.function for call in calls)):
            called = function.module.function(event.function)
            inside = (*calls, event)
            effects.bindings[inside] = bound_in_callee(
                event, called, function, effects.bindings[calls]
            )
            own = {loop.identity: loop.targets for loop in called.loops()}
            for item in called.events():
                is_inner = inner or bool(item.loops)
                if isinstance(item, Step) and len(item.loops) == 1:
                    # `for optimizer in optimizers: optimizer.step()` makes one step with each.
                    is_inner = inner or first_word(item.receiver) not in own[item.loops[0]]
                _collect(effects, leading, item, called, inside, inner=is_inner)


def _may_reset(call: Call, function: FunctionModel) -> bool:
    """Tell whether a call that can't be looked into may zero gradients."""
    if call.handed & function.holders:
        return True
    if call.is_used or type(call.node) is not cst.Call:
        return False
    if call.method is None:
        # `reset()`: nothing but what it does is wanted.
        return not call.node.args or _RESETS.search(_name_of(call)) is not None
    return bool(call.mentions & function.holders) and _RESETS.search(call.method) is not None


def _name_of(call: Call) -> str:
    """Return the dotted name of what is called in small letters, "" for anything else."""
    name = dotted_name(call.node.func) if type(call.node) is cst.Call else None
    return (name or "").lower()


_CALLBACK: Final = re.compile(r"(?:^|[._])(?:call_?backs?|hooks?|cbs?|on)(?:[._]|$)")
_RESETS: Final = re.compile(
    r"(?:^|[._])(?:reset|zero|clear|clean)(?:_?(?:all|grads?|gradients?|optims?|optimizers?))*_?$"
)


def _repeats_within(loop: Loop, step: Event, effects: _Effects) -> bool:
    """Tell whether a step happens every so many iterations of a loop that has more of them."""
    if step.loops[-1:] != (loop.identity,) or may_be_whole(loop):
        return False
    shared = {arm for backward, _ in effects.backwards for arm in backward.arms}
    own = [(branch, arm) for branch, arm in step.arms if (branch, arm) not in shared]
    return bool(own) and come_round(own, loop.body, loop.node)


def _zeroes_anywhere(function: FunctionModel) -> bool:
    return _zero_in(function.events()) is not None


def _zero_outside(function: FunctionModel, loop: Loop) -> ZeroGrad | None:
    return _zero_in(event for event in function.events() if loop.identity not in event.loops)


def _zero_in(events: Iterator[Event]) -> ZeroGrad | None:
    for event in events:
        if isinstance(event, ZeroGrad):
            return event
    return None
