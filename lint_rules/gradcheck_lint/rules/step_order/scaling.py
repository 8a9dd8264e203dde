"""Judge the calls of a gradient scaler along a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.cuts import forwards_by_node
from gradcheck_lint.analyses.opaque_calls import UNSCALES
from gradcheck_lint.model.flow import (
    Backward,
    ScalerUpdate,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.model.function_class import names_in
from gradcheck_lint.model.paths import assigned_in
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import NOTHING, Kind, all_are, sites, through_all
from gradcheck_lint.rules.step_order.problem import ABSENT, Problem, Unit, is_window, last_of, same

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gradcheck_lint.model.paths import Occurrence, Path
    from gradcheck_lint.model.values import Values


def judge_scaled_step(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge a step that a gradient scaler takes on one path: GCS310."""
    item = path[index]
    step = item.event
    assert isinstance(step, Step)
    before = path[:index]
    last = last_of(before, Backward)
    if last is None:
        return (None, None)
    backward = before[last].event
    assert isinstance(backward, Backward)
    between = before[last + 1 :]
    wrong: Problem | None = None
    if backward.scaled and not step.scaler and not step.closure:
        unscaled = [other for other in between if isinstance(other.event, Unscale)]
        others_step = any(isinstance(other.event, Step) for other in between)
        if not unscaled and not others_step and not _some_unscaled(path):
            sure = all(value.certain for value in backward.values)
            wrong = Problem("GCS310", "step", step, item.owner, (backward,), certain=sure)
        elif unscaled and not others_step and _is_beside(unscaled[-1], item):
            others = (unscaled[-1].event,)
            wrong = Problem("GCS310", "unchecked-step", step, item.owner, others, certain=False)
    elif step.scaler and not backward.scaled and _knows_scaling(before):
        wrong = Problem("GCS310", "unscaled-backward", step, item.owner, (backward,))
    elif step.scaler and (pair := _unscaled_beside_scaled(before, item)) is not None:
        plain, scaled = pair
        others = (scaled.event,)
        wrong = Problem("GCS310", "scaled-and-not", plain.event, plain.owner, others, certain=False)
    elif step.scaler and _is_of_another_scaler(item, before):
        wrong = Problem("GCS310", "another-scaler", step, item.owner, (backward,))
    wrong = wrong and wrong.unless(between, UNSCALES)
    return (wrong, _twice(path, index, unit))


def _unscaled_beside_scaled(
    before: Sequence[Occurrence], step: Occurrence
) -> tuple[Occurrence, Occurrence] | None:
    """Return a backward without the scaler and one with it that add to the same gradients.

    What comes after ``unscale_()`` is added to gradients that are unscaled by then.
    """
    assert isinstance(step.event, Step)
    found: list[Occurrence] = []
    for other in reversed(before):
        if isinstance(other.event, (Step, ZeroGrad)):
            break
        if isinstance(other.event, Unscale):
            found.clear()
        elif isinstance(other.event, Backward):
            found.append(other)
    scaled = [each for each in found if isinstance(each.event, Backward) and each.event.scaled]
    plain = [each for each in found if each not in scaled and _knows_scaling([each])]
    held = step.held(step.event.values)
    first = next((each for each in plain if _models_of(each) & held), None)
    return (first, scaled[0]) if first is not None and scaled else None


def _models_of(item: Occurrence) -> frozenset[Hashable]:
    """Return the models that a backward goes through, where its own function runs them."""
    assert isinstance(item.event, Backward)
    forwards = forwards_by_node(item.owner)
    found: set[Hashable] = set()
    for node in through_all(item.event.values):
        if node in forwards:
            found |= item.keys(forwards[node].values)
    return frozenset(found)


def _is_of_another_scaler(item: Occurrence, before: Sequence[Occurrence]) -> bool:
    """Tell whether all since the scaler's last update is of what known others have scaled."""
    assert isinstance(item.event, Step)
    own = item.event.scaler
    if not all_are(own, Kind.SCALER):
        return False
    seen = False
    for other in reversed(before):
        if isinstance(other.event, ScalerUpdate) and _updates(other, item):
            break
        if not isinstance(other.event, Backward):
            continue
        scalers = [_scaler_of(value.node, other) for value in other.event.values]
        if other.owner is not item.owner or not all(
            all_are(found, Kind.SCALER) for found in scalers
        ):
            return False
        if any(sites(found) & sites(own) for found in scalers):
            return False
        seen = True
    return seen


