"""GCS109: a step changes weights that a pending backward needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gradcheck_lint.model.flow import Backward, Forward, GradMode, Step
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import last_word
from gradcheck_lint.model.values import Kind, Origin, all_are, held_by, sites, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.step_before_second_backward.graph_flow import Flow, flow
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel


class StepBeforeSecondBackward(Rule):
    """An optimizer steps while a later backward still goes through the weights it changes."""

    entry = catalogue.STEP_BEFORE_SECOND_BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step between a model's forward and a backward through it."""
        if Part.BACKWARD not in function.scope.parts:
            return
        events = list(function.events())
        for index, event in enumerate(events):
            if not isinstance(event, Step):
                continue
            is_known = all_are(event.values, Kind.OPTIMIZER) and not _is_argument(event)
            if not is_known and not _is_argument(event):
                continue
            owned = held_by(event.values)
            if not any(
                isinstance(other, Backward) and other.loops == event.loops
                for other in events[:index]
            ):
                continue
            if is_known and (again := _in_next_iteration(function, events, event)) is not None:
                yield again
                continue
            before = [
                other
                for other in events[:index]
                if isinstance(other, Forward)
                and other.mode is not GradMode.DISABLED
                and other.loops == event.loops
                and other.arms == event.arms
                and (
                    sites(other.values) & owned
                    if is_known
                    else _is_named_after(event.receiver, other.receiver)
                )
            ]
            if not before:
                continue
            places = {id(other.node): place for place, other in reversed([*enumerate(before)])}
            for later in events[index + 1 :]:
                if not isinstance(later, Backward) or later.loops != event.loops or later.partial:
                    continue
                reached = through_all(later.values) & places.keys()
                if not reached or later.expects_error:
                    continue
                known = before[min(places[site] for site in reached)]
                how_sure = flow(function, known.node, later.node)
                is_beside = later.arms == event.arms
                if how_sure is Flow.NONE or not (is_known or is_beside):
                    continue
                is_certain = is_known and is_beside and how_sure is Flow.SURE
                receiver = event.receiver or "the optimizer"
                yield Violation(
                    event.node,
                    f"`{receiver}` changes the weights of `{known.receiver}` here, but a later "
                    "backward() goes through its forward from before the step: torch raises, "
                    "because the saved weights are overwritten",
                    Severity.ERROR if is_certain else Severity.WARNING,
                    f"step after the last backward(), or call `{known.receiver}` again",
                    ((known.node, "ran here, before"), (later.node, "needs the old weights")),
                )
                break


def _in_next_iteration(
    function: FunctionModel, events: list[Event], step: Step
) -> Violation | None:
    """Return the violation by a step in a loop around which its model ran, before the loop.

    The backward of the next iteration goes through the weights that this one has changed.
    """
    owned = held_by(step.values)
    forwards = [
        event
        for event in events
        if isinstance(event, Forward)
        and event.mode is not GradMode.DISABLED
        and sites(event.values) & owned
    ]
    depth = len(step.loops)
    if not depth or any(event.loops[:depth] == step.loops for event in forwards):
        return None
    around = {
        id(event.node): event
        for event in forwards
        if event.loops == step.loops[: len(event.loops)] and not event.arms
    }
    for later in events:
        if not isinstance(later, Backward) or later.loops != step.loops or later.partial:
            continue
        reached = through_all(later.values) & around.keys()
        known = around[min(reached)] if reached and not later.expects_error else None
        if known is None or flow(function, known.node, later.node) is Flow.NONE:
            continue
        receiver = step.receiver or "the optimizer"
        return Violation(
            step.node,
            f"`{receiver}` changes the weights of `{known.receiver}` in each iteration, and the "
            "backward() of the next one still goes through its forward from before the loop: "
            "torch raises, because the saved weights are overwritten",
            Severity.WARNING,
            f"call `{known.receiver}` in the loop",
            ((known.node, "ran here, before the loop"), (later.node, "needs the old weights")),
        )
    return None


def _is_argument(event: Step) -> bool:
    """Tell whether the optimizer is handed in, so that only its name says what it owns."""
    return bool(event.values) and all(
        value.origin is Origin.ARGUMENT and value.kind in {Kind.OPTIMIZER, Kind.UNKNOWN}
        for value in event.values
    )


def _is_named_after(optimizer: str | None, model: str) -> bool:
    """Tell whether an optimizer has the name of a model: ``d_opt`` and ``D``, ``optimizerD``."""
    name = _OPTIMIZER.sub("", last_word(optimizer or "").lower()).strip("_")
    whose = _NET.sub("", last_word(model).lower()).strip("_")
    return bool(name) and _SHORT.get(name, name) == _SHORT.get(whose, whose)


_OPTIMIZER: Final = re.compile(r"optimi[sz]er|optim|opt(?![a-z])|(?<![a-z])opt")
_NET: Final = re.compile(r"^net_?|_?(?:net|model|network)$")
_SHORT: Final = {"discriminator": "d", "dis": "d", "generator": "g", "gen": "g"}
