"""GCS305: scaled gradients that are clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Clip,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.model.paths import ACTS, EFFECTS
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, dotted_name, walk
from gradcheck_lint.rules._rule import Fix, Insertion, Removal, Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while a ``GradScaler`` has still scaled them."""

    entry = catalogue.CLIP_BEFORE_UNSCALE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)
        yield from _half_unscaled(function)


def _half_unscaled(function: FunctionModel) -> Iterator[Violation]:
    """Yield what clips the gradients of two optimizers together, of which one is unscaled."""
    if "unscale_" not in function.scope.words:
        return
    events = list(function.events())
    for index, clip in enumerate(events):
        if not isinstance(clip, Clip) or type(clip.node) is not cst.Call:
            continue
        beside = [e for e in events if (e.loops, e.arms) == (clip.loops, clip.arms)]
        unscaled = {_unscaling(e.node) for e in beside if isinstance(e, Unscale)}
        steps = {
            found: e.node
            for e in events[index:]
            if isinstance(e, Step) and e in beside and (found := _unscaling(e.node)) is not None
        }
        if not unscaled or not unscaled < steps.keys():
            continue
        given = clip.node.args[0].value if clip.node.args else None
        owner = given.func.value if _is_parameters(given) else None  # type: ignore[union-attr]
        for scaler, optimizer in sorted(steps.keys() - unscaled):
            if owner is not None and _is_made_of(optimizer, dotted_name(owner), function):
                yield Violation(
                    clip.node,
                    f"the gradients of `{optimizer}` are still multiplied by the scaler when they "
                    "are clipped together with others that are not: they make up the whole norm",
                    Severity.WARNING,
                    f"call `{scaler}.unscale_({optimizer})` as well, before clipping",
                    ((steps[scaler, optimizer], "unscaled only here, by the step"),),
                )


def _is_parameters(node: cst.BaseExpression | None) -> bool:
    is_call = type(node) is cst.Call and type(node.func) is cst.Attribute
    return is_call and node.func.attr.value == "parameters"  # type: ignore[union-attr]


def _is_made_of(optimizer: str, model: str | None, function: FunctionModel) -> bool:
    """Return whether an optimizer is given something of a model, here or in the constructor."""
    owner = function.scope.owner
    maker = None if owner is None else owner.methods.get("__init__")
    nodes = (*function.scope.nodes, *(maker.nodes if maker is not None else ()))
    return any(
        dotted_name(target) == optimizer
        and function.module.makes_optimizer(value)
        and any(dotted_name(each) in _names_of(model, nodes) for each in walk(value))
        for node in nodes
        for target, value in assigned_pairs(node)
    )


def _names_of(model: str | None, nodes: Iterable[cst.CSTNode]) -> frozenset[str | None]:
    """Return a model's name, and the one that it was given under, without None."""
    others = {
        dotted_name(value)
        for node in nodes
        for target, value in assigned_pairs(node)
        if model is not None and dotted_name(target) == model
    }
    return frozenset({model, *others} - {None})


def _violation(problem: Problem) -> Violation:
    backward, step, *late = problem.others
    fix = _fix(problem.event, step, problem.function)
    hint = "call `scaler.unscale_(optimizer)` once, after the last backward() and before clipping"
    unscaled = step, "unscaled only here, by the step"
    if late:
        hint = "move the `unscale_()` that follows to before the first clipping"
        unscaled = late[0], "unscaled only here"
    return Violation(
        problem.event.node,
        "the gradients are still multiplied by the scaler when they are clipped, so the limit is "
        "thousands of times too low and the scaler undoes it only after that" + problem.reservation,
        problem.severity,
        hint,
        ((backward.node, "scaled here"), (unscaled[0].node, unscaled[1])),
        fix=fix,
    )