def _scaler_of(node: cst.CSTNode | None, item: Occurrence) -> Values:
    """Return the scaler in ``scaler.scale(loss)``; nothing for any other value."""
    func = node.func if type(node) is cst.Call else None
    if type(func) is not cst.Attribute or func.attr.value != "scale":
        return NOTHING
    return item.owner.bindings.get(dotted_name(func.value) or "", NOTHING)


def _is_beside(unscaled: Occurrence, step: Occurrence) -> bool:
    """Tell whether an unscaling and the step of its optimizer happen on the same paths."""
    assert isinstance(unscaled.event, Unscale)
    assert isinstance(step.event, Step)
    return (
        unscaled.owner is step.owner
        and unscaled.event.arms == step.event.arms
        and same(unscaled, unscaled.event.values, step, step.event.values)
    )


def _some_unscaled(path: Path) -> bool:
    return any(isinstance(other.event, Backward) and not other.event.scaled for other in path)


def _knows_scaling(before: Sequence[Occurrence]) -> bool:
    """Tell whether each backward is of a value that is seen to be made without the scaler."""
    return all(
        bool(other.event.values)
        and type(other.event.node) is cst.Call
        and type(other.event.node.func) is cst.Attribute
        and type(other.event.node.func.value) is cst.Name
        and not any(_is_scaled_elsewhere(value.node) for value in other.event.values)
        for other in before
        if isinstance(other.event, Backward)
    )


def _is_scaled_elsewhere(node: cst.CSTNode | None) -> bool:
    if type(node) is cst.Call:
        called = dotted_name(node.func)
        if called is not None:
            return "scale" in called
        # `model(x).mean()`, or `scaler.scale(model(x)).mean()`
        return any(type(name) is cst.Name and "scale" in name.value for name in walk(node))
    return not isinstance(node, (cst.BinaryOperation,))


def _twice(path: Path, index: int, unit: Unit) -> Problem | None:
    """Judge a scaled step or an unscaling: is there an update since the last one?"""
    item = path[index]
    event = item.event
    assert isinstance(event, (Step, Unscale))
    if not event.scaler:
        return None
    between: list[Occurrence] = []
    for other in reversed(path[:index]):
        if _updates(other, item):
            return None
        between.append(other)
        if isinstance(other.event, Step) and not other.event.scaler:
            continue  # a step of the optimizer's own, which the scaler knows nothing of
        if isinstance(other.event, (Step, Unscale)) and same(
            other, other.event.values, item, event.values
        ):
            is_step = isinstance(event, Step)
            if is_step and isinstance(other.event, Unscale):
                continue
            if _goes_on_to_another(item, unit) and _is_of_earlier_turn(other, item, unit):
                return None
            kind = "no-update" if is_step else "unscale-twice"
            if not is_step and isinstance(other.event, Step):
                kind = "unscale-after-step" if other.turn == item.turn else "no-update"
            blamed = other.event if kind == "no-update" else event
            owner = other.owner if kind == "no-update" else item.owner
            sure = all_are(event.scaler, Kind.SCALER)
            problem = Problem("GCS310", kind, blamed, owner, (other.event, event), certain=sure)
            return problem.unless(between, UNSCALES)
    # Where the other iteration on the path makes no step, other paths tell.
    return None if item.turn == 0 else ABSENT


def _goes_on_to_another(item: Occurrence, unit: Unit) -> bool:
    """Tell whether a loop has another optimizer the next time round, under the same words."""
    event, leading, function = item.event, item.leading, unit.function
    assert isinstance(event, (Step, Unscale))
    used = names_in(event.node.args[0]) if type(event.node) is cst.Call else frozenset()
    for loop in item.owner.loops():
        if loop.identity in event.loops and used & (loop.targets | assigned_in(loop, item.owner)):
            return True
    if event is leading:
        return False
    # `for optimizer in optimizers: self.finish(optimizer)`
    known = item.keys(event.values)
    return any(
        not known.isdisjoint(sites(function.bindings.get(name, NOTHING)))
        for loop in function.loops()
        if loop.identity in leading.loops
        for name in loop.targets
    )


