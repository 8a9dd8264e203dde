"""GCS304: gradients clipped where it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradcheck_lint.analyses.callers import models_of_step
from gradcheck_lint.analyses.spent_iterators import spent_uses
from gradcheck_lint.model.flow import Backward, Clip, Event, Step, ZeroGrad
from gradcheck_lint.model.values import Kind, all_are, held_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.protocol import problems
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.rules.step_order.problem import Problem


class ClipMisplaced(Rule):
    """Clipping comes after the step, before backward, too often, or of an exhausted iterator."""

    entry = catalogue.CLIP_MISPLACED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every clipping that is out of order on each path it lies on."""
        for problem in problems(function, self.entry.code):
            yield _violation(problem)
        yield from _exhausted(function)
        if _names_clipping(function):
            yield from _of_another_model(function)


_MESSAGES = {
    "after-step": (
        "the gradients are clipped after the step that uses them, so the clipping has no effect"
    ),
    "before-backward": (
        "the gradients are clipped before backward() computes them, so what the step uses is not "
        "clipped"
    ),
    "micro-batch": (
        "the gradients are clipped on every micro-batch while more are added before the step: "
        "the sum is not clipped, and early micro-batches count less"
    ),
}
_RELATED = {
    "after-step": "the step that has used them",
    "before-backward": "computed here",
    "micro-batch": "added to here again",
}


def _violation(problem: Problem) -> Violation:
    return Violation(
        problem.event.node,
        _MESSAGES[problem.kind] + problem.reservation,
        problem.severity,
        "clip once, between the last backward() and step()",
        tuple((event.node, _RELATED[problem.kind]) for event in problem.others[:1]),
    )


def _names_clipping(function: FunctionModel) -> bool:
    return any("clip_grad" in word for word in function.scope.words)


def _of_another_model(function: FunctionModel) -> Iterator[Violation]:
    """Yield a clipping of one model where the step is that of another, which nothing clips."""
    events = [event for event in function.events() if isinstance(event, _MILESTONES)]
    for place, clip in enumerate(events):
        if not isinstance(clip, Clip) or not all_are(clip.values, Kind.PARAMETERS):
            continue
        clipped = held_by(clip.values)
        window = _window_around(events, place)
        steps = [event for event in window if isinstance(event, Step)]
        if not steps or any(
            event.loops != clip.loops or not _lies_around(event, clip) or event.expects_error
            for event in window
        ):
            continue
        owned = [models_of_step(function, step) for step in steps]
        clips = [held_by(event.values) for event in window if isinstance(event, Clip)]
        if not all(owned) or any(each & models for each in clips for models in owned):
            continue
        if _is_stepped_elsewhere(function, clipped):
            yield Violation(
                clip.node,
                "this clips the gradients of another model: those that "
                f"`{steps[0].receiver or 'the optimizer'}` steps with next are not clipped",
                Severity.WARNING,
                "clip the parameters that this optimizer was made of",
                ((steps[0].node, "the step"),),
            )


def _lies_around(event: Event, clip: Clip) -> bool:
    """Return whether an event happens on every path that a clipping is on, as its equal."""
    if isinstance(event, Clip):
        return True
    return event.arms == clip.arms[: len(event.arms)]


_MILESTONES: Final = (Backward, Step, ZeroGrad, Clip)


def _window_around(events: Sequence[Event], place: int) -> list[Event]:
    """Return what lies between the backward before a clipping and the next one, that included."""
    start = place
    while start and not isinstance(events[start], Backward):
        start -= 1
    end = place + 1
    while end < len(events) and not isinstance(events[end], Backward):
        end += 1
    between = events[start + 1 : place]
    if not isinstance(events[start], Backward) or not all(isinstance(e, Clip) for e in between):
        return []
    return list(events[start:end])


def _is_stepped_elsewhere(function: FunctionModel, models: frozenset[int]) -> bool:
    """Tell whether an optimizer of its own steps what is clipped, here or in the class."""
    scope = function.scope
    methods = () if scope.owner is None else scope.owner.methods.values()
    return any(
        isinstance(event, Step) and models <= models_of_step(known, event)
        for known in (function, *map(function.module.function, methods))
        for event in known.events()
    )


def _exhausted(function: FunctionModel) -> Iterator[Violation]:
    """Yield a clipping of an iterator that an optimizer, or the clipping before, has used up."""
    for use in spent_uses(function):
        if use.how == "clip":
            why = "is used up before: nothing"
            if use.again:
                why = "can be gone through once: after the first time at the latest, nothing"
            yield Violation(
                use.node,
                f"`{use.path}` is an iterator, which {why} is clipped here",
                Severity.ERROR if use.is_sure else Severity.WARNING,
                f"make a list of it: `{use.path} = list(...)`",
                ((use.by, "made once" if use.again else "used up here"),),
            )
