"""Judge what gradients a step finds along a path, and what a reset discards."""

# ruff: noqa: PLR0911 - each return is a verdict of its own

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.opaque_calls import DIFFERENTIATES, STEPS, ZEROES
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Forward,
    Loop,
    Return,
    SchedulerStep,
    Step,
    ZeroGrad,
)
from gradcheck_lint.model.module import FunctionModel
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import (
    bound_names,
    dotted_name,
    first_word,
    last_word,
    place_name,
    walk,
)
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules.step_order.problem import (
    ABSENT,
    Problem,
    Unit,
    covers,
    is_window,
    last_of,
    same,
)
from gradcheck_lint.rules.step_order.scaling import judge_scaled_step
from gradcheck_lint.rules.step_order.taken_gradients import takes_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.paths import Occurrence, Path


def judge_step(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge the step of an optimizer on one path: GCS301, GCS302, GCS303."""
    item = path[index]
    if item.turn != unit.turn:
        return ()
    return (
        _misplaced(path, index, unit),
        *judge_scaled_step(path, index, unit),
        _used_again(path, index, unit),
    )


def _used_again(path: Path, index: int, unit: Unit) -> Problem | None:
    """Judge a second step of an iteration: does it use what the first one has used already?"""
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    segment = _since_last_step(path, index)
    previous = index - len(segment) - 1
    if previous < 0:
        # Where the iteration has made no step, other paths tell.
        return ABSENT if unit.loop is not None else None
    first = path[previous].event
    assert isinstance(first, Step)
    if first is step or first.closure or step.closure or step.expects_error:
        return None
    last = last_of(segment, Backward)
    if last is None or any(
        isinstance(other.event, ZeroGrad) and covers(other, item) is not False for other in segment
    ):
        return None
    others = (first, segment[last].event)
    return Problem("GCS301", "used-again", step, item.owner, others).unless(segment, ZEROES)


def _misplaced(path: Path, index: int, unit: Unit) -> Problem | None:
    """Judge the gradients that a step finds: none at all, or cleared ones."""
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    segment = _since_last_step(path, index)
    if step.expects_error:
        return None
    last = last_of(segment, Backward)
    if last is None:
        problem = _without_backward(path, index, segment, unit)
        problem = problem and problem.unless(segment, DIFFERENTIATES)
        return problem and problem.unless_done_by(
            _may_differentiate(unit.function, unit, item), DIFFERENTIATES
        )
    zeros = [
        other
        for other in segment[last + 1 :]
        if isinstance(other.event, ZeroGrad) and covers(other, item) is not False
    ]
    sure = [other for other in zeros if _surely_clears(other, item, path)]
    if not sure or any(not zero.event.clears for zero in zeros if isinstance(zero.event, ZeroGrad)):
        return None
    zero, backward = sure[0], segment[last]
    if _is_used_up(segment, last, zero, item):
        later = [
            other.event
            for other in path[index:]
            if other.turn == item.turn and isinstance(other.event, (Backward, Step))
        ][1:2]
        is_late = bool(later) and isinstance(later[0], Backward)
        kind = "order" if is_late else "none"
        problem = Problem("GCS303", kind, step, item.owner, (zero.event, *later[: int(is_late)]))
    elif backward.turn != item.turn:
        problem = Problem("GCS303", "order", step, item.owner, (zero.event, backward.event))
    else:
        is_sure = covers(zero, item) is True
        others = (backward.event, step)
        problem = Problem("GCS302", "between", zero.event, zero.owner, others, certain=is_sure)
    return problem.unless(segment[last + 1 :], DIFFERENTIATES)


def _is_used_up(
    segment: Sequence[Occurrence], last: int, zero: Occurrence, step: Occurrence
) -> bool:
    """Tell whether another optimizer has stepped with a backward before this one's reset."""
    end = segment.index(zero)
    return any(
        isinstance(other.event, Step)
        and not same(other, other.event.values, step, getattr(step.event, "values", frozenset()))
        for other in segment[last + 1 : end]
    )


def _surely_clears(zero: Occurrence, step: Occurrence, path: Path) -> bool:
    known = covers(zero, step)
    if known is not None or not isinstance(zero.event, ZeroGrad) or not zero.event.values:
        return known is True
    # `model.zero_grad()` with one optimizer in sight.
    if zero.event.receiver is None:
        return False
    steps = {id(other.event) for other in path if isinstance(other.event, Step)}
    zeroed = {other.event.receiver for other in path if isinstance(other.event, ZeroGrad)}
    return len(steps) == 1 and len(zeroed) == 1


def _without_backward(
    path: Path, index: int, segment: Sequence[Occurrence], unit: Unit
) -> Problem | None:
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    if step.closure:
        return _with_idle_closure(item)
    if any(isinstance(other.event, ZeroGrad) and not other.event.clears for other in segment):
        return None
    function = unit.function
    previous = index - len(segment) - 1
    if previous >= 0 and path[previous].turn == item.turn and not _between(path[previous], item):
        return Problem("GCS303", "twice", step, item.owner, (path[previous].event,))
    if _writes_gradients(function) or _writes_gradients(item.owner):
        return None
    if unit.loop is not None:
        if any(isinstance(other.event, Backward) for other in path if other.turn == 0):
            previous = index - len(segment) - 1
            if previous >= 0 and path[previous].turn == item.turn:
                return Problem("GCS303", "twice", step, item.owner, (path[previous].event,))
        zeroes = [other.event for other in segment if isinstance(other.event, ZeroGrad)]
        if not _trains(unit.loop, step):
            return None
        return Problem("GCS303", "none", step, item.owner, tuple(zeroes[:1]))
    previous = index - len(segment) - 1
    if previous >= 0:
        return Problem("GCS303", "twice", step, item.owner, (path[previous].event,))
    zeros = [
        other
        for other in segment
        if isinstance(other.event, ZeroGrad) and covers(other, item) is True
    ]
    if not zeros:
        return None
    later = [other.event for other in path[index:] if isinstance(other.event, Backward)]
    kind = "order" if later else "none"
    return Problem("GCS303", kind, step, item.owner, (zeros[0].event, *later[:1]))


def _with_idle_closure(item: Occurrence) -> Problem | None:
    """Judge a step whose closure computes a loss and never differentiates it."""
    step, owner = item.event, item.owner
    if type(step.node) is not cst.Call:
        return None
    handed = {id(argument) for argument in step.node.args}
    closures = [
        event.function
        for event in owner.events()
        if isinstance(event, Call) and event.referenced and id(event.node) in handed
    ]
    if len(closures) != 1 or closures[0] is None:
        return None
    closure = owner.module.function(closures[0])
    if owner.module.near.has(closures[0], BACKWARD) or "grad" in closures[0].words:
        return None
    holders = owner.holders | closure.holders
    events = list(closure.events())
    if not any(isinstance(event, Return) for event in events) or any(
        isinstance(event, Call)
        and event.function is None
        and _computes_gradients(event, holders, _graphs_of(closure))
        for event in events
    ):
        return None
    return Problem("GCS303", "none", step, owner)


def _trains(loop: Loop, step: Step) -> bool:
    """Tell whether a loop trains a model, and does not go through a collection of optimizers.

    One that resets and steps alone, with nothing computed, looks at a schedule of learning rates.
    """
    if first_word(step.receiver) in loop.targets:
        return False
    events = list(loop.body.events())
    if any(isinstance(event, Forward) for event in events):
        return True
    is_reset = any(isinstance(event, ZeroGrad) for event in events)
    is_scheduled = any(isinstance(event, SchedulerStep) for event in events)
    return is_reset and (not is_scheduled or _computes_anything(loop))


def _computes_anything(loop: Loop) -> bool:
    """Tell whether a loop calls what may compute a loss, or does arithmetic."""
    return any(
        type(node) is cst.BinaryOperation or (type(node) is cst.Call and not _is_of_schedule(node))
        for node in walk(getattr(loop.node, "body", loop.node))
    )


def _is_of_schedule(node: cst.Call) -> bool:
    name = last_word(dotted_name(node.func) or "")
    return name in _OF_SCHEDULES or not isinstance(node.func, (cst.Name, cst.Attribute))


_OF_SCHEDULES: Final = frozenset(
    {"append", "get_last_lr", "get_lr", "print", "step", "zero_grad", "len", "range", "enumerate"}
)


def _between(first: Occurrence, second: Occurrence) -> bool:
    """Tell whether a call lies between two events that might compute gradients."""
    if first.owner is not second.owner:
        return True
    events = list(first.owner.events())
    start, end = events.index(first.event), events.index(second.event)
    return any(
        isinstance(event, Call) and not event.harmless and event.function is None
        for event in events[start + 1 : end]
        if event.node is not second.event.node
    )


def _may_differentiate(function: FunctionModel, unit: Unit, item: Occurrence) -> list[Call]:
    """Return the calls that can't be looked into and may compute the gradients of this step."""
    found: list[Call] = []
    holders = function.holders | item.owner.holders
    for owner in {id(function): function, id(item.owner): item.owner}.values():
        graphs = _graphs_of(owner)
        for event in owner.events():
            if isinstance(event, Call) and event.function is None:
                if (
                    unit.loop is not None
                    and owner is function
                    and (unit.loop.identity not in event.loops)
                ):
                    continue
                if _computes_gradients(event, holders, graphs):
                    found.append(event)
    return found


def _graphs_of(function: FunctionModel) -> frozenset[int]:
    """Return the sites of what a model has computed in a function."""
    memo = function.module.memo
    key = ("graphs of", id(function.scope))
    if key not in memo:
        memo[key] = frozenset(
            value.site
            for bound in function.bindings.values()
            for value in bound
            if value.through and value.kind in {Kind.UNKNOWN, Kind.HISTORY}
        )
    graphs: frozenset[int] = memo[key]
    return graphs


def _computes_gradients(call: Call, holders: set[int], graphs: frozenset[int]) -> bool:
    name = call.method
    if type(call.node) is cst.Call:
        name = name or (dotted_name(call.node.func) or "").rpartition(".")[2]
    if name and ("backward" in name or name == "grad"):
        return True
    if name == "step" and "sched" in (place_name(_owner_of(call.node)) or "").lower():
        return True  # a schedule of stages, which runs a batch through them and back
    if call.harmless:
        return False
    if not call.is_used and (call.handed & graphs or call.mentions & holders):
        return True
    if not (call.handed | call.on) & holders:
        return False
    # A call whose result is used and whose name is no verb of training computes a value.
    return not call.is_used or name is None or _TRAINS.search(name.lower()) is not None


def _owner_of(node: cst.CSTNode) -> cst.CSTNode | None:
    """Return what a method is called on; None for a call of anything else."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    return node.func.value


_TRAINS = re.compile(
    r"train|step|update|learn|fit|backward|grad|optim|run|process|closure|iter|epoch|batch|engine"
)


def _writes_gradients(function: FunctionModel) -> bool:
    """Tell whether gradients may come from elsewhere, as by `p.grad = g`."""
    memo = function.module.memo
    key = ("writes gradients", id(function.scope))
    if key not in memo:
        scopes = function.module.scopes
        words, called = 0, 0
        for node in walk(function.scope.node):
            if type(node) is cst.Attribute:
                words += node.attr.value in {"grad", "_grad", "backward", "opt_step"}
            elif type(node) is cst.Call and type(node.func) is cst.Attribute:
                # `torch.autograd.grad(...)` returns gradients and writes none.
                name = scopes.resolve_import(dotted_name(node.func) or "")
                called += name == "torch.autograd.grad"
            elif type(node) is cst.Expr and type(node.value) is cst.Attribute:
                # `loss.backward`: named, and not called.
                called += node.value.attr.value == "backward"
        backwards = {
            id(event.node)
            for known in _functions_inside(function)
            for event in known.events()
            if isinstance(event, Backward)
        }
        memo[key] = words > called + len(backwards)
    return bool(memo[key])


def _functions_inside(function: FunctionModel) -> Iterator[FunctionModel]:
    """Yield a function, and those that its source holds."""
    if isinstance(function.scope.node, cst.Module):
        yield from list(function.module.functions())
        return
    yield function
    for nested in function.scope.nested.values():
        yield from _functions_inside(function.module.function(nested))


def _since_last_step(path: Path, index: int) -> Sequence[Occurrence]:
    """Return what lies between the previous step of the same optimizer and this one."""
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    for start in range(index - 1, -1, -1):
        other = path[start]
        if isinstance(other.event, Step) and (
            other.event is step or same(other, other.event.values, item, step.values)
        ):
            return path[start + 1 : index]
    return path[:index]


def judge_zero(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge a reset on each micro-batch of a window."""
    item = path[index]
    event = item.event
    assert isinstance(event, ZeroGrad)
    if unit.loop is None or item.turn != 1 or not event.clears:
        return ()
    if item.leading.arms != unit.loop.arms or (item.event is not item.leading and event.arms):
        # `if i % 4 == 0: optimizer.zero_grad()` begins a window.
        return ()
    if first_word(event.receiver) in unit.loop.targets:
        # Each iteration resets another one: `for optimizer, loss in zip(optimizers, losses):`.
        return ()
    first = [other for other in path if other.turn == 0]
    if any(isinstance(other.event, Step) for other in first):
        return (ABSENT,)
    steps = [other for other in path[index:] if isinstance(other.event, Step)]
    own = [other for other in first if isinstance(other.event, Backward)]
    if not steps or not own or steps[0].event.expects_error:
        return (ABSENT,)
    step = steps[0]
    if not _surely_clears(item, step, path) or not is_window(step, unit):
        return (None,)
    if any(
        isinstance(other.event, ZeroGrad) and other.event is event for other in path[index + 1 :]
    ):
        return (None,)
    if takes_gradients(unit.function, unit.loop.body.events(), or_measures=False):
        return (None,)
    others = (step.event, own[0].event)
    problem = Problem("GCS302", "window", event, item.owner, others, certain=False)
    return (problem.unless(path, STEPS),)


def judge_scheduler(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge the step of a scheduler on one path: GCS306."""
    item = path[index]
    event = item.event
    assert isinstance(event, SchedulerStep)
    if item.turn != 0:
        return (ABSENT,)
    if unit.loop is None or event.expects_error:
        return (None,)
    if item.event is not item.leading and item.event.arms:
        return (None,)
    steps = [
        other
        for other in path
        if isinstance(other.event, Step) and other.turn == 0 and _may_drive(item, other)
    ]
    earlier = [other for other in path[:index] if isinstance(other.event, Step)]
    if not steps or any(_may_drive(item, other) for other in earlier):
        return (None,)
    if item.leading.arms != unit.loop.arms and any(
        step.leading.arms != item.leading.arms for step in steps
    ):
        # On some paths the scheduler does not step, so that the optimizer may be first.
        return (None,)
    before_loop = any(
        isinstance(other, Step) and unit.loop.identity not in other.loops
        for other in unit.function.events()
    )
    if before_loop or _is_made_by_stranger(event, item.owner):
        return (None,)
    problem = Problem("GCS306", "first", event, item.owner, (steps[0].event,), certain=False)
    return (problem.unless(path[:index], STEPS),)


def _is_made_by_stranger(event: SchedulerStep, function: FunctionModel) -> bool:
    """Tell whether the file makes what has this name by a class that is neither torch's nor known.

    Such a class may be made to step first.
    """
    name, scopes = last_word(event.receiver or ""), function.module.scopes
    if all(value.kind is Kind.SCHEDULER for value in event.values):
        return False
    for other in list(function.module.functions()):
        if name not in other.scope.words:
            continue
        for node in other.scope.nodes_of(cst.Assign):
            if type(node.value) is not cst.Call:
                continue
            names = {last_word(known) for known in bound_names(node.targets[0].target)}
            if name not in names:
                continue
            made = scopes.resolve_import(dotted_name(node.value.func) or "")
            if made is None or made.partition(".")[0] in _SCHEDULER_PACKAGES:
                continue
            # What a function makes together with other things is torch's as a rule.
            if len(names) == 1 or made.rpartition(".")[2][:1].isupper():
                return True
    return False


_SCHEDULER_PACKAGES: Final = frozenset({"torch", "transformers", "diffusers"})


def _may_drive(scheduler: Occurrence, step: Occurrence) -> bool:
    """Tell whether the scheduler may belong to the optimizer that steps."""
    assert isinstance(scheduler.event, SchedulerStep)
    assert isinstance(step.event, Step)
    if all(value.kind is Kind.SCHEDULER for value in scheduler.event.values) and all(
        value.kind is Kind.OPTIMIZER for value in step.event.values
    ):
        return bool(scheduler.held(scheduler.event.values) & step.keys(step.event.values))
    return True