def _is_of_earlier_turn(other: Occurrence, item: Occurrence, unit: Unit) -> bool:
    """Tell whether what a path has before an event stands no earlier in the source."""
    first, second, function = other.leading, item.leading, unit.function
    if first is second and other.owner is item.owner:
        first, second, function = other.event, item.event, item.owner
    order = {id(event): place for place, event in enumerate(function.events())}
    return order.get(id(first), 0) >= order.get(id(second), 0)


def _updates(item: Occurrence, of: Occurrence) -> bool:
    """Tell whether this updates the scaler of a step or an unscaling, or may do so."""
    assert isinstance(of.event, (Step, Unscale))
    if not isinstance(item.event, ScalerUpdate):
        return False
    updated, own = item.event.scaler, of.event.scaler
    known = all_are(updated, Kind.SCALER) and all_are(own, Kind.SCALER)
    return not known or bool(sites(updated) & sites(own))


def judge_unscale(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge an unscaling on one path: GCS310."""
    if path[index].turn != unit.turn:
        return ()
    return (_twice(path, index, unit), _each_micro_batch(path, index, unit))


def _each_micro_batch(path: Path, index: int, unit: Unit) -> Problem | None:
    """Judge an unscaling in each iteration of a window at whose end alone the scaler steps."""
    item = path[index]
    event = item.event
    assert isinstance(event, Unscale)
    if unit.loop is None:
        return None
    earlier = [other for other in path[:index] if other.turn == 0]
    if any(isinstance(other.event, (Step, ScalerUpdate)) for other in earlier):
        return ABSENT
    if not any(other.event is event for other in earlier):
        return None
    steps = [other for other in path[index:] if isinstance(other.event, Step)]
    if not steps or not is_window(steps[0], unit) or _goes_on_to_another(item, unit):
        return None if steps else ABSENT
    others = (steps[0].event,)
    problem = Problem("GCS310", "unscale-each", event, item.owner, others, certain=False)
    return problem.unless(path[:index], UNSCALES)


def judge_update(path: Path, index: int, unit: Unit) -> tuple[Problem | None, ...]:
    """Judge an update: is there a step of the scaler since the last one?"""
    item = path[index]
    event = item.event
    assert isinstance(event, ScalerUpdate)
    if item.turn != unit.turn:
        return ()
    before = path[:index]
    later = [other for other in path[index + 1 :] if isinstance(other.event, Step)]
    seen_backward = False
    between: list[Occurrence] = []
    for other in reversed(before):
        between.append(other)
        if isinstance(other.event, (Step, Unscale)) and other.event.scaler:
            if seen_backward:
                break
            is_every = other.turn == item.turn and not is_window(other, unit)
            return (None,) if is_every else (ABSENT,)
        if isinstance(other.event, ScalerUpdate):
            break
        seen_backward = seen_backward or (isinstance(other.event, Backward) and other.event.scaled)
    if not seen_backward:
        return (None,)
    if later and isinstance(later[0].event, Step) and later[0].event.scaler:
        follows = not any(
            isinstance(other.event, Backward) for other in path[index : path.index(later[0])]
        )
        if follows and later[0].event.arms == event.arms:
            others = (later[0].event,)
            sure = all_are(event.scaler, Kind.SCALER)
            problem = Problem("GCS310", "update-first", event, item.owner, others, certain=sure)
            return (problem.unless(between, UNSCALES),)
    return (_outside_window(path, index, unit),)


def _outside_window(path: Path, index: int, unit: Unit) -> Problem | None:
    """Judge an update in each iteration of a window at whose end alone the scaler steps."""
    item = path[index]
    if unit.loop is None:
        return None
    steps = [
        other
        for other in path
        if isinstance(other.event, Step) and other.event.scaler and other.turn == 0
    ]
    if not steps:
        return ABSENT
    if not is_window(steps[0], unit):
        return None
    others = (steps[0].event,)
    return Problem("GCS310", "update-each", item.event, item.owner, others, certain=False)