def _fix(clip: Event, step: Event, function: FunctionModel) -> Fix | None:
    """Return the change that unscales once in the window, or None where that can't be known.

    A second ``unscale_()`` before ``update()`` raises. So the one that is there is moved, clips of
    one window share theirs, and on each way from there the scaler's step has to follow.
    """
    call = _unscaling(step.node)
    window = _window(clip, step, function)
    clips = [event for event in window if isinstance(event, Clip)]
    late = [event for event in window if isinstance(event, Unscale)]
    if call is None or not clips or len(late) > 1:
        return None
    first, is_only = clips[0], len(clips) + len(late) == 1
    arms = first.arms[: len(step.arms)] if is_only else first.arms
    if first.loops != step.loops or arms != step.arms:
        return None
    between = _between(first.node, step.node, function)
    if any(name.partition(".")[0] in _bound(between) for name in call):
        return None
    insertion = Insertion(first.node, "{}.unscale_({})".format(*call))
    if not late:
        return Fix((insertion,), "Call unscale_() before clipping", safe=True)
    moved = next((node for node in between if _is_line_of(node, late[0].node)), None)
    is_beside = (late[0].arms, late[0].loops) == (step.arms, step.loops)
    if moved is None or not is_beside or _unscaling(late[0].node) != call:
        return None
    return Fix((insertion, Removal(moved)), "Call unscale_() before clipping", safe=True)


def _unscaling(node: cst.CSTNode) -> tuple[str, str] | None:
    """Return the names of the scaler and of the optimizer in a call of one with the other."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    scaler = dotted_name(node.func.value)
    optimizer = dotted_name(node.args[0].value) if len(node.args) == 1 else None
    return None if scaler is None or optimizer is None else (scaler, optimizer)


def _window(clip: Event, step: Event, function: FunctionModel) -> list[Event]:
    """Return what is done to gradients from the first clip of a window to its step, in order.

    Empty if something of it may be out of sight, if something was unscaled before, or if the
    scaler steps for other optimizers as well.
    """
    depth = len(step.loops)
    events = [
        event
        for event in function.events()
        if event.loops[:depth] == step.loops and _is_act(event, function)
    ]
    places = {id(event): place for place, event in enumerate(events)}
    if id(step) not in places or id(clip) not in places:
        return []
    end = places[id(step)]
    following = next((e for e in events[end + 1 :] if not isinstance(e, ScalerUpdate)), None)
    ends = (place for place in range(end) if isinstance(events[place], (Step, ScalerUpdate)))
    turn = events[max(ends, default=-1) + 1 : end]
    last = max((at for at, e in enumerate(turn) if isinstance(e, Backward)), default=-1)
    first = next((at for at, e in enumerate(turn) if at > last and isinstance(e, Clip)), end)
    before, window = turn[:first], turn[first:]
    if isinstance(following, Step) or any(isinstance(e, (Call, Unscale)) for e in before):
        return []
    is_seen = all(isinstance(event, (Clip, Unscale, ZeroGrad)) for event in window)
    return window if is_seen and clip in window else []


def _is_act(event: Event, function: FunctionModel) -> bool:
    if isinstance(event, Call):
        return event.function is not None and function.module.near.has(event.function, ACTS)
    return isinstance(event, EFFECTS) and not isinstance(event, SchedulerStep)


def _between(first: cst.CSTNode, last: cst.CSTNode, function: FunctionModel) -> list[cst.CSTNode]:
    nodes = list(walk(function.scope.node))
    places = {id(node): place for place, node in enumerate(nodes)}
    return nodes[places.get(id(first), len(nodes)) : places.get(id(last), 0)]


def _bound(nodes: Iterable[cst.CSTNode]) -> frozenset[str]:
    targets = [getattr(node, "target", None) or getattr(node, "asname", None) for node in nodes]
    return frozenset(
        name.partition(".")[0]
        for target in targets
        if target is not None
        for name in bound_names(target.name if type(target) is cst.AsName else target)
    )


def _is_line_of(node: cst.CSTNode, call: cst.CSTNode) -> bool:
    """Tell whether a line is this call and nothing else."""
    if type(node) is not cst.SimpleStatementLine or len(node.body) != 1:
        return False
    return type(node.body[0]) is cst.Expr and node.body[0].value is call
